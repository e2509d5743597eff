"""A next-sentence head: Birch sums its second logit, and a probability is the softmax of both."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osrerank.evaluation.tune import SentenceScores
from osrerank.options.passages import Passages
from osrerank.options.sentences import Sentences
from osrerank.scoring.cache.local import EmptyStore, LocalStore
from osrerank.scoring.cache.scorer import CachedScorer
from osrerank.scoring.cache.signing import EntrySigner
from osrerank.scoring.cache.store import _decode_scores, _encode_score
from osrerank.scoring.card import ModelCard, logistic
from osrerank.scoring.cross_encoder import CrossEncoder
from osrerank.scoring.inputs import InputBuilder
from osrerank.scoring.remote.chunks import divide_tuples, join_replies
from osrerank.scoring.remote.messages import Reply
from osrerank.server.api.service import build_scored_question
from osrerank.stages.mono import MonoStage
from osrerank.stages.passages import PassageStage, score_by_passages
from osrerank.stages.sentences import SentenceStage
from osrerank.testing import FunctionScorer
from osrerank.thresholds.cut import filter_by_probability
from osrerank.types import Candidate, Scores
from tests.backends import FunctionBackend
from tests.rankings import ranking_of

DIRECTORY = Path(__file__).parents[2] / "data" / "tiny-bert-one-label"
LOGITS = {"low": (-3.0, -1.0), "wing": (2.0, 1.0), "heat": (0.5, 0.25)}
"""z0 and z1 by the last word of a text."""
TWO_SENTENCES = "Here it is low. Then comes heat."


class Both(FunctionScorer):
    """A scorer with a next-sentence head."""

    def score(self, query: str, documents: Sequence[str], tuples: Sequence[tuple[int, ...]], **given: Any) -> Scores:
        ends = [LOGITS[documents[index].split()[-1].rstrip(".")] for (index,) in tuples]
        values, odds = ([z1 for _, z1 in ends], [z1 - z0 for z0, z1 in ends])
        return Scores(np.array(values, np.float32), inferences=len(ends), odds=np.array(odds, np.float32))


BOTH = Both(lambda _query, _text: 0.0)


def softmax(word: str) -> float:
    z0, z1 = np.exp(LOGITS[word])
    return float(z1 / (z0 + z1))


def parts_of(candidate: Candidate) -> dict[str, float]:
    return dict(candidate.trace[-1].parts)


def test_a_next_sentence_model_gives_its_second_logit_and_the_log_odds_of_both() -> None:
    card = ModelCard("birch", "next-sentence")
    backend = FunctionBackend(lambda sequences: np.array([(2.0, 1.25)] * len(sequences), dtype=np.float32))
    scorer = CrossEncoder(DIRECTORY, card, InputBuilder.load(DIRECTORY, card), backend)
    scores = scorer.score("low", ["wing"], [(0,)])
    assert (scores.values.tolist(), scores.log_odds.tolist()) == ([1.25], [-0.75])
    scorer.close()


@pytest.mark.parametrize("scores", ["logit", "probability"])
def test_the_best_sentences_are_chosen_by_the_summed_logit(scores: str) -> None:
    stage = SentenceStage(BOTH, Sentences(a=0.0, weights=(1.0, 0.5), scores=scores))
    (candidate,) = stage.rerank(ranking_of([TWO_SENTENCES])).candidates
    expected = [0.25, -1.0] if scores == "logit" else [softmax("low"), softmax("heat")]
    assert candidate.score == pytest.approx(expected[0] + 0.5 * expected[1], abs=1e-6)
    span = candidate.trace[-1].passage
    assert span is not None
    assert TWO_SENTENCES[span.start : span.end].rstrip(".").split()[-1] == ("heat" if scores == "logit" else "low")


@pytest.mark.parametrize("scores", ["logit", "probability"])
def test_tuning_reads_second_logit_and_log_odds(scores: str) -> None:
    (candidate,) = SentenceStage(BOTH, Sentences(a=0.5)).rerank(ranking_of([TWO_SENTENCES])).candidates
    marks = {"first_pass": {"score": 1.0, "rank": 1}, "stages": {"sentences": parts_of(candidate)}, "doc_id": "a"}
    record: Any = type("Record", (), {"query_id": "1", "fields": {"candidates": [marks]}})()
    expected = [0.25, -1.0] if scores == "logit" else [softmax("low"), softmax("heat")]
    assert SentenceScores.from_record(record, kind=scores).sentence_scores[0, :2] == pytest.approx(expected, abs=1e-6)


def test_documents_are_ordered_and_cut_by_the_softmax_of_both_labels() -> None:
    candidates = MonoStage(BOTH).rerank(ranking_of(["wing", "low", "heat"])).candidates
    assert [candidate.text for candidate in candidates] == ["low", "heat", "wing"]
    assert [parts_of(candidate)["probability"] for candidate in candidates] == pytest.approx(
        [softmax(candidate.text) for candidate in candidates]
    )
    assert [candidate.text for candidate in filter_by_probability(candidates, 0.4)[0]] == ["low", "heat"]
    scores = BOTH.score("q", ["wing", "low"], [(0,), (1,)])
    assert build_scored_question(BOTH, scores).probabilities == pytest.approx([softmax("wing"), softmax("low")])


def test_passage_means_are_of_the_softmax_of_both_labels() -> None:
    options = Passages(words=1, stride=1, aggregation="kmaxavgp", k=2, least_words=0)
    (candidate,) = PassageStage(BOTH, options).rerank(ranking_of(["low wing heat"])).candidates
    assert parts_of(candidate)["probability"] == pytest.approx((softmax("low") + softmax("heat")) / 2)
    best = score_by_passages(BOTH, "q", ["low wing heat"], options).values
    assert logistic(best) == pytest.approx([softmax("low")])


def test_a_cache_keeps_second_logit_and_log_odds() -> None:
    cached = CachedScorer(BOTH, EmptyStore(), LocalStore(1e6))
    for _ in range(2):
        scores = cached.score("q", ["low", "wing"], [(0,), (1,)])
        assert (scores.values.tolist(), scores.log_odds.tolist()) == ([-1.0, 1.0], [2.0, -1.0])
    assert scores.cached == 2


def test_redis_keeps_second_logit_and_log_odds_signed_or_not() -> None:
    for signer in (EntrySigner(), EntrySigner([b"k" * 32])):
        stored = {b"a": 0.5, b"b": (0.5, -2.0, 129)}
        values = [signer.sign(key, _encode_score(value)) for key, value in stored.items()]
        assert _decode_scores([*stored], values, signer) == stored


def test_workers_send_second_logit_and_log_odds() -> None:
    texts = ["low", "wing", "heat"]
    tuples = [(0,), (1,), (2,)]
    chunks = divide_tuples(texts, tuples, 1, max_tuples=2)
    scores = [
        BOTH.score("q", [texts[index] for index in chunk.documents], chunk.local_tuples(tuples)) for chunk in chunks
    ]
    replies = [Reply.decode(Reply("1", "w", "m", score).encode()).scores for score in scores]
    joined = join_replies(3, chunks, replies, "m")
    assert (joined.values.tolist(), joined.log_odds.tolist()) == ([-1.0, 1.0, 0.25], [2.0, -1.0, -0.25])
