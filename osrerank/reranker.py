"""Rerank texts without a search engine."""

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Self, Unpack

from osrerank._threads import DaemonThreads
from osrerank.errors import ConfigError
from osrerank.options.rerank import Rerank, RerankOptions
from osrerank.pipeline import applied
from osrerank.search.ranking import NOT_FOR_TEXTS, id_of, ranking_of, refuse_unused, reranked
from osrerank.service import RerankService
from osrerank.settings import Settings
from osrerank.thresholds.cut import at_least, probability_of
from osrerank.tracing.spans import carried
from osrerank.types import Candidate, Encoder, Scorer

DEFAULTS = Rerank(blend="replace", depth=10_000)
"""By default, all texts are ordered by the model alone, because they may come with scores of any kind, or none."""
AT_ONCE = 8
"""How many queries are ranked at the same time, so that their pairs share batches."""

Document = str | Mapping[str, Any]
"""A text, or a mapping with ``text`` and perhaps ``id`` or ``doc_id``, ``title`` and ``score``."""


@dataclass(frozen=True, slots=True)
class RankedText:
    """A text in the new order, with its score.

    Attributes:
        doc_id: the document's ``id`` or ``doc_id`` as given; if it has neither, its index in ``documents``, from 0.
        score: the last stage's score, a logit if it is the only stage; None if the text was not scored.
        probability: the model's probability of relevance, in [0, 1]; None if the text was not scored.
        rank: rank in the new order, from 1.
        text: the text that the model read: title and text.
        truncated: whether the model read less than the whole text.
    """

    doc_id: Any
    score: float | None
    probability: float | None
    rank: int
    text: str
    truncated: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as a dict."""
        return asdict(self)


class Reranker:
    """Ranks texts by a model, which is loaded on first use; safe to use from many threads.

    ```python
    from osrerank import Reranker

    with Reranker() as reranker:
        ranked = reranker.rank("what lowers blood pressure", ["Wings lift.", "Aspirin lowers blood pressure."])
    assert ranked[0].doc_id == 1
    ```

    Args:
        model: a directory or hub id in Hugging Face layout, or the name of a shipped model; the settings' when None.
        vector_model: likewise, the bi-encoder of the stage ``vectors`` if ``model`` is a cross-encoder.
        duo_model: likewise, the model that compares pairs, for ``mono-duo`` and ``vectors-duo``.
        backend: ``auto``, ``onnx``, ``torch``, ``workers`` or ``http``; the settings' when None.
        redis_url: Redis for the score cache; the settings' when None.
        scorer: a scorer or an encoder of your own, used instead of a model; the caller closes it.
        encoder: likewise, instead of ``vector_model``.
        options: options of ``osrerank.Rerank``, such as ``deadline_ms``, ``passages`` and ``min_score``.

    Raises:
        ConfigError: an option or setting cannot be used, or an option has no effect without a search.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        vector_model: str | None = None,
        duo_model: str | None = None,
        backend: str | None = None,
        redis_url: str | None = None,
        scorer: Scorer | Encoder | None = None,
        encoder: Encoder | None = None,
        **options: Unpack[RerankOptions],
    ) -> None:
        refuse_unused(options, NOT_FOR_TEXTS)
        self._options = Rerank.of(options, DEFAULTS) or DEFAULTS
        models = {"model": model, "vector_model": vector_model, "duo_model": duo_model}
        settings = Settings.load(**models, backend=backend, redis_url=redis_url)
        self._service = RerankService(settings, scorer, encoder=encoder)

    @property
    def model(self) -> str:
        """The model's name."""
        return self._service.settings.model

    def rank(self, query: str, documents: Sequence[Document], *, top_k: int | None = None) -> list[RankedText]:
        """Return the documents, best first; those that were not scored come last, in their old order.

        Args:
            query: the query's text.
            documents: the texts to rank.
            top_k: how many to return; None for all.

        Raises:
            ConfigError: a document has no text, or ``top_k`` is below 1.
            ValueError: the query has no text, or two documents have the same id.
            ScoringError: scoring failed, and ``on_failure`` is ``"raise"``.
        """
        if top_k is not None and top_k < 1:
            raise ConfigError(f"top_k is {top_k}; it must be 1 or more, or None", setting="top_k", source="argument")
        if not documents:
            return []
        ranking = reranked(self._service, self._options, ranking_of(query, documents, self._options.separator))
        given = {str(doc_id): doc_id for doc_id in map(id_of, documents, itertools.count())}
        kept: Sequence[Candidate] = ranking.candidates
        if applied(ranking.reports) and self._options.min_score is not None:
            kept = at_least(kept, self._options.min_score)
        return [_ranked(candidate, given[candidate.doc_id]) for candidate in kept[:top_k]]

    def rank_many(
        self, queries: Sequence[str], documents: Sequence[Sequence[Document]], *, top_k: int | None = None
    ) -> list[list[RankedText]]:
        """Rank each query's documents as `rank` does, several queries at a time.

        Raises:
            ValueError: the numbers of queries and of lists of documents differ; or as `rank`.
        """
        if len(queries) != len(documents):
            raise ValueError(f"there are {len(queries)} queries and {len(documents)} lists of documents")
        threads, rank = DaemonThreads(AT_ONCE, "osrerank-rank"), partial(self.rank, top_k=top_k)
        try:
            pairs = zip(queries, documents, strict=True)
            futures = [threads.submit(carried(rank), query, texts) for query, texts in pairs]
            return [future.result() for future in futures]
        finally:
            threads.close()

    async def arank(self, query: str, documents: Sequence[Document], *, top_k: int | None = None) -> list[RankedText]:
        """Rank documents as `rank` does, in a thread, so that the event loop stays free."""
        return await asyncio.to_thread(self.rank, query, documents, top_k=top_k)

    def warm_up(self) -> None:
        """Load the models now."""
        self._service.warm_up(self._options)

    def close(self) -> None:
        """Release the models and the connections to the cache."""
        self._service.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def _ranked(candidate: Candidate, doc_id: Any) -> RankedText:
    probability = probability_of(candidate)
    score = None if probability is None else candidate.score
    truncated = any(entry.cut for entry in candidate.trace)
    return RankedText(doc_id, score, probability, candidate.rank, candidate.text or "", truncated)
