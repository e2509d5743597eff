"""Drawn passages, lines and paragraphs that are written and read again."""

import io
import json

import cbor2
from hypothesis import given
from hypothesis import strategies as st

from osrerank.formats.sources import SourceFile
from osrerank.types import Document
from osrerank_loaders.collections.jsonl import read_jsonl
from osrerank_loaders.collections.msmarco_passage import read_passages
from osrerank_loaders.collections.trec_car import read_paragraphs
from osrerank_loaders.load.bulk import encode_document

IDS = st.text(st.characters(codec="utf-8", exclude_characters=" \t\n\r\f\v{"), min_size=1, max_size=8)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=50)
LINES = st.text(st.characters(codec="utf-8", exclude_characters="\t\n\r"), max_size=50)


def source(content: bytes) -> SourceFile:
    return SourceFile("file", io.BufferedReader(io.BytesIO(content)))  # type: ignore[arg-type]  # a BytesIO reads like a raw stream


@given(st.lists(st.tuples(IDS, LINES), min_size=1, max_size=5))
def test_written_passages_are_read_back(rows: list[tuple[str, str]]) -> None:
    content = "".join(f"{doc_id}\t{text}\n" for doc_id, text in rows).encode()
    assert list(read_passages(source(content))) == [Document(*row) for row in rows]


@given(st.lists(st.tuples(IDS, TEXTS, TEXTS), max_size=5))
def test_written_json_lines_are_read_back(rows: list[tuple[str, str, str]]) -> None:
    content = b"".join(
        json.dumps({"id": doc_id, "text": text, "title": title}, ensure_ascii=False).encode() + b"\n"
        for doc_id, text, title in rows
    )
    assert list(read_jsonl(source(content))) == [Document(*row) for row in rows]


@given(st.lists(st.tuples(IDS, st.lists(TEXTS, max_size=4)), max_size=5))
def test_written_trec_car_paragraphs_are_read_back(rows: list[tuple[str, list[str]]]) -> None:
    items = [cbor2.dumps([0, doc_id.encode(), [[0, text] for text in texts]]) for doc_id, texts in rows]
    expected = [Document(doc_id, "".join(texts)) for doc_id, texts in rows]
    assert list(read_paragraphs(source(b"".join(items)))) == expected


@given(IDS, TEXTS, TEXTS)
def test_bulk_entries_have_the_documents_fields(doc_id: str, text: str, title: str) -> None:
    action, body = encode_document(Document(doc_id, text, title)).body.decode().removesuffix("\n").split("\n")
    assert json.loads(action) == {"create": {"_id": doc_id}}
    assert json.loads(body) == {"title": title, "text": text}
