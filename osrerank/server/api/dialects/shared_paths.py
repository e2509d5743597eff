"""The request types of ``/rerank`` and ``/invocations``, which accept several dialects.

The keys of a body determine its dialect. For example, a body with the key ``texts`` is in TEI's dialect.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import Discriminator, Tag

from osrerank.server.api.dialects.cohere import CohereResponse, VllmRequest
from osrerank.server.api.dialects.pairs import ClassifyRequest, Label
from osrerank.server.api.dialects.texts import TeiRequest, TeiResult, WeaviateRequest, WeaviateResponse


def _tag_by_key(*keys: str) -> Callable[[Any], str]:
    """Return a function that finds the tag of a body: the first of these keys that it contains, or else "documents".

    With the keys "texts" and "property", the tag of {"query": "cats", "texts": ["a dog"]} is "texts".
    """

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
