"""Feedback over stored vectors, against numbers worked by hand."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from osrerank.errors import ConfigError
from osrerank.options.passages import Passages
from osrerank.options.rerank import Rerank
from osrerank.service import RerankService
from osrerank.settings import Settings
from osrerank.stages.vectors import VectorStage
from osrerank.testing import FunctionScorer
from osrerank.types import NEVER, Advice, Deadline, Feedback, Side, StageScore, Vectors
from osrerank.types.vectors import Floats
from osrerank.vectors.documents import DocumentVectors
from tests.rankings import client_for, ranking_of

FEEDBACK = Feedback(share=0.5, temperature=2.0)
TEXTS = ["0.6 0.8", "0.6 -0.8", "0.8 0.6"]


class Plane:
    """A text is its vector: two numbers; a logit is ten cosines. "broken" fails, and "late" is not reached in time."""

    model = identity = key = "plane"
    dimensions = 2

    def __init__(self, advice: Advice | None = None) -> None:
        self.advice = advice or Advice(kind="bi-encoder")

    def encode(self, texts: Sequence[str], side: Side, *, deadline: Deadline = NEVER) -> Vectors:
        read = {at: [float(one) for one in text.split()[:2]] for at, text in enumerate(texts) if text[0].isdigit()}
        rows = np.full((len(texts), 2), np.nan, dtype=np.float32)
        for at, row in read.items():
            rows[at] = row
        return Vectors(rows, {at: "it is broken" for at, text in enumerate(texts) if text == "broken"})

    def similarity(self, query: Floats, vectors: Floats) -> Floats:
        return 10 * (vectors * query).sum(axis=1)

    def probabilities(self, logits: Floats) -> Any:
        return 1 / (1 + np.exp(-logits.astype(np.float64)))

    def close(self) -> None: ...


def ranked(texts: Sequence[str], **options: Any) -> dict[str, StageScore]:
    """Return what the stage gave each text, in the new order."""
    stage = VectorStage(DocumentVectors(Plane()), **{"feedback": FEEDBACK, **options})
    candidates = stage.rerank(ranking_of(texts, query="1 0")).candidates
    return {str(one.text): one.trace[-1] for one in candidates}


def logits(texts: Sequence[str], **options: Any) -> list[float]:
    return [entry.parts["logit"] for entry in ranked(texts, **options).values()]


def test_the_query_moves_towards_the_best() -> None:
    """Plain logits are 6, 6, 8, so the weights are e^-1, e^-1 and 1.

    The sum of the vectors is (.8 + e^-1 * 1.2, .6) = (1.2415, .6), of norm 1 (.9004, .4352); the new query is
    (.9502, .2176), of norm 1 (.9748, .2232). Its cosines are .7634, .4063 and .9137. The mean of the logits was 6.6667
    and is 6.9449, so .2782 is taken away from all.
    """
    found = ranked(TEXTS)
    assert list(found) == ["0.8 0.6", "0.6 0.8", "0.6 -0.8"]
    assert [one.parts["logit"] for one in found.values()] == pytest.approx([8.8592, 7.3560, 3.7848], abs=2e-4)
    assert [one.parts["plain_logit"] for one in found.values()] == pytest.approx([8.0, 6.0, 6.0])
    assert found["0.8 0.6"].parts["probability"] == pytest.approx(1 / (1 + np.exp(-8.8592)), abs=1e-6)
    assert found["0.6 0.8"].score == pytest.approx(7.3560, abs=2e-4)


def test_the_first_pass_counts_among_the_best() -> None:
    """First-pass scores of 3, 2 and 1 add 6, 4 and 2: blended 12, 10 and 10, and the query moves towards the first.

    The weights are 1, e^-1 and e^-1; the sum (.6 + e^-1 * 1.4, .8 - e^-1 * .2) = (1.1150, .7264), of norm 1
    (.8379, .5459); the new query (.9189, .2729), of norm 1 (.9586, .2847); the cosines .8029, .3474, .9377;
    the logits' mean was 6.6667 and is 6.96.
    """
    found = ranked(TEXTS, first_pass_weight=6.0)
    assert found["0.6 0.8"].parts["logit"] == pytest.approx(8.029 - 0.2933, abs=2e-3)
    assert found["0.6 -0.8"].parts["logit"] == pytest.approx(3.474 - 0.2933, abs=2e-3)


@pytest.mark.parametrize("texts", [["0.6 0.8"], ["0.6 0.8", "broken"]])
def test_a_candidate_alone_changes_nothing(texts: list[str]) -> None:
    found = ranked(texts)["0.6 0.8"]
    assert found.parts["logit"] == pytest.approx(6.0)
    assert "plain_logit" not in found.parts


@pytest.mark.parametrize(("lacking", "place"), [("broken", 1), ("late", 3)])
def test_candidates_without_a_vector_are_left_out(lacking: str, place: int) -> None:
    with_one = ranked([*TEXTS[:place], lacking, *TEXTS[place:]])
    assert list(with_one) == [*ranked(TEXTS), lacking]
    assert [entry.parts["logit"] for entry in list(with_one.values())[:3]] == logits(TEXTS)


def test_of_a_long_document_the_passage_that_scored_best_counts() -> None:
    """The second document's passages are "0.6 -0.8" and "0.8 0.6": it counts as the latter."""
    passages = Passages(words=2, stride=2)
    by_passages = logits(["0.6 0.8", "0.6 -0.8 0.8 0.6"], passages=passages)
    assert by_passages == pytest.approx(logits(["0.6 0.8", "0.8 0.6"]))


