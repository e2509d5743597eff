"""`osrerank.Reranker`: ranking the caller's own texts and documents."""

import asyncio
import json
import threading
from typing import Any

import pytest

from osrerank import Reranker
from osrerank.errors import ConfigError, InferenceError
from osrerank.testing import FunctionScorer

BY_LENGTH = FunctionScorer(lambda _query, text: float(len(text)) - 2)
BROKEN = FunctionScorer(broken=True)


@pytest.fixture
def reranker() -> Reranker:
    return Reranker(scorer=BY_LENGTH)


def test_rank_returns_texts_in_the_models_order_with_their_indices(reranker: Reranker) -> None:
    ranked = reranker.rank("a query", ["a", "ccc", "bb"])
    assert [(text.rank, text.doc_id, text.text) for text in ranked] == [(1, 1, "ccc"), (2, 2, "bb"), (3, 0, "a")]
    assert [text.score for text in ranked] == [1.0, 0.0, -1.0]
    assert ranked[1].probability == 0.5
    assert json.loads(json.dumps(ranked[0].to_dict())) == {
        "doc_id": 1, "score": 1.0, "probability": pytest.approx(0.7311, abs=1e-4), "rank": 1, "text": "ccc",
        "truncated": False,
    }  # fmt: skip


def test_ranked_documents_keep_their_ids_and_fields(reranker: Reranker) -> None:
    scored = {"doc_id": "x", "title": "On", "text": "bb", "score": 3.0}
    documents: list[dict[str, Any]] = [{"id": 7, "text": "a"}, scored, {"text": "cc"}]
    before = json.dumps(documents)
    assert [(text.doc_id, text.text) for text in reranker.rank("q", documents)] == [("x", "On bb"), (2, "cc"), (7, "a")]
    assert json.dumps(documents) == before


def test_top_k_and_min_score_bound_ranked_texts(reranker: Reranker) -> None:
    assert [text.doc_id for text in reranker.rank("q", ["a", "ccc", "bb"], top_k=2)] == [1, 2]
    with Reranker(scorer=BY_LENGTH, min_score=0.5) as bounded:
        assert [text.doc_id for text in bounded.rank("q", ["a", "ccc", "bb"])] == [1, 2]
    with Reranker(scorer=BROKEN, min_score=0.5) as broken:
        assert [text.doc_id for text in broken.rank("q", ["a", "bb"])] == [0, 1]


def test_rank_accepts_many_queries_and_works_in_asyncio(reranker: Reranker) -> None:
    lists = [["a", "bb"], [], ["ccc", "d"]] * 10
    lists_of_texts = reranker.rank_many(["q", "r", "s"] * 10, lists, top_k=1)
    assert [[text.text for text in ranked] for ranked in lists_of_texts] == [["bb"], [], ["ccc"]] * 10
    assert asyncio.run(reranker.arank("q", ["a", "bb"])) == reranker.rank("q", ["a", "bb"])
    with pytest.raises(ValueError, match="2 queries and 1 lists of documents"):
        reranker.rank_many(["q", "r"], [["a"]])
    with pytest.raises(ConfigError, match="queries is of the type str; pass a list with one entry for each query"):
        reranker.rank_many("qr", [["a"], ["b"]])
    with pytest.raises(ConfigError, match="documents is of the type generator; pass a list"):
        reranker.rank_many(["q"], (texts for texts in [["a"]]))  # type: ignore[arg-type]


def test_the_event_loop_goes_on_while_documents_are_ranked() -> None:
    go_on = threading.Event()
    waiting = Reranker(scorer=FunctionScorer(lambda *_: float(go_on.wait(5))))

    async def other() -> None:
        go_on.set()

    async def both() -> Any:
        return await asyncio.gather(waiting.arank("q", ["a"]), other())

    assert asyncio.run(both())[0][0].score == 1.0


def test_unscored_texts_come_last_in_their_old_order() -> None:
    scorer = FunctionScorer(lambda _query, text: float(len(text)), unscorable=frozenset({"ccc"}))
    ranked = Reranker(scorer=scorer).rank("q", ["ccc", "a", "bb"])
    assert [(text.doc_id, text.score is None, text.probability is None) for text in ranked] == [
        (2, False, False), (1, False, False), (0, True, True),
    ]  # fmt: skip


def test_a_failed_model_keeps_the_order_or_raises() -> None:
    ranked = Reranker(scorer=BROKEN).rank("q", ["a", "bb"])
    assert [(text.doc_id, text.probability) for text in ranked] == [(0, None), (1, None)]
    with pytest.raises(InferenceError):
        Reranker(scorer=BROKEN, on_failure="raise").rank("q", ["a", "bb"])


@pytest.mark.parametrize(
    ("documents", "top_k", "error", "message"),
    [
        (["a"], 0, ConfigError, "top_k is 0; it must be a whole number from 1 up"),
        (["a"], 1.5, ConfigError, "top_k is 1.5; it must be a whole number from 1 up"),
        (["a"], "2", ConfigError, "top_k is '2'; it must be a whole number from 1 up"),
        ([{"id": 1}], None, ConfigError, r"documents\[0\] has no text"),
        (
            [{"id": 1, "text": "a"}, {"id": "1", "text": "b"}],
            None,
            ValueError,
            "documents 0 and 1 have the same id '1'",
        ),
        ([{"id": "1", "text": "a"}, "b"], None, ValueError, "documents 0 and 1 have the same id '1'"),
        ([{"text": "a", "title": 5}], None, ConfigError, r"the title of documents\[0\] is of the type int"),
        ("one text", None, TypeError, "documents is one text"),
        ({"a": "a text"}, None, ConfigError, "documents is of the type dict; pass a list of texts"),
        ((text for text in ("a", "b")), None, ConfigError, "documents is of the type generator; pass a list"),
    ],
)
def test_a_document_without_text_is_refused_with_its_index(reranker, documents, top_k, error, message):
    with pytest.raises(error, match=message):
        reranker.rank("q", documents, top_k=top_k)


def test_a_query_that_is_no_text_is_named(reranker: Reranker) -> None:
    query: Any = None
    with pytest.raises(ConfigError, match="the query is None; pass a text"):
        reranker.rank(query, ["a"])


def test_docno_is_read_as_a_documents_id(reranker: Reranker) -> None:
    assert [
        text.doc_id for text in reranker.rank("q", [{"docno": "x", "text": "a"}, {"docno": "y", "text": "bb"}])
    ] == [
        "y",
        "x",
    ]


def test_unknown_options_of_a_reranker_are_refused() -> None:
    options: dict[str, Any] = {"dept": 3}
    with pytest.raises(ConfigError, match="rerank has no option 'dept'"):
        Reranker(scorer=BY_LENGTH, **options)
