"""A ranker component for Haystack. It needs ``pip install osrerank[haystack]``."""

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
    """Sorts documents by the model's probability that they are relevant, and returns copies with this new score.

    The most relevant document comes first. Documents that could not be scored come last and have no score.

    Args:
        model: the directory of a model, its id on the Hugging Face Hub, or the name of a model that osrerank contains.
            None uses the model of the settings.
        top_k: the maximum number of documents to return. None returns all.
        score_threshold: the minimum probability of a returned document. If it is set, documents that could not be
            scored are not returned.
        options: fields of ``osrerank.Rerank``, such as ``{"deadline_ms": 200, "on_failure": "raise"}``.
        scorer: a scorer to use instead of a model. `to_dict` leaves it out.
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
        """Return a dict from which `from_dict` creates a component with the same model and options."""
        names = ("model", "top_k", "score_threshold", "options")
        content: dict[str, Any] = default_to_dict(self, **{name: getattr(self, name) for name in names})
        return content

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "OsrerankRanker":
        """Create a component from a dict that `to_dict` returned."""
        ranker: OsrerankRanker = default_from_dict(cls, data)
        return ranker

    def warm_up(self) -> None:
        """Load the model, so that the first call of `run` does not have to."""
        self._ranker.warm_up()

    @component.output_types(documents=list[Document])
    def run(self, query: str, documents: list[Document], top_k: int | None = None) -> dict[str, list[Document]]:
        """Return ``{"documents": [...]}``, with the most relevant document first.

        If several documents have the same id, only the one with the highest score is ranked, as in Haystack's rankers.

        Args:
            query: the text of the query.
            documents: the documents. A document whose content is None is scored as an empty text.
            top_k: the maximum number of documents to return. None uses the component's ``top_k``.
        """
        _validate_top_k(top_k)
        documents = _remove_duplicates(documents)
        ranked = self._ranker.rank(query, [document.content or "" for document in documents])
        if self.score_threshold is not None:
            ranked = [hit for hit in ranked if hit.probability is not None and hit.probability >= self.score_threshold]
        top = ranked[: top_k or self.top_k]
        # the inputs of `rank` have no ids, so `doc_id` is a document's position in `documents`
        return {"documents": [replace(documents[hit.doc_id], score=hit.probability) for hit in top]}

    @component.output_types(documents=list[Document])
    async def run_async(
        self, query: str, documents: list[Document], top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """Do the same as `run` in a thread, so that the event loop is not blocked."""
        return await asyncio.to_thread(self.run, query, documents, top_k)


def _remove_duplicates(documents: list[Document]) -> list[Document]:
    """Return one document for each id: the one with the highest score, or the first of several with this score."""

    def score_or_lowest(document: Document) -> float:
        return -math.inf if document.score is None else document.score

    best_by_id: dict[str, Document] = {}
    for document in documents:
        best = best_by_id.get(document.id, document)
        best_by_id[document.id] = max(best, document, key=score_or_lowest)
    return list(best_by_id.values())


def _validate_top_k(top_k: int | None) -> None:
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k is {top_k}; it must be at least 1, or None to return all")
