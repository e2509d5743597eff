"""A transformer for PyTerrier. It needs the extra ``pyterrier``."""

from typing import Any, cast

from osrerank._optional import require
from osrerank.options.rerank import RerankOptions
from osrerank.reranker import Reranker
from osrerank.types import Encoder, Scorer

require("pyterrier", extra="pyterrier")

import pyterrier as pt  # noqa: E402 - only with the extra

__all__ = ["OsrerankReRanker"]


class OsrerankReRanker(pt.Transformer):  # type: ignore[misc] # pyterrier has no types
    """Reranks a result frame, as in ``bm25 >> OsrerankReRanker()``.

    The input has the columns ``qid``, ``query``, ``docno``, ``text`` and optionally ``title``. The output has each
    query's documents in the new order, with the model's ``score`` and a ``rank`` from 0. If the retriever returns no
    texts, insert ``pt.text.get_text(dataset)`` before the reranker.

    Args:
        model: the model's directory, hub id or shipped name. None uses the settings' model.
        scorer: a scorer or encoder to use instead of a model.
        options: search options, the fields of ``osrerank.Rerank``, such as ``pipeline`` and ``blend``.
    """

    def __init__(
        self, model: str | None = None, *, scorer: Scorer | Encoder | None = None, options: dict[str, Any] | None = None
    ) -> None:
        super().__init__()
        self.model = model
        self.options = options
        self._argument_text = repr(model) if scorer is None else f"scorer={type(scorer).__name__}"
        self._ranker = Reranker(model, scorer=scorer, **cast("RerankOptions", options or {}))

    def transform(self, inp: Any) -> Any:
        """Return the documents of a result frame in the new order.

        Raises:
            InputValidationError: a column is missing.
            ConfigError: a value is missing, or a query has a document twice.
            ScoringError: scoring failed, and ``on_failure`` is ``"raise"``.
        """
        pt.validate.columns(inp, includes=["qid", "query", "docno", "text"], context=self)
        return self._ranker.rank_frame(inp)

    def __repr__(self) -> str:
        return f"OsrerankReRanker({self._argument_text})"
