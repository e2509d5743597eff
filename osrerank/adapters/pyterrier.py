"""A transformer for PyTerrier. It needs ``pip install osrerank[pyterrier]``."""

from typing import Any, cast

from osrerank._optional import require
from osrerank.options.rerank import RerankOptions
from osrerank.reranker import Reranker
from osrerank.types import Encoder, Scorer

require("pyterrier", extra="pyterrier")

import pyterrier as pt  # noqa: E402 - only with the extra

__all__ = ["OsrerankReRanker"]


class OsrerankReRanker(pt.Transformer):  # type: ignore[misc] # pyterrier has no types
    """Reranks the DataFrame that a retriever returns, as in ``bm25 >> OsrerankReRanker()``.

    The DataFrame must have the columns ``qid``, ``query``, ``docno`` and ``text``, and can have ``title``. The output
    has each query's documents in the new order, with the model's ``score``, and a ``rank`` that begins with 0. If the
    retriever returns no texts, add them first: ``bm25 >> pt.text.get_text(dataset) >> OsrerankReRanker()``.

    Args:
        model: the directory of a model, its id on the Hugging Face Hub, or the name of a model that osrerank contains.
            None uses the model of the settings.
        scorer: a scorer or encoder to use instead of a model.
        options: fields of ``osrerank.Rerank``, such as ``{"pipeline": "mono", "blend": "rrf"}``.
    """

    def __init__(
        self, model: str | None = None, *, scorer: Scorer | Encoder | None = None, options: dict[str, Any] | None = None
    ) -> None:
        super().__init__()
        self.model = model
        self.options = options
        self._argument = repr(model) if scorer is None else f"scorer={type(scorer).__name__}"
        self._ranker = Reranker(model, scorer=scorer, **cast("RerankOptions", options or {}))

    def transform(self, inp: Any) -> Any:
        """Return a DataFrame with each query's documents in the new order.

        Raises:
            InputValidationError: a column is missing.
            ConfigError: a value is missing, or a query has the same document twice.
            ScoringError: scoring failed, and ``on_failure`` is ``"raise"``.
        """
        pt.validate.columns(inp, includes=["qid", "query", "docno", "text"], context=self)
        return self._ranker.rank_frame(inp)

    def __repr__(self) -> str:
        return f"OsrerankReRanker({self._argument})"
