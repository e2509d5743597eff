"""Collections with bad records, or in another format than the loader's."""

import json

import cbor2
import pytest

from osrerank.errors import CorpusFormatError
from osrerank.types import Document
from osrerank_loaders.collections.registry import LOADERS
from tests.unit.osrerank_loaders.collections.test_readers import PARAGRAPHS, car_v2
from tests.unit.osrerank_loaders.conftest import Read

GOOD = {
    "msmarco-passage": b"1\tgood\n",
    "msmarco-document": b"D1\tu\tt\tgood\n",
    "msmarco-v2-passage": b'{"pid": "1", "passage": "good", "spans": "(0,4)", "docid": "d"}\n',
    "msmarco-v2-document": b'{"docid": "1", "url": "u", "title": "t", "headings": "h", "body": "good"}\n',
    "jsonl": b'{"id": "1", "text": "good"}\n',
    "beir": b'{"_id": "1", "text": "good"}\n',
}
BAD_LINES = [
    ("msmarco-passage", b"no tab\n", "expected pid TAB passage, found 1 fields: 'no tab'"),
    ("msmarco-passage", b"1\ttoo\tmany\n", "found 3 fields"),
    ("msmarco-passage", b"\tno id\n", "the passage has no id"),
    ("msmarco-passage", b"1\tcaf\xe9\n", "not UTF-8: byte 0xe9 at column 6"),
    ("msmarco-document", b"D1\tu\tt\n", "expected docid TAB url TAB title TAB body, found 3 fields"),
    ("msmarco-document", b"\tu\tt\tb\n", "the document has no id"),
    ("msmarco-v2-passage", b'{"pid": "1", "passage": "x"}\n', "no field 'spans'; its fields are pid, passage"),
    (
        "msmarco-v2-passage",
        b'{"pid": 1, "passage": "x", "spans": "", "docid": ""}\n',
        "must be a non-empty string, and passage a string",
    ),
    ("msmarco-v2-document", b'{"docid": "1"}\n', "no field 'title'"),
    (
        "msmarco-v2-document",
        b'{"docid": "1", "url": "u", "title": "t", "headings": "", "segment": "", "start_char": "0", "end_char": 1}\n',
        "start_char and end_char must be whole numbers, in document '1'",
    ),
    (
        "msmarco-v2-document",
        b'{"docid": "1", "url": "u", "title": "t", "headings": "h", "segment": "s", "start_char": 0}\n',
        "no field 'end_char'",
    ),
    ("jsonl", b'{"id": "1", "text": \n', "not a JSON object"),
    ("jsonl", b'["1"]\n', "expected a JSON object, found '[\"1\"]'"),
    ("jsonl", b'{"text": "x"}\n', "no field 'id' or '_id' or 'doc_id' or 'docid'; its fields are text"),
    ("jsonl", b'{"id": "", "text": "x"}\n', "the id must be a non-empty string"),
    ("jsonl", b'{"id": "1", "text": null}\n', "text and title must be strings"),
    ("jsonl", b'{"id": "two words", "text": "x"}\n', "the id 'two words' must be one word"),
    ("msmarco-passage", b"1 2\tx\n", "the id '1 2' must be one word"),
]


@pytest.mark.parametrize(("loader", "line", "reason"), BAD_LINES)
def test_a_bad_line_of_a_collection_is_named_and_reading_continues(
    read: Read, loader: str, line: bytes, reason: str
) -> None:
    first, error, last = read(LOADERS[loader], GOOD[loader] + line + GOOD[loader])
    assert isinstance(first, Document)
    assert first == last
    assert isinstance(error, CorpusFormatError)
    assert (error.line, error.file.endswith("file")) == (2, True)
    assert "file, line 2: " in str(error)
    assert reason in str(error)


@pytest.mark.parametrize("loader", [name for name in LOADERS if not name.startswith("trec-car")])
def test_a_collection_of_another_format_is_noticed_at_its_first_record(read: Read, loader: str) -> None:
    record, *_ = read(LOADERS[loader], b"plain prose, no format at all\n" * 3)
    assert isinstance(record, CorpusFormatError)


def test_deep_nesting_and_pages_without_a_header_are_bad_records(read: Read) -> None:
    (error,) = read(LOADERS["jsonl"], b"[" * 100_000 + b"\n")
    assert isinstance(error, CorpusFormatError)
    (error,) = read(LOADERS["trec-car"], cbor2.dumps([0, "Page", b"Page", []]))
    assert "item 1 is not a paragraph" in str(error)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"<DOC>\n<TEXT>x</TEXT>\n</DOC>\n", "line 1: a <DOC> without <DOCNO>"),
        (b"<?xml version='1.0'?><nitf><head></nitf>", ""),
        (b"<nitf><head/></nitf>", ""),
        (json.dumps({"id": "1", "text": "no contents"}).encode(), "line 1: expected id and a list of contents"),
    ],
)
def test_a_bad_trec_document_is_named_and_reading_continues(read: Read, content: bytes, said: str) -> None:
    more = b'<DOC id="2">\n<TEXT>y</TEXT>\n</DOC>\n' * content.startswith(b"<DOC>")
    error, *documents = read(LOADERS["trec"], content + more)
    assert isinstance(error, CorpusFormatError)
    assert said in str(error)
    assert documents == [Document("2", "y")] * bool(more)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"".join(map(cbor2.dumps, PARAGRAPHS))[:-20], r"file, byte \d+: the file is damaged"),
        (car_v2(list(PARAGRAPHS))[:-1], "the file is truncated: its list of items does not end"),
        (car_v2([[0, "Page", b"Page", []]], kind=0), "this file contains pages, not paragraphs"),
    ],
    ids=["item", "list", "pages"],
)
def test_a_damaged_or_foreign_trec_car_file_is_refused(read: Read, content: bytes, said: str) -> None:
    with pytest.raises(CorpusFormatError, match=said):
        read(LOADERS["trec-car"], content)


@pytest.mark.parametrize("block_bytes", [1, 2, 7, 50, 64])
def test_cbor_items_of_any_size_are_read(read: Read, monkeypatch: pytest.MonkeyPatch, block_bytes: int) -> None:
    paragraphs = read(LOADERS["trec-car"], car_v2(PARAGRAPHS * 20))
    monkeypatch.setattr("osrerank_loaders.collections.trec_car._BLOCK_BYTES", block_bytes)
    assert read(LOADERS["trec-car"], car_v2(PARAGRAPHS * 20)) == paragraphs
    assert len(paragraphs) == 40
