"""How rerank servers are asked and what they answer: one entry of `DIALECTS` for each.

The shapes are those of the servers' public documentation:

- Cohere: https://docs.cohere.com/v1/reference/rerank and https://docs.cohere.com/reference/rerank
- Jina: https://jina.ai/reranker/
- Voyage: https://docs.voyageai.com/reference/reranker-api
- text-embeddings-inference (TEI): https://huggingface.github.io/text-embeddings-inference/
- vLLM: https://docs.vllm.ai/en/latest/models/pooling_models/scoring/

All of them take a key as ``Authorization: Bearer``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

Scale = Literal["probability", "logit"]


class EndpointRequest(NamedTuple):
    """A request to a rerank server, before it is put into the server's dialect.

    Attributes:
        query: the query's text.
        texts: the documents' texts.
        model: the server's name for the model; "" leaves it to the server.
        scale: what the scores should be, where the server can choose.
    """

    query: str
    texts: Sequence[str]
    model: str
    scale: Scale


@dataclass(frozen=True, slots=True)
class Dialect:
    """A way to ask for scores.

    Attributes:
        name: as ``dialect`` of ``[http]`` in the settings file.
        path: the path of the requests, below the server's address.
        body: makes a request's JSON.
        items: the key of the answer's list; "" where the list is the answer.
        score: the key of an item's score; its index in the request is always under ``index``.
        scale: what the scores are.
        most_documents: the most documents of a request.
        needs_model: whether a request must name the model.
    """

    name: str
    path: str
    body: Callable[[EndpointRequest], dict[str, Any]]
    items: str
    score: str
    scale: Scale
    most_documents: int
    needs_model: bool = False


def _cohere(asked: EndpointRequest) -> dict[str, Any]:
    return {"model": asked.model, "query": asked.query, "documents": asked.texts, "top_n": len(asked.texts)}


def _without_texts(asked: EndpointRequest) -> dict[str, Any]:
    return {**_cohere(asked), "return_documents": False}


def _voyage(asked: EndpointRequest) -> dict[str, Any]:
    return {"model": asked.model, "query": asked.query, "documents": asked.texts, "truncation": True}


def _tei(asked: EndpointRequest) -> dict[str, Any]:
    return {"query": asked.query, "texts": asked.texts, "truncate": True, "raw_scores": asked.scale == "logit"}


def _vllm(asked: EndpointRequest) -> dict[str, Any]:
    return {"query": asked.query, "documents": asked.texts, "top_n": len(asked.texts), **_vllm_options(asked)}


def _vllm_score(asked: EndpointRequest) -> dict[str, Any]:
    return {"text_1": asked.query, "text_2": asked.texts, **_vllm_options(asked)}


def _vllm_options(asked: EndpointRequest) -> dict[str, Any]:
    """Return what vLLM's requests share; without ``truncate_prompt_tokens`` it refuses texts beyond its window."""
    options: dict[str, Any] = {"truncate_prompt_tokens": -1}
    if asked.model:
        options["model"] = asked.model
    if asked.scale == "logit":
        options["use_activation"] = False
    return options


DIALECTS = {
    dialect.name: dialect
    for dialect in (
        Dialect(
            "cohere-v1",
            "/v1/rerank",
            _without_texts,
            "results",
            "relevance_score",
            "probability",
            1000,
            needs_model=True,
        ),
        Dialect(
            "cohere-v2", "/v2/rerank", _cohere, "results", "relevance_score", "probability", 1000, needs_model=True
        ),
        Dialect(
            "jina", "/v1/rerank", _without_texts, "results", "relevance_score", "probability", 1000, needs_model=True
        ),
        Dialect("voyage", "/v1/rerank", _voyage, "data", "relevance_score", "probability", 1000, needs_model=True),
        Dialect("tei", "/rerank", _tei, "", "score", "logit", 32),
        Dialect("vllm", "/rerank", _vllm, "results", "relevance_score", "probability", 256),
        Dialect("vllm-score", "/score", _vllm_score, "data", "score", "probability", 256),
        Dialect("osrerank", "/rerank", _tei, "", "score", "logit", 1000),
    )
}
