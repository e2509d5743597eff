"""The reader of each collection, on small files in the collection's own format."""

import gzip
import json
import tarfile
from pathlib import Path

import cbor2
import pytest

from osrerank.errors import CorpusFormatError
from osrerank.types import Document
from osrerank_loaders.collections.registry import LOADERS
from tests.unit.osrerank_loaders.conftest import Read

TSV = '0\tThe first passage.\n7\t\n8841822\t  leading space, "quotes" and caf\u00e9 \n'
DOCS_TSV = "D1\thttps://a.example/\tA title\tThe body. More.\nD2\t\t\t\n"
DOCS_TREC = """<DOC>
<DOCNO>D1</DOCNO>
<TEXT>
https://a.example/
A title
The body, where 1 < 2.
More.
</TEXT>
</DOC>
<DOC>
<DOCNO>D2</DOCNO>
<TEXT>
https://b.example/


</TEXT>
</DOC>
"""
SGML = """
<DOC>
<DOCNO> NEWS-1 </DOCNO>
<FILEID>not text</FILEID>
<HEADLINE>Rain &amp; sun</HEADLINE>
<DATELINE>OSLO</DATELINE>
<TEXT>
<P>It rained, 3 < 4.</P>
</TEXT>
</DOC>
<!-- between documents -->
<DOC id="other">
<TEXT>
Sun.
</TEXT>
</DOC>
"""
NITF = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE nitf SYSTEM "http://www.nitf.org/IPTC/NITF/3.3/specification/dtd/nitf-3-3.dtd">
<nitf><head><title>Head title</title><docdata><doc-id id-string="42"/></docdata></head>
<body><body.head><hedline><hl1>Headline</hl1></hedline><abstract><p>In short.</p></abstract></body.head>
<body.content><block class="lead_paragraph"><p>One.</p></block>
<block class="full_text"><p>One.</p><p>Two <em>words</em>.</p></block></body.content></body></nitf>
"""
POST = {
    "id": "p1",
    "article_url": "https://post.example/1",
    "title": "Title",
    "contents": [
        {"type": "kicker", "content": "Opinions"},
        None,
        {"type": "sanitized_html", "content": "A <a href='x'>link</a> &amp; text"},
        {"type": "image", "fullcaption": "A caption"},
    ],
}
PASSAGE_V2 = {"pid": "msmarco_passage_00_0", "passage": "Text.", "spans": "(0,5)", "docid": "msmarco_doc_00_0"}
DOC_V2 = {"url": "u", "title": "t", "headings": "h\nh2", "body": "b", "docid": "msmarco_doc_00_0"}
SEGMENT_V2 = {"url": "u", "title": "t", "headings": "h", "segment": "s", "docid": "msmarco_doc_00_0#0"}
SEGMENT_V21 = {**SEGMENT_V2, "docid": "msmarco_v2.1_doc_29_677149#3_1637632", "start_char": 1806, "end_char": 3061}
PARAGRAPHS = [
    [0, b"a" * 40, [[0, "Text with a "], [1, [0, "Page", [], b"Page", "link"]], [0, " inside."]]],
    [0, b"b" * 40, []],
]


def lines(*rows: object) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def car_v2(items: list[object], kind: int = 2) -> bytes:
    return cbor2.dumps(["CAR", [kind], "test"]) + b"\x9f" + b"".join(map(cbor2.dumps, items)) + b"\xff"


PARAGRAPHS_READ = [Document("a" * 40, "Text with a link inside."), Document("b" * 40, "")]
SGML_READ = [Document("NEWS-1", "It rained, 3 < 4.", "Rain & sun"), Document("other", "Sun.")]
GOLDEN = {
    "msmarco-passage": (
        "msmarco-passage",
        TSV.encode(),
        [
            Document("0", "The first passage."),
            Document("7", ""),
            Document("8841822", '  leading space, "quotes" and caf\u00e9 '),
        ],
    ),
    "msmarco-passage-json": (
        "msmarco-passage",
        lines({"id": "0", "contents": "First."}, {"id": "9", "contents": "Last."}),
        [Document("0", "First."), Document("9", "Last.")],
    ),
    "msmarco-document-tsv": (
        "msmarco-document",
        DOCS_TSV.encode(),
        [
            Document("D1", "The body. More.", "A title", {"url": "https://a.example/"}),
            Document("D2", "", "", {"url": ""}),
        ],
    ),
    "msmarco-document-trec": (
        "msmarco-document",
        DOCS_TREC.encode(),
        [
            Document("D1", "The body, where 1 < 2.\nMore.", "A title", {"url": "https://a.example/"}),
            Document("D2", "", "", {"url": "https://b.example/"}),
        ],
    ),
    "msmarco-v2-passage": (
        "msmarco-v2-passage",
        lines(PASSAGE_V2),
        [Document("msmarco_passage_00_0", "Text.", "", {"spans": "(0,5)", "docid": "msmarco_doc_00_0"})],
    ),
    "msmarco-v2-document": (
        "msmarco-v2-document",
        lines(DOC_V2, SEGMENT_V2),
        [
            Document("msmarco_doc_00_0", "b", "t", {"url": "u", "headings": "h\nh2"}),
            Document("msmarco_doc_00_0#0", "s", "t", {"url": "u", "headings": "h"}),
        ],
    ),
    "msmarco-v2.1-segments": (
        "msmarco-v2-document",
        lines({**DOC_V2, "docid": "msmarco_v2.1_doc_29_677149"}, SEGMENT_V21),
        [
            Document("msmarco_v2.1_doc_29_677149", "b", "t", {"url": "u", "headings": "h\nh2"}),
            Document(
                SEGMENT_V21["docid"], "s", "t", {"url": "u", "headings": "h", "start_char": 1806, "end_char": 3061}
            ),
        ],
    ),
    "trec-car-v1.5": ("trec-car", b"".join(map(cbor2.dumps, PARAGRAPHS)), PARAGRAPHS_READ),
    "trec-car-v2.0": ("trec-car", car_v2(PARAGRAPHS), PARAGRAPHS_READ),
    "trec-car-pages": (
        "trec-car-pages",
        car_v2([[0, "A page", b"a", [[1, PARAGRAPHS[0]], [0, "Heading", b"h", []]]], [0, "Empty", b"b", []]], 0),
        [Document("a", "Text with a link inside.", "A page"), Document("b", "", "Empty")],
    ),
    "trec-sgml": ("trec", SGML.encode(), SGML_READ),
    "robust04": ("robust04", SGML.encode("iso-8859-1"), SGML_READ),
    "trec-nyt": ("trec", NITF.encode(), [Document("42", "In short.\nOne.\nTwo words.", "Headline")]),
    "trec-post": (
        "trec",
        lines(POST),
        [Document("p1", "A  link  & text\nA caption", "Title", {"url": "https://post.example/1"})],
    ),
    "beir": (
        "beir",
        lines({"_id": "1", "title": "T", "text": "x", "metadata": {"url": "u"}}, {"_id": "2", "text": "y"}),
        [Document("1", "x", "T", {"url": "u"}), Document("2", "y")],
    ),
    "jsonl": (
        "jsonl",
        lines({"id": 1, "text": "x", "year": 1999}, {"docid": "2", "body": "y", "title": None}),
        [Document("1", "x", "", {"year": 1999}), Document("2", "y")],
    ),
}
"""Of each format a file, and what is read of it with a loader."""


ROBUST = b"""<DOC>
<DOCNO> FT911-1 </DOCNO>
<HEADLINE>Caf\xe9</HEADLINE>
<TEXT>\xa3 5</TEXT>
</DOC>
<DOC>
<DOCNO> CR93E-1 </DOCNO>
<TEXT>Of the Congressional Record.</TEXT>
</DOC>
"""


def test_robust04_is_latin_1_and_has_no_congressional_record(read: Read) -> None:
    assert read(LOADERS["robust04"], ROBUST) == [Document("FT911-1", "\u00a3 5", "Caf\u00e9")]
    assert read(LOADERS["robust04"], ROBUST[ROBUST.index(b"<DOC>", 10) :]) == []
    (error, document) = read(LOADERS["trec"], ROBUST)
    assert "line 3: not UTF-8: byte 0xe9" in str(error)
    assert isinstance(document, Document)


def test_tweets_are_read(read: Read) -> None:
    tweet = {"id": 1, "id_str": "12345678901234567890", "text": "cut\u2026", "full_text": "whole", "lang": "en"}
    assert read(LOADERS["jsonl"], lines(tweet)) == [Document("12345678901234567890", "whole", "", {"lang": "en"})]
    del tweet["full_text"]
    assert read(LOADERS["jsonl"], lines(tweet)) == [Document("12345678901234567890", "cut\u2026", "", {"lang": "en"})]


@pytest.mark.parametrize("case", GOLDEN)
def test_every_record_of_each_collection_is_read(read: Read, case: str) -> None:
    loader, content, documents = GOLDEN[case]
    assert read(LOADERS[loader], content) == documents


def test_html_id_is_the_stem_and_a_bare_less_than_is_text(read: Read) -> None:
    page = b"<html><pre>\n\nIf n < 7 and m > 3\n<b>then</b> 1<=m &lt;\n</pre></html>"
    (record,) = read(LOADERS["trec"], page, "CACM-0007.html")
    assert isinstance(record, Document)
    assert record.doc_id == "CACM-0007"
    assert record.text.split() == ["If", "n", "<", "7", "and", "m", ">", "3", "then", "1<=m", "<"]


def test_segments_within_the_archive_are_found(read: Read, tmp_path: Path) -> None:
    inside = gzip.compress(lines(SEGMENT_V21))
    for folder, name in [("msmarco_v2.1_doc_segmented", "msmarco_v2.1_doc_segmented_29.json.gz"), ("x", "readme.txt")]:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_bytes(inside)
    with tarfile.open(tmp_path / "msmarco_v2.1_doc_segmented.tar", "w") as archive:
        for folder in ("msmarco_v2.1_doc_segmented", "x"):
            archive.add(tmp_path / folder, arcname=folder)
    (record,) = read(LOADERS["msmarco-v2-document"], tmp_path / "msmarco_v2.1_doc_segmented.tar")
    assert isinstance(record, Document)
    assert record.doc_id == SEGMENT_V21["docid"]


SAMPLES = [
    ("msmarco-passage", "msmarco-v1-passage", 4, "0", "1000001"),
    ("msmarco-v2-passage", "msmarco_v2_passage", 6, "msmarco_passage_00_0", "msmarco_passage_00_1778"),
    ("msmarco-v2-passage", "msmarco_v2_passage_gz", 6, "msmarco_passage_00_0", "msmarco_passage_00_1778"),
    ("msmarco-v2-document", "msmarco_v2_doc", 2, "msmarco_doc_00_0", "msmarco_doc_00_4806"),
    ("msmarco-v2-document", "msmarco_v2_doc_gz", 2, "msmarco_doc_00_0", "msmarco_doc_00_4806"),
    ("msmarco-v2-document", "msmarco_v2_doc_segmented", 6, "msmarco_doc_00_0#0", "msmarco_doc_00_4806#2"),
    ("trec", "trec", 4, "AP-0001", "DOC222"),
    ("trec", "nyt", 1, "12345678", "12345678"),
    ("trec", "washingtonpost", 6, "5f992bbc-4b9f-11e2-a6a6-aabac85e8036", "03049850-58e3-11e6-8b48-0cb344221131"),
]


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample[1])
def test_the_published_samples_of_collections_are_read(
    read: Read, shared: Path, sample: tuple[str, str, int, str, str]
) -> None:
    loader, folder, *expected = sample
    records = read(LOADERS[loader], shared / "format-samples" / folder)
    assert all(isinstance(record, Document) and record.text for record in records)
    assert [len(records), records[0].doc_id, records[-1].doc_id] == expected


def test_trec_cars_test200_is_read(read: Read, shared: Path, tmp_path: Path) -> None:
    path = shared / "trec-car-test200" / "raw" / "train.test200.cbor.paragraphs"
    records = read(LOADERS["trec-car"], path)
    assert len(records) == 4689
    assert records[0].doc_id == "00097f95b6f50949841744725b640982bcb12036"
    wrapped = cbor2.dumps(["CAR", [2]]) + b"\x9f" + path.read_bytes() + b"\xff"
    assert read(LOADERS["trec-car"], wrapped) == records


def test_trec_car_pages_are_their_paragraphs_alone(read: Read) -> None:
    image, box = [2, "picture.png", [[1, PARAGRAPHS[0]]]], [4, "box", [["name", [[1, PARAGRAPHS[0]]]]]]
    item = [3, 1, PARAGRAPHS[0]]
    section = [0, "Heading", b"Heading", [[1, PARAGRAPHS[0]], image, [0, "Deep", b"Deep", [[1, PARAGRAPHS[0]], item]]]]
    pages = [[0, "A page", b"enwiki:A%20page", [[1, PARAGRAPHS[0]], section, box], [0], []], [0, "Empty", b"Empty", []]]
    text = "Text with a link inside."
    for content in (b"".join(map(cbor2.dumps, pages)), car_v2(pages, 0)):
        assert read(LOADERS["trec-car-pages"], content) == [
            Document("enwiki:A%20page", f"{text}\n{text}\n{text}", "A page"),
            Document("Empty", "", "Empty"),
        ]
    (error, *_rest) = read(LOADERS["trec-car-pages"], b"".join(map(cbor2.dumps, PARAGRAPHS)))
    assert "item 1 is not a page" in str(error)
    with pytest.raises(CorpusFormatError, match="this file contains outlines, not pages"):
        read(LOADERS["trec-car-pages"], car_v2(pages, 1))
