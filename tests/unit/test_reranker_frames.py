"""DataFrames with PyTerrier's columns."""

from typing import Any

import pytest

from osrerank import Reranker
from osrerank.errors import ConfigError, EvaluationError
from osrerank.evaluation import evaluate
from osrerank.testing import FunctionScorer
from tests.frames import ROWS

pd = pytest.importorskip("pandas")


@pytest.fixture
def reranker() -> Reranker:
    return Reranker(scorer=FunctionScorer())


def test_a_frame_comes_back_in_the_new_order_of_each_query(reranker: Reranker) -> None:
    frame = pd.DataFrame(ROWS)
    ranked = reranker.rank_frame(frame)
    assert ranked["qid"].tolist() == ["1"] * 4 + ["2"] * 4
    assert ranked["docno"].tolist() == ["c", "a", "b", "d", "b", "a", "c", "d"]
    assert ranked["rank"].tolist() == [0, 1, 2, 3] * 2
    assert ranked["score"].tolist() == [1.0, 0.5, 0.0, -1.0, 1.0, 0.0, 0.0, -1.0]  # d is blank: below, not scored
    assert (ranked["site"] == ranked["docno"] * 2).all()
    assert frame.equals(pd.DataFrame(ROWS))


def test_the_first_pass_of_a_frame_is_ordered_by_score() -> None:
    shuffled = pd.DataFrame(ROWS).sample(frac=1, random_state=3)
    constant = Reranker(scorer=FunctionScorer(lambda *_: 0.0))
    assert constant.rank_frame(shuffled)["docno"].tolist() == list("abcd") * 2


def test_rank_frame_returns_the_best_rows_of_each_query(reranker: Reranker) -> None:
    assert reranker.rank_frame(pd.DataFrame(ROWS), top_k=1)["docno"].tolist() == ["c", "b"]


def test_an_empty_frame_gets_the_new_columns(reranker: Reranker) -> None:
    empty = reranker.rank_frame(pd.DataFrame(ROWS)[["qid", "query", "docno", "text"]].iloc[:0])
    assert empty.dtypes[["score", "rank"]].astype(str).tolist() == ["float64", "int64"]


def test_rank_reads_the_documents_of_one_query(reranker: Reranker) -> None:
    frame = pd.DataFrame(ROWS)
    ranked = reranker.rank("frozen lakes", frame[frame["qid"] == "1"])
    assert [text.doc_id for text in ranked] == ["c", "a", "b", "d"]
    with pytest.raises(ConfigError, match="several queries; use rank_frame"):
        reranker.rank("frozen lakes", frame)


def without(column: str) -> Any:
    return pd.DataFrame(ROWS).drop(columns=column)


def changed(column: str, value: object) -> Any:
    rows = [dict(row) for row in ROWS]
    rows[1][column] = value
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (without("text"), "the DataFrame has no column 'text'; its columns are qid, query, docno, score"),
        (without("qid"), "the DataFrame has no column 'qid'"),
        (changed("text", None), "row 1 of the DataFrame has no value in the column 'text'"),
        (changed("docno", "a"), "has document a twice for query 1"),
        (changed("query", "other"), "has 2 different texts of query 1"),
        ([{"qid": "1"}], "the frame is of the type list; pass a DataFrame"),
    ],
)
def test_a_frame_that_cannot_be_ranked_is_refused(reranker: Reranker, frame: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        reranker.rank_frame(frame)


class ForeignFrame:
    """Looks like a frame of polars."""

    __module__ = "polars.dataframe.frame"
    columns = ("qid", "docno", "score", "label")

    def to_pandas(self) -> object:
        raise AssertionError("frames of other libraries are not converted")


def test_a_frame_of_another_library_is_named_with_the_one_to_pass() -> None:
    frame: Any = ForeignFrame()
    expected = r"pandas.*polars\.ForeignFrame|polars\.ForeignFrame.*pandas"
    with Reranker(scorer=FunctionScorer()) as reranker:
        for call in (reranker.rank_frame, lambda value: reranker.rank("cat", value)):
            with pytest.raises(ConfigError, match=expected):
                call(frame)
    for call in (lambda value: evaluate({"q": {"d": 1}}, value), lambda value: evaluate(value, {"q": ["d"]})):
        with pytest.raises(EvaluationError, match=expected):
            call(frame)
