"""The transformer in PyTerrier itself, where it is installed: pip install 'osrerank[pyterrier]'."""

import warnings

import pytest

from osrerank.testing import FunctionScorer
from tests.frames import ROWS

with warnings.catch_warnings():  # its own, at import
    warnings.simplefilter("ignore")
    pt = pytest.importorskip("pyterrier")
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyterrier.measures")

    from osrerank.adapters.pyterrier import OsrerankReRanker

FRAME = pd.DataFrame(ROWS)
TOPICS = FRAME[["qid", "query"]].drop_duplicates()
QRELS = pd.DataFrame([{"qid": "1", "docno": "c", "label": 1}, {"qid": "2", "docno": "b", "label": 1}])


@pytest.fixture
def reranker() -> OsrerankReRanker:
    return OsrerankReRanker(scorer=FunctionScorer())


def test_the_transformer_reranks_the_results_of_a_pyterrier_retriever(reranker: OsrerankReRanker) -> None:
    bm25 = pt.Transformer.from_df(FRAME)
    ranked = (bm25 >> reranker)(TOPICS)
    assert ranked[ranked["rank"] == 0]["docno"].tolist() == ["c", "b"]
    assert (bm25 % 2 >> reranker)(TOPICS)["docno"].tolist() == ["a", "b", "b", "a"]


def test_a_pyterrier_experiment_measures_the_transformer(reranker: OsrerankReRanker) -> None:
    bm25 = pt.Transformer.from_df(FRAME)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of so few queries, and of pipelines with the same parts
        table = pt.Experiment(
            [bm25, bm25 >> reranker], TOPICS, QRELS, [pt.measures.RR @ 10], names=["bm25", "reranked"], baseline=0
        )
    assert table["RR@10"].round(3).tolist() == [0.417, 1.0]


def test_a_frame_without_texts_is_refused_in_pyterriers_words(reranker: OsrerankReRanker) -> None:
    with pytest.raises(pt.validate.InputValidationError, match="text"):
        reranker(FRAME.drop(columns="text"))


def test_pyterrier_can_inspect_the_transformer(reranker: OsrerankReRanker) -> None:
    assert pt.inspect.transformer_inputs(reranker) == [["qid", "query", "docno", "text"]]
    columns = ["qid", "query", "docno", "text"]
    assert pt.inspect.transformer_outputs(reranker, columns) == [*columns, "score", "rank"]
