"""Topic files in all their formats."""

import gzip
from pathlib import Path

import pytest

from osrerank.errors import FormatError
from osrerank.formats.topics import read_queries

OPEN_TOPICS = """
<top>

<num> Number: 051
<title> Airbus & subsidies

<desc> Description:
Does it    help?

<narr> Narrative:
Relevant is what helps.
</top>
<top>
<num> Number: 402
<title> Second
<desc> Description:
Which?
<narr> Narrative: That.
</top>
"""
CLOSED_TOPICS = """<top>
<num> Number: 321 </num>
<title>
Women in Parliaments
</title>
<desc> Description:
Pertinent documents.
</desc>
<narr> Narrative
Any.
</narr>
</top>
"""
CACM_TOPICS = "<DOC>\n<DOCNO> 1 </DOCNO>\n\n What about\nTSS?\n\n</DOC>\n<DOC>\n<DOCNO> 2 </DOCNO>\n x < 3\n</DOC>\n"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("1\twhat is  it\n\n2\t 'quoted\n", [("1", "what is  it"), ("2", " 'quoted")]),
        ("qid\tquery\n1\tone\nid\ttext\n", [("1", "one"), ("id", "text")]),
        ("Query_ID\tText\n7\tone\n", [("7", "one")]),
        ("id\ttext of a query\n", [("id", "text of a query")]),
        ('{"query_id": 1, "text": "one"}\n{"_id": "2", "query": "two"}\n', [("1", "one"), ("2", "two")]),
        (OPEN_TOPICS, [("51", "Airbus & subsidies"), ("402", "Second")]),
        (CLOSED_TOPICS, [("321", "Women in Parliaments")]),
        ("<DOC>\n<DOCNO>\n1\n</DOCNO>\n What articles\nexist?\n</DOC>\n", [("1", "What articles exist?")]),
        (CACM_TOPICS, [("1", "What about TSS?"), ("2", "x < 3")]),
        (
            "enwiki:Aftertaste\nenwiki:Aftertaste/Wine%20%26%20taste\n\nenwiki:Tacoma/A%2FB%20(C+D)/%C4%80t\r\n",
            [
                ("enwiki:Aftertaste", "Aftertaste"),
                ("enwiki:Aftertaste/Wine%20%26%20taste", "Aftertaste Wine & taste"),
                ("enwiki:Tacoma/A%2FB%20(C+D)/%C4%80t", "Tacoma A/B (C+D) Āt"),
            ],
        ),
        (
            "Antibiotics\nHog-dog%20rodeo/Typical%20match\n",
            [("Antibiotics", "Antibiotics"), ("Hog-dog%20rodeo/Typical%20match", "Hog-dog rodeo Typical match")],
        ),
        ("tqa2:L_0002/T_0020\n", [("tqa2:L_0002/T_0020", "L_0002 T_0020")]),
    ],
)
def test_the_format_of_topics_is_recognised(tmp_path: Path, content: str, expected: list[tuple[str, str]]) -> None:
    path = tmp_path / "queries.gz"
    path.write_bytes(gzip.compress(content.encode()))
    assert [(query.query_id, query.text) for query in read_queries(path)] == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no queries"),
        ("1\tone\n1\tagain\n", "line 2: query '1' appears twice"),
        ("1 one\n", "line 1: expected `id<TAB>text`"),
        ("AC/DC live\n", "line 1: expected `id<TAB>text`"),
        ("1048585\n2\n", "line 1: expected `id<TAB>text`"),
        ("https://example.org/a/b\n", "line 1: expected `id<TAB>text`"),
        ("enwiki:A\nenwiki:A\n", "line 2: query 'enwiki:A' appears twice"),
        ("enwiki:\n", "line 1: query 'enwiki:' has no text"),
        ("enwiki:A%FF\n", "line 1: 'enwiki:A%FF' has escapes that are not UTF-8"),
        (f"{'enwiki:A%20B/C' * 60}\nenwiki:A\ttext\n", "line 2: expected one TREC-CAR id"),
        ("1\t \n", "line 1: query '1' has no text"),
        ("\tone\n", "line 1: the query has no id"),
        ("1\tone\r2\ttwo\n3\tthree\n", "line 1: lines end with CR alone"),
        (
            "\n<top>\n<num> 1\n<title> a\n</top>\n<num> 2\n<title> b\n</top>\n",
            "the topic has several <num> or <DOCNO>",
        ),
        ("1\tone\n#2\ttwo\n", "line 2: the query id '#2' begins with '#'"),
        ('{"_id": "two words", "text": "x"}\n', "line 1: the id 'two words' must be one word"),
        ('{"query_id": 1}\n', "line 1: expected the fields query_id and text"),
        ('{"query_id": 1\n', "line 1: not a JSON object"),
        ("\n<top>\n<num> Number: 1\n</top>", "line 2: topic '1' has no title"),
        ("<top>\n<title> x\n</top>", "line 1: the topic has no <num>"),
    ],
)
def test_malformed_topics_are_refused_with_their_line(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "queries"
    path.write_text(content)
    with pytest.raises(FormatError, match=message):
        read_queries(path)


def test_real_topics_are_read(shared: Path) -> None:
    for name, count, text in (
        ("qrels/topics.robust04.txt", 250, "Poliomyelitis and Post-Polio"),
        ("qrels/topics.core18.txt", 50, "Black Bear Attacks"),
        ("qrels/topics.msmarco-passage.dev-subset.txt", 6980, " Androgen receptor define"),
        ("qrels/topics.car17v2.0.benchmarkY1test.txt", 2254, "Aftertaste Aftertaste processing in the cerebral cortex"),
    ):
        queries = read_queries(shared / name)
        assert (len(queries), queries[1].text) == (count, text)


def test_other_fields_of_topics_are_read_with_and_without_closing_tags(tmp_path: Path) -> None:
    path = tmp_path / "topics"
    path.write_text(OPEN_TOPICS)
    assert [query.text for query in read_queries([path], field="desc")] == ["Does it help?", "Which?"]
    assert [query.text for query in read_queries([path], field="narr")] == ["Relevant is what helps.", "That."]
    path.write_text(CLOSED_TOPICS)
    assert [query.text for query in read_queries([path], field="narr")] == ["Any."]
