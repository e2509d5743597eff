"""Bodies of one path in several dialects, told apart by their keys."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import Discriminator, Tag

from osrerank.server.api.dialects.cohere import CohereRequest, CohereResponse
from osrerank.server.api.dialects.pairs import ClassifyRequest, Label
from osrerank.server.api.dialects.texts import TeiRequest, TeiResult, WeaviateRequest, WeaviateResponse


def _dialect(*keys: str) -> Callable[[Any], str]:
    """Return a body's dialect: that of the first known key, else Cohere's."""

    def tell(body: Any) -> str:
        return next((key for key in keys if isinstance(body, Mapping) and key in body), "documents")

    return tell


Cohere = Annotated[CohereRequest, Tag("documents")]
Tei = Annotated[TeiRequest, Tag("texts")]
Weaviate = Annotated[WeaviateRequest, Tag("property")]
Classify = Annotated[ClassifyRequest, Tag("inputs")]
RerankRequest = Annotated[Cohere | Tei | Weaviate, Discriminator(_dialect("texts", "property"))]
InvocationRequest = Annotated[
    Cohere | Tei | Weaviate | Classify, Discriminator(_dialect("inputs", "texts", "property"))
]
RerankResponse = CohereResponse | list[TeiResult] | WeaviateResponse
InvocationResponse = RerankResponse | list[Label]
