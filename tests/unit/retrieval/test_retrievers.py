"""Which retrievers are reranked, how many of their hits, and by which text; `rrf` and others as they are sent."""

from typing import Any

import pytest

from osrerank.options.rerank import Rerank
from osrerank.retrieval.fields import SearchFields
from osrerank.retrieval.first_pass import FirstPass, plan_first_pass
from osrerank.retrieval.query_text import find_query_text
from osrerank.retrieval.retrievers import UNSUPPORTED_RETRIEVERS
from osrerank.types.reasons import Reason

MATCH: dict[str, Any] = {"standard": {"query": {"match": {"text": "low blood"}}}}
KNN: dict[str, Any] = {"knn": {"field": "v", "query_vector": [1], "k": 30, "num_candidates": 90}}


def planned(retriever: dict[str, Any], **body: Any) -> FirstPass | Reason:
    return plan_first_pass({"retriever": retriever, **body}, {}, Rerank(), 100, SearchFields())


@pytest.mark.parametrize(
    ("retriever", "size"),
    [
        (MATCH, 100),
        (KNN, 30),
        ({"rrf": {"retrievers": [MATCH, KNN], "rank_window_size": 50}}, 50),
        ({"rrf": {"query": "low blood", "fields": ["text"]}}, 10),
        (
            {
                "linear": {
                    "retrievers": [{"retriever": MATCH, "weight": 2}, {"retriever": KNN}],
                    "rank_window_size": 500,
                }
            },
            100,
        ),
        ({"rescorer": {"retriever": MATCH, "rescore": [{"window_size": 40}, {"window_size": 20}]}}, 20),
        ({"diversify": {"retriever": MATCH, "type": "mmr", "field": "v", "size": 25}}, 25),
    ],
)
def test_a_retriever_is_sent_with_its_window(retriever: dict[str, Any], size: int) -> None:
    first = planned(retriever, size=10)
    assert isinstance(first, FirstPass)
    assert first.body == {"retriever": retriever, "from": 0, "size": size}
    if retriever != KNN:
        assert find_query_text({"retriever": retriever}) == "low blood"


@pytest.mark.parametrize("retriever", [{kind: {"retriever": MATCH}} for kind in [*UNSUPPORTED_RETRIEVERS, "new"]])
def test_a_retriever_that_reranks_is_left_alone(retriever: dict[str, Any]) -> None:
    for outer in (retriever, {"rrf": {"retrievers": [retriever, KNN], "rank_window_size": 50}}):
        reason = planned(outer)
        assert isinstance(reason, Reason)
        assert reason.code == "retriever"


@pytest.mark.parametrize(
    ("retriever", "body"),
    [
        ({"standard": {"query": {}, "sort": ["n"]}}, {}),
        (KNN, {"from": 25, "size": 10}),
        ({"rrf": {"retrievers": [MATCH, KNN]}}, {"size": 11}),
    ],
)
def test_pages_beyond_a_retrievers_window_and_its_sorts_are_not_reranked(
    retriever: dict[str, Any], body: dict[str, Any]
) -> None:
    reason = planned(retriever, **body)
    assert isinstance(reason, Reason)
    assert reason.code == "retriever"


@pytest.mark.parametrize(
    ("retriever", "body", "size"),
    [
        ({"rrf": {"retrievers": [MATCH, KNN], "rank_window_size": 50}}, {}, 50),
        ({"rrf": {"retrievers": [MATCH, KNN], "rank_window_size": 50}}, {"from": 20}, 30),
        ({"rescorer": {"retriever": MATCH, "rescore": {"window_size": 40}}}, {"size": 4}, 4),
        (KNN, {}, 10),
        (MATCH, {}, 10),
    ],
)
def test_without_a_size_a_retriever_that_ranks_others_hits_shows_its_window(
    retriever: dict[str, Any], body: dict[str, Any], size: int
) -> None:
    first = planned(retriever, **body)
    assert isinstance(first, FirstPass)
    assert first.page.size == size
