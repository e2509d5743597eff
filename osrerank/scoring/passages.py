"""Score the parts of several documents in one call: their passages, or their sentences."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from osrerank.errors import ConfigError, InferenceError
from osrerank.types import CutsTexts, Deadline, Encoder, PassageScores, Scorer
from osrerank.types.values import BLANK, is_blank
from osrerank.types.vectors import Part, in_turns


def score_parts(
    scorer: Scorer, query: str, parts: Sequence[Sequence[Part]], *, deadline: Deadline, stage: str = ""
) -> PassageScores:
    """Score the parts of documents in turns.

    Args:
        scorer: scores ``(i,)`` tuples.
        query: the query's text.
        parts: of each document at least one; blank ones are not scored.
        deadline: as for ``Scorer.score``.
        stage: its name, for errors.

    Raises:
        InferenceError: a score is not a number.
    """
    every = in_turns([len(some) for some in parts])
    order = [(place, turn) for place, turn in every if not is_blank(parts[place][turn][0])]
    texts = [parts[place][turn][0] for place, turn in order]
    tuples = [(at,) for at in range(len(texts))]
    scores = scorer.score(query, texts, tuples, deadline=deadline)
    logits: list[npt.NDArray[np.float32]] = [np.full(len(some), np.nan, dtype=np.float32) for some in parts]
    odds = None if scores.odds is None else [some.copy() for some in logits]
    for at in scores.attempted:
        place, turn = order[at]
        if at not in scores.failures:
            if not np.isfinite(scores.values[at]):
                message = f"model {scorer.model} gave a score that is not a number"
                raise InferenceError(message, stage=stage, model=scorer.model)
            logits[place][turn] = scores.values[at]
            if odds is not None:
                odds[place][turn] = scores.log_odds[at]
    places = [[span for _, span in some] for some in parts]
    failures = {order[at]: why for at, why in scores.failures.items()}
    failures |= dict.fromkeys({*every} - {*order}, BLANK)
    cut = frozenset(order[at][0] for at in scores.cut_documents(tuples))
    counts = {**scores.counts(), "truncated": len(cut) if scores.cuts is not None else scores.truncated}
    return PassageScores(places, logits, failures, scores.identity, odds, cut, **counts)


def chunks_of(model: Scorer | Encoder, query: str, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
    """Return the chunks of texts that fit a model, as `CutsTexts.chunks` does.

    Raises:
        ConfigError: the model's tokenizer is not in this process.
    """
    if isinstance(model, CutsTexts):
        return model.chunks(query, texts)
    raise ConfigError(
        f'sentences.chunks is "tokens", and the tokenizer of {model.model} is not in this process; score in it '
        '(backend "onnx" or "torch"), or split by "words"',
        setting="rerank.sentences.chunks",
        source="argument",
    )
