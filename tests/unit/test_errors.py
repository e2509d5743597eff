from osrerank.errors import CorpusFormatError, FormatError, LoaderError


def test_a_collections_malformed_record_is_an_error_of_its_format_and_of_the_loading():
    error = CorpusFormatError("corpus.tsv, line 7: no tab", file="corpus.tsv", line=7)
    assert isinstance(error, FormatError)
    assert isinstance(error, LoaderError)
    assert (str(error), error.file, error.line) == ("corpus.tsv, line 7: no tab", "corpus.tsv", 7)
