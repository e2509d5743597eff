"""SGML collections with odd markup: every document is read, or the file is refused."""

import gzip
import random
from pathlib import Path

import pytest

from osrerank.errors import CorpusFormatError
from osrerank.types import Document
from osrerank_loaders.collections.registry import LOADERS
from tests.unit.osrerank_loaders.conftest import Read

FINE = ("plain", "one line", "CR LF", "CR alone", "mark", "gzip")
FINE += ("no end", "lower case", "blank", "comment", "DOS", "joined")
REFUSED = ("text", "no <DOC>", "no </DOC>", "two <DOCNO>", "cut", "UTF-16", "latin-1", "id of two words")


def drawn(number: int, oddity: str) -> tuple[dict[str, str], bytes]:
    """Return the documents of a file, id -> text, and its bytes with an oddity."""
    chance = random.Random(number)
    documents = {f"D{number}-{index}": f"word{chance.randrange(99)} {index}" for index in range(chance.randint(2, 4))}
    blocks = [
        f"<DOC>\n<DOCNO> {doc_id} </DOCNO>\n<TEXT>\n{text}\n</TEXT>\n</DOC>\n" for doc_id, text in documents.items()
    ]
    bad = chance.randrange(1, len(blocks))
    block = blocks[bad]
    replaced = {
        "text": f"junk {block}",
        "no <DOC>": block.removeprefix("<DOC>"),
        "no </DOC>": f"{block[:-8]}{block}",
        "two <DOCNO>": block.replace("<TEXT>", "<DOCNO>other</DOCNO>\n<TEXT>"),
        "id of two words": block.replace(" </DOCNO>", " 2 </DOCNO>"),
        "latin-1": block.replace("word", "w\u00f6rd"),
        "comment": f"<!-- of <1999> -->\n{block}",
        "lower case": block.replace("DOC>", "doc>").replace("DOCNO", "docno"),
        "blank": " \t\n\n " + block.replace("<DOC>", '<DOC type="a">'),
    }
    blocks[bad] = replaced.get(oddity, block)
    text = "".join(blocks)
    raw = text.encode("latin-1" if oddity == "latin-1" else "utf-16" if oddity == "UTF-16" else "utf-8")
    changed = {
        "one line": raw.replace(b"\n", b" "),
        "CR LF": raw.replace(b"\n", b"\r\n"),
        "CR alone": raw.replace(b"\n", b"\r"),
        "mark": b"\xef\xbb\xbf" + raw,
        "no end": raw[:-1],
        "DOS": raw + b"\x1a",
        "joined": raw.replace(b"<DOC>", b"\xef\xbb\xbf<DOC>"),
        "cut": raw[:-12],
        "gzip": gzip.compress(raw),
    }
    return documents, changed.get(oddity, raw)


@pytest.mark.parametrize("oddity", FINE)
@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
def test_every_document_of_an_odd_sgml_file_is_read(read, monkeypatch, oddity, piece):
    monkeypatch.setattr("osrerank_loaders.collections.trec.BUFFER_BYTES", piece)
    monkeypatch.setattr("osrerank_loaders.collections.trec._MAX_TAG_BYTES", 20)
    documents, content = drawn(piece, oddity)
    for loader in ("trec", "robust04"):
        found = read(LOADERS[loader], content)
        assert [(document.doc_id, document.text) for document in found if isinstance(document, Document)] == list(
            documents.items()
        )
        assert len(found) == len(documents)


@pytest.mark.parametrize("oddity", REFUSED)
def test_an_sgml_file_that_would_lose_a_document_is_refused_with_its_line(
    read: Read, tmp_path: Path, oddity: str
) -> None:
    documents, content = drawn(3, oddity)
    found = read(LOADERS["trec"], content)
    errors = [document for document in found if isinstance(document, CorpusFormatError)]
    assert errors
    assert all(error.line and str(error).startswith(f"{tmp_path / 'file'}, line {error.line}: ") for error in errors)
    arrived = [(document.doc_id, document.text) for document in found if isinstance(document, Document)]
    assert set(arrived) <= set(documents.items())
    assert len(set(arrived)) == len(arrived)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("<DOC>\n<DOCNO>A</DOCNO>\n\n<DOCNO>B</DOCNO></DOC>", "line 4: a second <DOCNO> in the <DOC> of 'A'"),
        ("\n<DOC><DOCNO>A</DOCNO></DOC>\n\nlost words\n", "line 4: there is text outside of a <DOC>: 'lost words'"),
        ("<DOC><DOCNO>A</DOCNO></DOC>\n</DOC>", "line 2: a </DOC> without <DOC>"),
        ("<DOC><DOCNO>A</DOCNO></DOC>\n<DOC><DOCNO>B</DOCNO>", "line 2: the file ends inside a <DOC>"),
    ],
)
def test_the_error_names_the_wrong_line_of_an_sgml_file(read: Read, content: str, message: str) -> None:
    assert any(message in str(document) for document in read(LOADERS["trec"], content.encode()))


def test_in_ms_marco_tags_are_text_and_title_and_body_have_lines_of_their_own(read: Read) -> None:
    body = "Write <DOC> and </DOC>,\n<DOC>\nalone, too.\n</DOC>"
    content = f"<DOC>\n<DOCNO>D1</DOCNO>\n<TEXT>\nu\nt\n{body}\n</TEXT>\n</DOC>" * 2
    first, second = read(LOADERS["msmarco-document"], content.encode())
    assert first == second == Document("D1", body, "t", {"url": "u"})
    (error,) = read(LOADERS["msmarco-document"], b"<DOC><DOCNO>D1</DOCNO><TEXT>u t b</TEXT></DOC>")
    assert "line 1: expected url, title and body on lines of their own in 'D1'" in str(error)
