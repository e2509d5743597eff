"""The field `contents`, which holds what Anserini indexes."""

import pytest

from osrerank.errors import FormatError
from osrerank.types import Document
from osrerank_loaders.collections.registry import LOADERS
from osrerank_loaders.load.encoding import EncodingRepair
from osrerank_loaders.load.mapping import IndexOptions, build_index_body, list_permanent_options
from tests.unit.osrerank_loaders.collections.test_readers import (
    DOC_V2,
    DOCS_TREC,
    DOCS_TSV,
    GOLDEN,
    NITF,
    PASSAGE_V2,
    POST,
    SEGMENT_V2,
    SEGMENT_V21,
    lines,
)
from tests.unit.osrerank_loaders.conftest import Read

DATED = b"""<DOC>
<DOCNO> LA010190-1 </DOCNO>
<DATE>
<P>January 1, 1990</P>
</DATE>
<SECTION>Metro</SECTION>
<HEADLINE>Rain &amp; sun</HEADLINE>
<BYLINE>By nobody</BYLINE>
<TEXT>
It rained. <DATE>Monday</DATE>
</TEXT>
</DOC>
"""

EXPECTED = {
    "tsv": ("msmarco-document", DOCS_TSV.encode(), "https://a.example/\nA title\nThe body. More."),
    "trec form": ("msmarco-document", DOCS_TREC.encode(), "https://a.example/\nA title\nThe body, where 1 < 2.\nMore."),
    "json form": ("msmarco-document", lines({"id": "D1", "contents": "u\nt\nb"}), "u\nt\nb"),
    "v2 document": ("msmarco-v2-document", lines(DOC_V2), "u t h\nh2 b"),
    "v2 segment": ("msmarco-v2-document", lines(SEGMENT_V2), "u t h s"),
    "v2.1 segment": ("msmarco-v2-document", lines(SEGMENT_V21), "u t h s"),
    "v2 passage": ("msmarco-v2-passage", lines(PASSAGE_V2), "Text."),
    "passage": ("msmarco-passage", b"1\tA passage.\n", "A passage."),
    "news, an element within another once": ("trec", DATED, "January 1, 1990\nRain & sun\nIt rained.  Monday"),
    "robust04": ("robust04", DATED, "January 1, 1990\nRain & sun\nIt rained.  Monday"),
    "times": ("trec", NITF.encode(), "Headline\nIn short.\nOne.\nTwo words."),
    "no headline": ("trec", NITF.replace("<hl1>Headline</hl1>", "").encode(), "In short.\nOne.\nTwo words."),
    "post, its kicker too": ("trec", lines(POST), "Title\nOpinions\nA  link  & text\nA caption"),
    "common layout": ("jsonl", lines({"id": "1", "title": "T", "text": "x"}), "T\nx"),
}


@pytest.mark.parametrize("case", EXPECTED)
def test_contents_are_what_anserini_indexes(read: Read, case: str) -> None:
    loader, content, expected = EXPECTED[case]
    first = read(LOADERS[loader], content, contents=True)[0]
    assert isinstance(first, Document)
    assert first.metadata["contents"] == expected


@pytest.mark.parametrize("case", GOLDEN)
def test_the_contents_option_changes_no_other_field(read: Read, case: str) -> None:
    loader, content, *_ = GOLDEN[case]
    plain = read(LOADERS[loader], content)
    for before, after in zip(plain, read(LOADERS[loader], content, contents=True), strict=True):
        assert isinstance(before, Document)
        assert isinstance(after, Document)
        assert "contents" not in before.metadata
        other_metadata = {name: value for name, value in after.metadata.items() if name != "contents"}
        assert Document(after.doc_id, after.text, after.title, other_metadata) == before


def test_contents_keep_bad_records_refuse_an_existing_field_and_hold_the_text_of_html(read: Read) -> None:
    document = {"id": "1", "text": "x", "contents": "y"}
    bad, renamed, good = read(LOADERS["jsonl"], lines({"text": "x"}, document, {"id": "2", "text": "x"}), contents=True)
    assert isinstance(bad, FormatError)
    assert isinstance(renamed, FormatError)
    assert "document '1' already contains a field contents; load it without --contents" in str(renamed)
    assert isinstance(good, Document)
    (record,) = read(LOADERS["trec"], b"<html><pre>n < 7</pre></html>", "CACM-0007.html", contents=True)
    assert record == Document("CACM-0007", "n < 7", "", {"contents": "n < 7"})


def test_repairing_the_encoding_repairs_the_contents_field() -> None:
    twice = "caf\u00e9".encode().decode("latin-1")
    record = EncodingRepair()(Document("1", twice, twice, {"contents": f"{twice} {twice}"}))
    assert record == Document("1", "caf\u00e9", "caf\u00e9", {"contents": "caf\u00e9 caf\u00e9"})


def test_the_index_maps_contents_with_the_published_bm25_constants() -> None:
    loader = LOADERS["robust04"]
    body = build_index_body(loader, IndexOptions(contents=True), {})
    assert body["mappings"]["properties"]["contents"] == {"type": "text", "analyzer": "english"}
    assert body["settings"]["index"]["similarity"]["default"] == {"type": "BM25", "k1": 0.9, "b": 0.4}
    assert "contents" not in build_index_body(loader, IndexOptions(), {})["mappings"]["properties"]
    assert list_permanent_options(loader, IndexOptions(contents=True)) == ("k1=0.9", "b=0.4", "shards=1", "contents")
    assert list_permanent_options(loader, IndexOptions()) == ("k1=0.9", "b=0.4", "shards=1")
