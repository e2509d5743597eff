"""A node postprocessor for LlamaIndex. It needs ``pip install osrerank[llama-index]``."""

from typing import Any, cast

from osrerank._optional import require
from osrerank.options.rerank import RerankOptions
from osrerank.reranker import Reranker
from osrerank.types import Scorer

require("llama_index.core", extra="llama-index")

from llama_index.core.bridge.pydantic import Field, PrivateAttr  # noqa: E402 - only with the extra
from llama_index.core.instrumentation import (  # type: ignore[attr-defined] # noqa: E402 - not in its module's __all__
    get_dispatcher,
)
from llama_index.core.instrumentation.events.rerank import ReRankEndEvent, ReRankStartEvent  # noqa: E402
from llama_index.core.postprocessor.types import BaseNodePostprocessor  # noqa: E402 - only with the extra
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle  # noqa: E402 - only with the extra

__all__ = ["OsrerankRerank"]

dispatcher = get_dispatcher(__name__)


class OsrerankRerank(BaseNodePostprocessor):
    """Sorts retrieved nodes by the model's probability that they are relevant, which becomes their score.

    The most relevant node comes first. Nodes that could not be scored come last and have no score.
    """

    model: str | None = Field(
        None,
        description="The directory of a model, its id on the Hugging Face Hub, or the name of a model that osrerank "
        "contains. None uses the model of the settings.",
    )
    top_n: int | None = Field(None, ge=1, description="The maximum number of nodes to return. None returns all.")
    keep_retrieval_score: bool = Field(
        default=False, description='Whether to keep the retriever\'s score in metadata["retrieval_score"].'
    )
    options: dict[str, Any] = Field(default_factory=dict, description="Fields of osrerank.Rerank, such as deadline_ms.")
    scorer: Scorer | None = Field(None, exclude=True, description="The scorer to use instead of a model.")
    _ranker: Reranker = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        """Check the options. The model is loaded only when nodes are scored for the first time."""
        super().model_post_init(context)
        self._ranker = Reranker(self.model, scorer=self.scorer, **cast("RerankOptions", self.options))

    @classmethod
    def class_name(cls) -> str:
        """Return the name that LlamaIndex writes into a serialised postprocessor."""
        return "OsrerankRerank"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if not nodes:
            return []
        if query_bundle is None:
            raise ValueError("reranking needs the query: pass query_str or query_bundle")
        top_n = self.top_n or len(nodes)
        start = ReRankStartEvent(query=query_bundle, nodes=nodes, top_n=top_n, model_name=self._ranker.model)
        dispatcher.event(start)
        texts = [node.node.get_content(metadata_mode=MetadataMode.EMBED) for node in nodes]
        ranked = self._ranker.rank(query_bundle.query_str, texts)
        # the inputs of `rank` have no ids, so `doc_id` is a node's position in `nodes`
        reranked = [self._with_score(nodes[hit.doc_id], hit.probability) for hit in ranked[:top_n]]
        dispatcher.event(ReRankEndEvent(nodes=reranked))
        return reranked

    def _with_score(self, node: NodeWithScore, probability: float | None) -> NodeWithScore:
        """Return a node with the probability as its score, and with the retriever's score if it should be kept."""
        if not self.keep_retrieval_score:
            return NodeWithScore(node=node.node, score=probability)
        metadata = {**node.node.metadata, "retrieval_score": node.score}
        return NodeWithScore(node=node.node.model_copy(update={"metadata": metadata}), score=probability)
