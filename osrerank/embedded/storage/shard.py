"""The tantivy index on disk behind an embedded index. It can be rebuilt from the documents in the store.

osrerank's analyzers turn a text into terms and pass them to tantivy, joined by a separator. tantivy's analysis only
splits at the separator and drops `GAP`, the placeholder for a removed stop word. The other terms keep their positions.

tantivy's BM25 averages a field's length over all documents, but Lucene's only over the documents with a term in the
field. Therefore each text field has two extra columns, from which Lucene's score is computed if some documents lack the
field. For a title of 10 terms, two of which are "tea", the frequency column contains the token "tea 2 10", with
`PART_SEPARATOR` for the spaces, and the length column contains 10.
"""

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import tantivy

from osrerank.embedded.analysis.tokens import GAP, Analyzer
from osrerank.embedded.errors import ApiError
from osrerank.embedded.storage.store import StoredDocument

ID = "_id"
SOURCE = "_source"
SEQ = "_seq"
FIELD_NAMES = "_present"
"""A hidden column with tokens about a document's fields: ``title`` if the document has a title, and tokens with
`LENGTH_INFIX` and `DISTINCT_INFIX`. The column's name in the file is older than these tokens."""
TERM_SEPARATOR = "\x1f"
"""The character between the terms of a text. In `FIELD_NAMES`, it follows the path."""
LENGTH_INFIX = TERM_SEPARATOR + "length"
"""``title<LENGTH_INFIX>12`` in `FIELD_NAMES` means that the title has 12 terms."""
DISTINCT_INFIX = TERM_SEPARATOR + "distinct"
"""``title<DISTINCT_INFIX>9`` in `FIELD_NAMES` means that the title has 9 distinct terms."""
PART_SEPARATOR = "\x1e"
"""The separator between the term, its frequency and the field's length in a token of a frequency column."""
ALL_DOCUMENTS = "*"
"""The token that all documents have in `FIELD_NAMES`. BM25 takes its document frequency as the number of documents,
including deleted ones."""
WRITER_BYTES = 64_000_000
"""The memory in which tantivy collects new documents before it writes a segment."""
VALUE_GAP = [GAP] * 100
"""The placeholders between two values of a text field, so that a phrase does not match the end of one value and the
beginning of the next (``position_increment_gap``)."""

logger = logging.getLogger(__name__)

# PanicException cannot be imported. RuntimeError stands for it if tantivy does not define it.
Panic: type[BaseException] = next(
    (kind for kind in BaseException.__subclasses__() if kind.__name__ == "PanicException"), RuntimeError
)
"""The exception that a failed assertion inside tantivy raises, for instance on a truncated file."""
TANTIVY_ERRORS = (ValueError, OSError, RuntimeError, Panic)
"""The exceptions that tantivy raises if its files cannot be read or written."""


@contextlib.contextmanager
def translate_tantivy_errors(folder: Path | None) -> Iterator[None]:
    """Turn the exceptions that tantivy raises for missing or damaged files into a 500."""
    try:
        yield
    except UnicodeError:
        raise  # the error is in the request, not in the files
    except TANTIVY_ERRORS as error:
        cause = f"{type(error).__name__}: {error}"
        reason = f"the search index in {folder} failed ({cause}): try again"
        raise ApiError(500, "search_engine_exception", reason) from error


class FieldTotals(NamedTuple):
    """Lucene's statistics of a text field, including deleted documents.

    Attributes:
        n_documents: the number of documents with a term in the field.
        n_terms: the number of terms in the field, summed over the documents.
        n_distinct_terms: the number of distinct terms in the field, summed over the documents.
    """

    n_documents: int
    n_terms: int
    n_distinct_terms: int


class TermFrequency(NamedTuple):
    """A token of a frequency column, its last two parts, and the number of documents that have the token.

    If 3 documents have "tea" twice in a title of 10 terms, the frequency is 2, the length 10, and ``n_documents`` 3.
    """

    token: str
    frequency: int
    length: int
    n_documents: int


def encode_length(length: int) -> int:
    """Round a length down as Lucene does to store it in one byte.

    The part above 24 keeps its four highest bits: 24 + 17 becomes 24 + 16.
    """
    excess = length - 24
    if excess <= 0:
        return length
    dropped_bits = max(0, excess.bit_length() - 4)
    return 24 + (excess >> dropped_bits << dropped_bits)


