"""The request types of ``/rerank`` and ``/invocations``, which accept several dialects.

The keys of a body determine its dialect: ``texts`` is TEI's, for example.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import Discriminator, Tag

from osrerank.server.api.dialects.cohere import CohereResponse, VllmRequest
from osrerank.server.api.dialects.pairs import ClassifyRequest, Label
from osrerank.server.api.dialects.texts import TeiRequest, TeiResult, WeaviateRequest, WeaviateResponse


def _tag_by_key(*keys: str) -> Callable[[Any], str]:
    """Return a function that finds the first of these keys that a body contains, or else "documents", vLLM's key."""

    def find_tag(body: Any) -> str:
        if isinstance(body, Mapping):
            for key in keys:
                if body.get(key) is not None:
                    return key
        return "documents"

    return find_tag


Vllm = Annotated[VllmRequest, Tag("documents")]
Tei = Annotated[TeiRequest, Tag("texts")]
Weaviate = Annotated[WeaviateRequest, Tag("property")]
Classify = Annotated[ClassifyRequest, Tag("inputs")]
RerankRequest = Annotated[Vllm | Tei | Weaviate, Discriminator(_tag_by_key("texts", "property"))]
InvocationRequest = Annotated[
    Vllm | Tei | Weaviate | Classify, Discriminator(_tag_by_key("inputs", "texts", "property"))
]
RerankResponse = CohereResponse | list[TeiResult] | WeaviateResponse
InvocationResponse = RerankResponse | list[Label]
