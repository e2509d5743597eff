"""PyTerrier's tables as CSV."""

from pathlib import Path

import pytest

from osrerank.errors import FormatError
from osrerank.formats.candidates import read_candidates
from osrerank.formats.topics import read_queries
from osrerank.formats.trec import read_qrels, read_run

RESULT = """,qid,query,docno,text,score,rank
0,q1,red fox,b,"a dog, ""old""
and grey",1.5,1
1,q1,red fox,a,a fox,2.5,0
2,q2,sea,c,a ship,1.0,0
"""


@pytest.fixture
def result(tmp_path: Path) -> Path:
    path = tmp_path / "result.csv"
    path.write_text(RESULT)
    return path


def test_a_pyterrier_result_is_read_as_candidates_in_score_order(result: Path) -> None:
    first, second = read_candidates(result)
    assert (first.query.query_id, first.query.text) == ("q1", "red fox")
    assert first.documents == (
        {"id": "a", "text": "a fox", "score": 2.5},
        {"id": "b", "text": 'a dog, "old"\nand grey', "score": 1.5},
    )
    assert [document["id"] for document in second.documents] == ["c"]


def test_a_pyterrier_result_is_a_run_named_by_its_file(result: Path) -> None:
    run = read_run(result)
    assert run.name == "result"
    assert {query_id: [candidate.doc_id for candidate in ranking] for query_id, ranking in run.rankings.items()} == {
        "q1": ["a", "b"],
        "q2": ["c"],
    }


def test_topics_and_judgments_are_read_from_csv_tables(tmp_path: Path) -> None:
    (tmp_path / "topics.csv").write_text('qid,query\nq1,"red, fox"\nq2,sea\n')
    assert [(query.query_id, query.text) for query in read_queries(tmp_path / "topics.csv")] == [
        ("q1", "red, fox"),
        ("q2", "sea"),
    ]
    (tmp_path / "qrels.csv").write_text("qid,docno,label\nq1,a,2\nq1,b,0\n")
    assert read_qrels(tmp_path / "qrels.csv").judgments == {"q1": {"a": 2, "b": 0}}


@pytest.mark.parametrize(
    ("read", "content", "message"),
    [
        (read_run, "qid,docno\nq1,a\n", "line 1: the table has no column 'score'; its columns are qid, docno"),
        (read_run, "qid,docno,score\nq1,a,1\nq1,b\n", "line 3: expected 3 columns"),
        (read_run, "qid,docno,score\nq1,a b,1\n", "line 2: the id 'a b' must be one word"),
        (read_run, "qid,docno,score\nq1,a,high\n", "line 2: the score is 'high'; it must be a number"),
        (read_qrels, "qid,docno,label\nq1,a,1.5\n", "line 2: the relevance is '1.5'; it must be a whole number"),
        (read_candidates, "qid,query,docno,text\nq1,x,a,t\nq2,y,a,t\nq1,x,b,t\n", "query 'q1' appears again"),
        (read_candidates, "qid,query,docno\nq1,x,a\n", "the table has no column 'text'"),
        (read_queries, 'qid,query\nq1,"open\n', "not CSV: unexpected end of data"),
    ],
)
def test_a_malformed_csv_table_is_refused_with_its_line(tmp_path: Path, read, content: str, message: str) -> None:
    path = tmp_path / "table.csv"
    path.write_text(content)
    with pytest.raises(FormatError, match=message):
        read(path)