class CheckedSearcher:
    """A tantivy searcher that raises `ApiError` if its files cannot be read."""

    def __init__(self, searcher: tantivy.Searcher, folder: Path | None) -> None:
        self._searcher = searcher
        self._folder = folder
        self._totals: dict[str, FieldTotals] = {}

    def totals(self, path: str) -> FieldTotals:
        """Return the statistics of a text field."""
        if path not in self._totals:
            by_length = self._count_documents_by_number(path + LENGTH_INFIX)
            by_distinct_terms = self._count_documents_by_number(path + DISTINCT_INFIX)
            self._totals[path] = FieldTotals(
                n_documents=sum(by_length.values()),
                n_terms=sum(length * n_documents for length, n_documents in by_length.items()),
                n_distinct_terms=sum(number * n_documents for number, n_documents in by_distinct_terms.items()),
            )
        return self._totals[path]

    def _count_documents_by_number(self, prefix: str) -> dict[int, int]:
        """Return the number of documents by the number after ``prefix``: ``{12: 3}`` if 3 have ``<prefix>12``."""
        with translate_tantivy_errors(self._folder):
            tokens = self._searcher.terms_with_prefix(FIELD_NAMES, prefix)
            return {int(token.removeprefix(prefix)): n_documents for token, n_documents in tokens}

    @property
    def num_docs(self) -> int:
        return int(self._searcher.num_docs)

    def docs(self, addresses: Iterable[tantivy.DocAddress]) -> list[tantivy.Document]:
        with translate_tantivy_errors(self._folder):
            return [self._searcher.doc(address) for address in addresses]

    def __getattr__(self, name: str) -> Any:
        """Return a method of tantivy's searcher, whose exceptions become `ApiError`."""
        method = getattr(self._searcher, name)

        def call(*args: Any, **options: Any) -> Any:
            with translate_tantivy_errors(self._folder):
                return method(*args, **options)

        return call


