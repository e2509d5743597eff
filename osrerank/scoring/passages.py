"""Score the parts of several documents together: their passages, or their sentences."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from osrerank.errors import ConfigError, InferenceError
from osrerank.types import CutsTexts, Deadline, Encoder, PassageScores, Scorer, Scores, Span
from osrerank.types.scores import Counts
from osrerank.types.values import BLANK, is_blank
from osrerank.types.vectors import Part

AT_ONCE = 256
"""Under a deadline, the most parts that are cut before they are scored."""


class Turn(NamedTuple):
    """A part of a document that is to be scored.

    Attributes:
        document: index of the document.
        number: index of the part in the document, from 0.
        text: the part's text as the model reads it.
        span: the part's span in the document; None for the whole document.
    """

    document: int
    number: int
    text: str
    span: Span | None


def score_parts(
    scorer: Scorer, query: str, parts: Sequence[Iterable[Part]], *, deadline: Deadline, stage: str = ""
) -> PassageScores:
    """Score the parts of documents in turns: every document's first part before any document's second part.

    Under a deadline, parts are cut and scored in groups, so that cutting does not use up the time for scoring.

    Args:
        scorer: scores ``(i,)`` tuples.
        query: the query's text.
        parts: the parts of each document, at least one, cut as they are iterated; blank parts are not scored.
        deadline: as for ``Scorer.score``.
        stage: the stage's name, for errors.

    Raises:
        InferenceError: a score is not a number.
    """
    turns = _Turns(parts)
    collected = _Collected(len(parts))
    while group := turns.next_group(deadline):
        not_blank = [turn for turn in group if not is_blank(turn.text)]
        scores = scorer.score(
            query, [turn.text for turn in not_blank], [(at,) for at in range(len(not_blank))], deadline=deadline
        )
        if any(not np.isfinite(scores.values[at]) for at in scores.attempted if at not in scores.failures):
            message = f"model {scorer.model} gave a score that is not a number"
            raise InferenceError(message, stage=stage, model=scorer.model)
        collected.add(group, not_blank, scores)
        if deadline.passed:
            break
    return collected.scores(turns.unread)


class _Turns:
    """Takes the parts of documents in turns, and cuts each one as late as possible."""

    def __init__(self, parts: Sequence[Iterable[Part]]) -> None:
        self._waiting = deque((at, 0, iter(of_document)) for at, of_document in enumerate(parts))

    @property
    def unread(self) -> int:
        """How many documents may have parts that were not taken yet."""
        return len(self._waiting)

    def next_group(self, deadline: Deadline) -> list[Turn]:
        """Return the next parts; under a deadline, at most 256, until cutting has taken half of the time left."""
        left_s = deadline.remaining_s()
        until, group = deadline.within_ms(1000 * left_s / 2), []
        for turn in self._turns():
            group.append(turn)
            if left_s != np.inf and (len(group) == AT_ONCE or until.passed):
                break
        return group

    def _turns(self) -> Iterator[Turn]:
        while self._waiting:
            at, number, left = self._waiting.popleft()
            if (part := next(left, None)) is not None:
                self._waiting.append((at, number + 1, left))
                yield Turn(at, number, *part)


class _Collected:
    """Collects the scores of parts, group by group, and joins them by document."""

    def __init__(self, size: int) -> None:
        self._spans: list[list[Span | None]] = [[] for _ in range(size)]
        self._logits: list[list[float]] = [[] for _ in range(size)]
        self._odds: list[list[float]] = [[] for _ in range(size)]
        self._failures: dict[tuple[int, int], str] = {}
        self._cut: set[int] = set()
        self._answers: list[Scores] = []

    def add(self, group: Sequence[Turn], not_blank: Sequence[Turn], scores: Scores) -> None:
        """Add a group of parts, and the scores of those that are not blank."""
        for turn in group:
            self._spans[turn.document].append(turn.span)
            self._logits[turn.document].append(np.nan)
            self._odds[turn.document].append(np.nan)
        for at in scores.attempted:
            document, number = not_blank[at][:2]
            if at not in scores.failures:
                self._logits[document][number] = scores.values[at]
                self._odds[document][number] = scores.log_odds[at]
        self._failures |= {not_blank[at][:2]: why for at, why in scores.failures.items()}
        self._failures |= dict.fromkeys({turn[:2] for turn in group} - {turn[:2] for turn in not_blank}, BLANK)
        self._cut |= {not_blank[at].document for at in scores.cut_documents([(at,) for at in range(len(not_blank))])}
        self._answers.append(scores)

    def scores(self, unread: int) -> PassageScores:
        """Return the scores of all documents.

        Args:
            unread: how many of the documents have parts that were not scored.
        """
        counts = Counts.total(self._answers)
        if all(answer.cuts is not None for answer in self._answers):
            counts["truncated"] = len(self._cut)
        has_odds = any(answer.odds is not None for answer in self._answers)
        identity = next((answer.identity for answer in self._answers), "")
        odds = _rows(self._odds) if has_odds else None
        cut = frozenset(self._cut)
        logits = _rows(self._logits)
        return PassageScores(self._spans, logits, self._failures, identity, odds, cut, unread, **counts)


def _rows(values: Sequence[Sequence[float]]) -> list[npt.NDArray[np.float32]]:
    return [np.array(row, dtype=np.float32) for row in values]


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
