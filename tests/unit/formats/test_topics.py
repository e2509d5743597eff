import gzip
from pathlib import Path

import pytest

from osrerank.errors import EvaluationError
from osrerank.formats.topics import read_queries
from osrerank.types import Query
from osrerank_loaders.topics import read_queries as read_topics

TOPICS = """<top>
<num> Number: 301
<title> Organized Crime

<desc> Description:
ignored
</top>
<top>
<num> Number: 302 </num>
<title>
Polio &
vaccines
</title>
</top>
"""


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("1\twhat is  it\n\n2\t 'quoted\n", [("1", "what is  it"), ("2", " 'quoted")]),
        ('{"query_id": 1, "text": "one"}\n{"_id": "2", "query": "two"}\n', [("1", "one"), ("2", "two")]),
        (TOPICS, [("301", "Organized Crime"), ("302", "Polio & vaccines")]),
        ("<DOC>\n<DOCNO>\n1\n</DOCNO>\n What articles\nexist?\n</DOC>\n", [("1", "What articles exist?")]),
    ],
)
def test_formats_are_told_apart(tmp_path: Path, content: str, expected: list[tuple[str, str]]) -> None:
    path = tmp_path / "queries.gz"
    path.write_bytes(gzip.compress(content.encode()))
    assert [(query.query_id, query.text) for query in read_queries(path)] == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no queries"),
        ("1\tone\n1\tagain\n", "line 2: query 1 appears twice"),
        ("1 one\n", "line 1: expected `id<TAB>text`"),
        ("1\t \n", "line 1: query '1' has no text"),
        ("\tone\n", "line 1: query '' has no id"),
        ('{"query_id": 1}\n', "line 1: expected the fields query_id and text"),
        ('{"query_id": 1\n', "line 1: not JSON"),
        ("<top>\n<num> 1\n</top>\n", "topic 1 has no <num> or no <title>"),
    ],
)
def test_bad_query_set_is_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "queries"
    path.write_text(content)
    with pytest.raises(EvaluationError, match=message):
        read_queries(path)


def test_real_topics_are_read(shared: Path) -> None:
    assert len(read_queries(shared / "qrels" / "topics.robust04.txt")) == 250
    core18 = read_queries(shared / "qrels" / "topics.core18.txt")
    assert len(core18) == 50
    assert core18[0].text == "Women in Parliaments"
    assert len(read_queries(shared / "qrels" / "topics.msmarco-passage.dev-subset.txt")) == 6980
    assert len(read_queries(shared / "cacm" / "topics.cacm.txt")) == 64


def test_both_readers_of_topics_agree(tmp_path: Path) -> None:
    path = tmp_path / "topics"
    path.write_text("<top>\n<num> Number: 051\n<title> airbus subsidies &amp; more\n</top>\n")
    assert read_queries(path) == (Query("51", "airbus subsidies & more"),) == tuple(read_topics([str(path)]))
