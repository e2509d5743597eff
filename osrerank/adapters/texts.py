"""What the frameworks' rerankers share: texts in, their places in a new order out."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from osrerank.options.rerank import Rerank
from osrerank.reranker import Reranker
from osrerank.search.ranking import rank_texts
from osrerank.settings import Settings
from osrerank.types import Candidate, Scorer

DEFAULTS = Rerank(blend="replace", depth=10_000)
"""All texts, ordered by the model only: frameworks bring scores of any kind, or none."""


class Placed(NamedTuple):
    """A text in the new order.

    Attributes:
        place: its place before, from 0.
        probability: the model's, in [0, 1], higher is better; None for a text that was not scored.
    """

    place: int
    probability: float | None


class TextRanker:
    """Ranks texts by a model that is loaded on first use; safe to use from many threads.

    Args:
        model: a directory or hub id in Hugging Face layout, or the name of a shipped model; the settings' when None.
        options: fields of ``osrerank.Rerank``, such as ``deadline_ms`` and ``on_failure``.
        scorer: used in place of a model; the caller closes it.

    Raises:
        ConfigError: an option or setting cannot be used.
    """

    def __init__(
        self, model: str | None = None, options: Mapping[str, Any] | None = None, scorer: Scorer | None = None
    ) -> None:
        self._options = Rerank.of(dict(options or {}), DEFAULTS) or DEFAULTS
        self._reranker = Reranker(Settings.load(model=model), scorer)

    @property
    def model(self) -> str:
        """The model's name."""
        return self._reranker.settings.model

    def rank(self, query: str, texts: Sequence[str]) -> list[Placed]:
        """Return all texts, best first; those that were not scored come last, in their old order.

        Raises:
            ValueError: the query has no text.
            ScoringError: scoring failed, and ``on_failure`` is ``"raise"``.
        """
        if not texts:
            return []
        ranking = rank_texts(self._reranker, DEFAULTS, query, texts, rerank=self._options)
        return [Placed(int(candidate.doc_id), _probability(candidate)) for candidate in ranking.candidates]

    def warm_up(self) -> None:
        """Load the model now."""
        self._reranker.warm_up()


def _probability(candidate: Candidate) -> float | None:
    found = [entry.parts["probability"] for entry in candidate.trace if "probability" in entry.parts]
    return found[-1] if found else None
