"""A document compressor for LangChain. It needs ``pip install osrerank[langchain]``."""

from collections.abc import Sequence
from typing import Any, cast

from osrerank._optional import require
from osrerank.options.rerank import RerankOptions
from osrerank.reranker import Reranker
from osrerank.types import Scorer

require("langchain_core", extra="langchain")

from langchain_core.callbacks import Callbacks  # noqa: E402 - only with the extra
from langchain_core.documents import BaseDocumentCompressor, Document  # noqa: E402 - only with the extra
from pydantic import ConfigDict, Field, PrivateAttr  # noqa: E402 - only with the extra

__all__ = ["OsrerankRerank"]

SCORE_KEY = "relevance_score"
"""The key of the score in a document's metadata, as in LangChain's other rerankers."""


class OsrerankRerank(BaseDocumentCompressor):
    """Reranks retrieved documents, for a ``ContextualCompressionRetriever``.

    It returns copies of the documents, with the model's probability that they are relevant in
    ``metadata["relevance_score"]``. The most relevant document comes first. Documents that could not be scored come
    last, without ``relevance_score``.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    model: str | None = Field(
        None,
        description="The directory of a model, its id on the Hugging Face Hub, or the name of a model that osrerank "
        "contains. None uses the model of the settings.",
    )
    top_n: int | None = Field(None, ge=1, description="The maximum number of documents to return. None returns all.")
    options: dict[str, Any] = Field(default_factory=dict, description="Fields of osrerank.Rerank, such as deadline_ms.")
    scorer: Scorer | None = Field(None, exclude=True, description="The scorer to use instead of a model.")
    _ranker: Reranker = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        """Check the options. The model is loaded only when documents are scored for the first time."""
        super().model_post_init(context)
        self._ranker = Reranker(self.model, scorer=self.scorer, **cast("RerankOptions", self.options))

    def compress_documents(
        self,
        documents: Sequence[Document],
        query: str,
        callbacks: Callbacks | None = None,  # noqa: ARG002 - LangChain's signature
    ) -> Sequence[Document]:
        """Return copies of at most ``top_n`` documents, with the most relevant first."""
        ranked = self._ranker.rank(query, [document.page_content for document in documents])
        # the inputs of `rank` have no ids, so `doc_id` is a document's position in `documents`
        return [_with_score(documents[hit.doc_id], hit.probability) for hit in ranked[: self.top_n]]


def _with_score(document: Document, probability: float | None) -> Document:
    """Return a copy of a document with the probability as its score. The score of an earlier reranker is removed."""
    metadata = {name: value for name, value in document.metadata.items() if name != SCORE_KEY}
    if probability is not None:
        metadata[SCORE_KEY] = probability
    return document.model_copy(update={"metadata": metadata})