def test_vectors_that_cancel_out_move_nothing() -> None:
    feedback = Feedback(share=0.5)
    query, opposite = np.float32([1, 0]), np.float32([[0, 1], [0, -1]])
    assert feedback.moved(query, opposite, np.float32([0, 0])).tolist() == [1, 0]


@pytest.mark.parametrize(("share", "temperature"), [(-0.1, 1), (1, 1), (0.3, 0), (0.3, float("inf")), (0.3, -1)])
def test_numbers_out_of_range_are_refused(share: float, temperature: float) -> None:
    with pytest.raises(ValueError, match=r"share is|temperature is"):
        Feedback(share, temperature)


ADVISED = Advice(kind="bi-encoder", feedback=FEEDBACK)


@pytest.mark.parametrize(
    ("advice", "options", "expected"),
    [
        (ADVISED, {}, FEEDBACK),
        (ADVISED, {"feedback": False}, None),
        (ADVISED, {"feedback": 0}, None),
        (ADVISED, {"feedback": 0.2}, Feedback(0.2)),
        (None, {}, None),
        (None, {"feedback": True}, Feedback()),
        (None, {"feedback": {"temperature": 2}}, Feedback(temperature=2)),
    ],
)
def test_the_option_comes_before_the_card(
    advice: Advice | None, options: dict[str, Any], expected: Feedback | None
) -> None:
    service = RerankService(Settings.load(), Plane(advice))
    identity = service.identity(Rerank(**options))
    assert identity.get("feedback") == ([expected.share, expected.temperature] if expected else None)
    found = service.rerank(ranking_of(TEXTS, query="1 0"), Rerank(language_guard=False, **options), NEVER)
    last = {one.text: one.trace[-1].parts for one in found.candidates}
    assert ("plain_logit" in last["0.8 0.6"]) == (expected is not None)


def test_a_linear_blend_chooses_towards_what_the_query_moves() -> None:
    service = RerankService(Settings.load(), Plane(Advice(6.0, kind="bi-encoder", feedback=FEEDBACK)))
    found = service.rerank(ranking_of(TEXTS, query="1 0"), Rerank(language_guard=False), NEVER)
    blended = {one.text: one for one in found.candidates}["0.6 0.8"]
    logit = ranked(TEXTS, first_pass_weight=6.0)["0.6 0.8"].parts["logit"]
    assert [entry.stage for entry in blended.trace] == ["first_pass", "vectors", "blend"]
    assert blended.trace[1].parts["logit"] == pytest.approx(logit, abs=0.02)  # vectors are rounded
    assert blended.score == pytest.approx(logit + 6, abs=0.02)


def test_a_cross_encoder_refuses_it() -> None:
    service = RerankService(Settings.load(), FunctionScorer(lambda _query, _text: 0.0))
    with pytest.raises(ConfigError, match="feedback needs a bi-encoder, and testing/function is a cross-encoder"):
        service.rerank(ranking_of(TEXTS), Rerank(feedback=0.3), NEVER)  # type: ignore[arg-type]
    assert service.rerank(ranking_of(TEXTS), Rerank(feedback=False), NEVER).reports[-1].applied  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="feedback does not go with sentences"):
        Rerank(sentences=True, feedback=0.3)  # type: ignore[arg-type]


def test_a_page_says_both_logits() -> None:
    texts = [f"{np.cos(angle):.4f} {np.sin(angle):.4f}" for angle in np.linspace(-1.5, 1.4, 24)]
    asked: Any = {"index": "i", "rerank": {"depth": 20, "language_guard": False, "explain": True}}
    marks = client_for(texts, Plane(ADVISED)).search("1 0", size=24, **asked)["hits"]["hits"][3]["_rerank"]
    assert marks["vectors"]["plain_logit"] != marks["vectors"]["logit"]
    assert f"plain_logit {marks['vectors']['plain_logit']:.4f}" in " ".join(marks["explanation"])
