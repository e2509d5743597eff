"""A ranker component for Haystack. It needs the extra ``haystack``."""

import asyncio
import math
from dataclasses import replace
from typing import Any, cast

from osrerank._optional import require
from osrerank.options.rerank import RerankOptions
from osrerank.reranker import Reranker
from osrerank.types import Scorer

require("haystack", extra="haystack")

from haystack import Document, component, default_from_dict, default_to_dict  # noqa: E402 - only with the extra

__all__ = ["OsrerankRanker"]


@component
class OsrerankRanker:
    """Returns copies of the documents, best first, with the model's probability of relevance as their score.

    Documents that could not be scored come last and have no score.

    Args:
        model: the model's directory, hub id or shipped name. None uses the settings' model.
        top_k: the maximum number of documents to return. None returns all.
        score_threshold: the minimum probability of a returned document. Documents without a score are also left out.
        options: search options, the fields of ``osrerank.Rerank``, such as ``deadline_ms`` and ``on_failure``.
        scorer: a scorer to use instead of a model. It is not serialised.
    """

    def __init__(
        self,
        model: str | None = None,
        top_k: int | None = None,
        *,
        score_threshold: float | None = None,
        options: dict[str, Any] | None = None,
        scorer: Scorer | None = None,
    ) -> None:
        _validate_top_k(top_k)
        self.model = model
        self.top_k = top_k
        self.score_threshold = score_threshold
        self.options = options
        self._ranker = Reranker(model, scorer=scorer, **cast("RerankOptions", options or {}))

    def to_dict(self) -> dict[str, Any]:
        """Return a dict from which ``from_dict`` creates the same component."""
        names = ("model", "top_k", "score_threshold", "options")
        content: dict[str, Any] = default_to_dict(self, **{name: getattr(self, name) for name in names})
        return content

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "OsrerankRanker":
        """Create the component that ``to_dict`` described."""
        ranker: OsrerankRanker = default_from_dict(cls, data)
        return ranker

    def warm_up(self) -> None:
        """Load the model now."""
        self._ranker.warm_up()

    @component.output_types(documents=list[Document])
    def run(self, query: str, documents: list[Document], top_k: int | None = None) -> dict[str, list[Document]]:
        """Return the documents, best first.

        If several documents have the same id, only the one with the highest score is ranked, as in Haystack's rankers.

        Args:
            query: the text of the query.
            documents: the documents. A document without content counts as an empty text.
            top_k: the maximum number of documents to return, in place of the component's ``top_k``.
        """
        _validate_top_k(top_k)
        documents = _remove_duplicates(documents)
        ranked = self._ranker.rank(query, [document.content or "" for document in documents])
        if self.score_threshold is not None:
            ranked = [hit for hit in ranked if hit.probability is not None and hit.probability >= self.score_threshold]
        top = ranked[: top_k or self.top_k]
        return {"documents": [replace(documents[hit.doc_id], score=hit.probability) for hit in top]}

    @component.output_types(documents=list[Document])
    async def run_async(
        self, query: str, documents: list[Document], top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """Return the documents, best first. The model scores in a thread."""
        return await asyncio.to_thread(self.run, query, documents, top_k)


def _remove_duplicates(documents: list[Document]) -> list[Document]:
    """Return the first document with the highest score for each id. A missing score is the lowest."""

    def sort_key(document: Document) -> float:
        return -math.inf if document.score is None else document.score

    best: dict[str, Document] = {}
    for document in documents:
        best[document.id] = max(best.get(document.id, document), document, key=sort_key)
    return list(best.values())


def _validate_top_k(top_k: int | None) -> None:
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k is {top_k}; it must be at least 1, or None to return all")
