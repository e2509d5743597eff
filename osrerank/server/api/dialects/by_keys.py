"""The bodies of paths that several dialects share; the keys of a body decide its dialect."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import Discriminator, Tag

from osrerank.server.api.dialects.cohere import CohereResponse, VllmRequest
from osrerank.server.api.dialects.pairs import ClassifyRequest, Label
from osrerank.server.api.dialects.texts import TeiRequest, TeiResult, WeaviateRequest, WeaviateResponse


def _dialect(*keys: str) -> Callable[[Any], str]:
    """Return a function that returns the first of the keys with a value in a body; "documents", vLLM's key, if none."""

    def find_key(body: Any) -> str:
        return next((key for key in keys if isinstance(body, Mapping) and body.get(key) is not None), "documents")

    return find_key


Vllm = Annotated[VllmRequest, Tag("documents")]
Tei = Annotated[TeiRequest, Tag("texts")]
Weaviate = Annotated[WeaviateRequest, Tag("property")]
Classify = Annotated[ClassifyRequest, Tag("inputs")]
RerankRequest = Annotated[Vllm | Tei | Weaviate, Discriminator(_dialect("texts", "property"))]
InvocationRequest = Annotated[Vllm | Tei | Weaviate | Classify, Discriminator(_dialect("inputs", "texts", "property"))]
RerankResponse = CohereResponse | list[TeiResult] | WeaviateResponse
InvocationResponse = RerankResponse | list[Label]