class Shard:
    """A tantivy index in a folder or in memory.

    Args:
        folder: the folder, which is created if it is missing. If it is None, the index is in memory.
        layout: the type of the column for each field path, such as ``{"title": "text"}``.

    Attributes:
        searcher: searches the last commit that `reload` has made visible.
        columns: the name of the column for each field path, such as ``{"title": "f0"}``.
        frequency_columns: the name of the frequency column for each field path.
        length_columns: the name of the length column for each field path.

    Raises:
        ValueError, OSError: the files in the folder are damaged.
    """

    def __init__(self, folder: Path | None, layout: Mapping[str, str]) -> None:
        self.folder = folder
        self.layout = dict(layout)
        self.columns = {path: f"f{number}" for number, path in enumerate(layout)}
        # indices on disk contain the suffix "_exact_value"
        self.frequency_columns = {path: f"{name}_exact_value" for path, name in self.columns.items()}
        self.length_columns = {path: f"{name}_length" for path, name in self.columns.items()}
        self.schema = self._build_schema()
        self._index = self._open(folder)
        self._index.config_reader("manual")
        splitter = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.regex(f"[^{TERM_SEPARATOR}]+"))
        self._index.register_tokenizer("terms", splitter.filter(tantivy.Filter.custom_stopword([GAP])).build())
        self._writer: tantivy.IndexWriter | None = None
        self.reload()

    def _open(self, folder: Path | None) -> tantivy.Index:
        if folder is None:
            return tantivy.Index(self.schema)
        if (folder / "meta.json").exists():
            return tantivy.Index.open(str(folder))
        folder.mkdir(parents=True, exist_ok=True)
        return tantivy.Index(self.schema, path=str(folder))

    def _build_schema(self) -> tantivy.Schema:
        builder = tantivy.SchemaBuilder()
        builder.add_text_field(ID, stored=True, tokenizer_name="raw", index_option="basic")
        builder.add_bytes_field(SOURCE, stored=True)
        builder.add_unsigned_field(SEQ, indexed=True, fast=True)
        builder.add_text_field(FIELD_NAMES, tokenizer_name="raw", index_option="basic")
        for path, column_type in self.layout.items():
            name = self.columns[path]
            if column_type == "text":
                builder.add_text_field(name, tokenizer_name="terms", index_option="position")
                builder.add_text_field(self.frequency_columns[path], tokenizer_name="whitespace", index_option="basic")
                builder.add_unsigned_field(self.length_columns[path], fast=True)
            elif column_type == "keyword":
                builder.add_text_field(name, fast=True, tokenizer_name="raw", index_option="basic")
            elif column_type == "long":
                builder.add_integer_field(name, indexed=True, fast=True)
            else:
                builder.add_float_field(name, indexed=True, fast=True)
        return builder.build()

    def reload(self) -> None:
        """Make the last commit visible to new searches."""
        self._index.reload()
        self.searcher = CheckedSearcher(self._index.searcher(), self.folder)

    @staticmethod
    def sequence_numbers(searcher: CheckedSearcher, addresses: list[tantivy.DocAddress]) -> list[int]:
        """Return the sequence numbers of the documents at these addresses."""
        return [int(number or 0) for number in searcher.fast_field_values(SEQ, addresses)]

    @property
    def has_open_writer(self) -> bool:
        return self._writer is not None

    def open_writer(self) -> None:
        """Open the writer if it is closed. Uncommitted changes of an earlier writer are lost."""
        if self._writer is None:
            # With one thread, documents keep the order of their sequence numbers within a segment.
            self._writer = self._index.writer(WRITER_BYTES, num_threads=1)

    def build_document(
        self, stored: StoredDocument, values_by_path: Mapping[str, list[Any]], get_analyzer: Callable[[str], Analyzer]
    ) -> tantivy.Document:
        """Convert a stored document for `add`.

        Args:
            stored: the document.
            values_by_path: the document's values, such as ``{"title": ["Green tea"], "year": [2024]}``.
            get_analyzer: returns the analyzer of a text field, by the field's path.
        """
        assert stored.source is not None
        document = tantivy.Document()
        document.add_text(ID, stored.doc_id)
        document.add_bytes(SOURCE, stored.source.encode())
        document.add_unsigned(SEQ, stored.seq)
        document.add_text(FIELD_NAMES, ALL_DOCUMENTS)
        for path, values in values_by_path.items():
            document.add_text(FIELD_NAMES, path)
            if self.layout[path] == "text":
                self._add_terms(document, path, [get_analyzer(path).terms(value) for value in values])
            else:
                self._add_values(document, path, values)
        return document

    def add(self, document: tantivy.Document) -> None:
        assert self._writer is not None
        self._writer.add_document(document)

    def _add_terms(self, document: tantivy.Document, path: str, terms_of_values: list[list[str]]) -> None:
        """Add the terms of a text field's values, and the tokens from which Lucene's score is computed."""
        terms = terms_of_values[0]
        for value_terms in terms_of_values[1:]:
            terms = [*terms, *VALUE_GAP, *value_terms]
        frequencies = Counter(term for term in terms if term != GAP)
        if not frequencies:
            return
        length = frequencies.total()
        encoded_length = encode_length(length)
        document.add_text(FIELD_NAMES, f"{path}{LENGTH_INFIX}{length}")
        document.add_text(FIELD_NAMES, f"{path}{DISTINCT_INFIX}{len(frequencies)}")
        document.add_text(self.columns[path], TERM_SEPARATOR.join(terms))
        length_suffix = f"{PART_SEPARATOR}{encoded_length}"
        tokens = [f"{term}{PART_SEPARATOR}{frequency}{length_suffix}" for term, frequency in frequencies.items()]
        document.add_text(self.frequency_columns[path], " ".join(tokens))
        document.add_unsigned(self.length_columns[path], encoded_length)

    def _add_values(self, document: tantivy.Document, path: str, values: list[Any]) -> None:
        """Add the distinct values of a field in ascending order, because an ascending sort uses the smallest value."""
        adders: dict[str, Callable[[str, Any], None]] = {
            "keyword": document.add_text,
            "long": document.add_integer,
            "double": document.add_float,
        }
        add = adders[self.layout[path]]
        for value in sorted(set(values)):
            add(self.columns[path], value)

    def delete(self, doc_ids: Iterable[str]) -> None:
        """Delete documents by id. Unknown ids are ignored."""
        assert self._writer is not None
        for doc_id in doc_ids:
            self._writer.delete_documents_by_term(ID, doc_id)

    def commit(self) -> None:
        """Write additions and deletions to disk. Searches see them after ``reload``."""
        assert self._writer is not None
        self._writer.commit()

    def close_writer(self, *, wait: bool = True) -> None:
        """Close the writer. Uncommitted changes are lost. If ``wait`` is True, wait until running merges have ended."""
        writer, self._writer = self._writer, None
        if writer is not None and wait:
            with translate_tantivy_errors(self.folder):
                writer.wait_merging_threads()
