"""The HTTP protocols of rerank servers, called dialects. To support another one, add it to `DIALECTS`.

The dialects follow the servers' public documentation:

- Cohere: https://docs.cohere.com/v1/reference/rerank and https://docs.cohere.com/reference/rerank
- Jina: https://jina.ai/reranker/
- Voyage: https://docs.voyageai.com/reference/reranker-api
- text-embeddings-inference (TEI): https://huggingface.github.io/text-embeddings-inference/
- vLLM: https://docs.vllm.ai/en/latest/models/pooling_models/scoring/

All servers accept a key as ``Authorization: Bearer``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

Scale = Literal["probability", "logit"]
"""``probability`` scores are between 0 and 1. ``logit`` scores can be any number."""


class EndpointRequest(NamedTuple):
    """The content of a request to a rerank server, from which a dialect builds the JSON.

    Attributes:
        query: the text of the query.
        texts: the texts of the documents.
        model: the server's name for the model. "" lets the server choose.
        scale: the scale of the scores. Dialects with a fixed scale ignore it.
    """

    query: str
    texts: Sequence[str]
    model: str
    scale: Scale


@dataclass(frozen=True, slots=True)
class Dialect:
    """The protocol of a rerank server.

    Attributes:
        name: the name of the dialect, as in ``dialect`` of ``[http]`` in the settings file.
        path: the path of requests, relative to the server's address.
        build_body: returns a request's JSON.
        list_key: the key of the list of scores in the response, such as ``results``. "" if the response is the list.
        score_key: the key of the score in an entry of the list, such as ``relevance_score`` in
            ``{"index": 3, "relevance_score": 0.9}``. The key of the document's index is always ``index``.
        scale: the scale of the scores, unless the settings choose another.
        max_documents: the maximum number of documents in a request.
        needs_model: whether a request must specify the model.
    """

    name: str
    path: str
    build_body: Callable[[EndpointRequest], dict[str, Any]]
    list_key: str
    score_key: str
    scale: Scale
    max_documents: int = 1000
    needs_model: bool = False


def _cohere_body(request: EndpointRequest) -> dict[str, Any]:
    return {"model": request.model, "query": request.query, "documents": request.texts, "top_n": len(request.texts)}


def _jina_body(request: EndpointRequest) -> dict[str, Any]:
    return {**_cohere_body(request), "return_documents": False}


def _voyage_body(request: EndpointRequest) -> dict[str, Any]:
    return {"model": request.model, "query": request.query, "documents": request.texts, "truncation": True}


def _tei_body(request: EndpointRequest) -> dict[str, Any]:
    return {"query": request.query, "texts": request.texts, "truncate": True, "raw_scores": request.scale == "logit"}


def _vllm_body(request: EndpointRequest) -> dict[str, Any]:
    return {
        "query": request.query,
        "documents": request.texts,
        "top_n": len(request.texts),
        **_build_vllm_options(request),
    }


def _vllm_score_body(request: EndpointRequest) -> dict[str, Any]:
    return {"text_1": request.query, "text_2": request.texts, **_build_vllm_options(request)}


def _build_vllm_options(request: EndpointRequest) -> dict[str, Any]:
    """Return the options of both vLLM dialects. Without ``truncate_prompt_tokens``, vLLM refuses long texts."""
    options: dict[str, Any] = {"truncate_prompt_tokens": -1}
    if request.model:
        options["model"] = request.model
    if request.scale == "logit":
        options["use_activation"] = False
    return options


DIALECTS = {
    dialect.name: dialect
    for dialect in (
        # name, path, body, key of the list of scores, key of a score, scale
        Dialect("cohere-v1", "/v1/rerank", _jina_body, "results", "relevance_score", "probability", needs_model=True),
        Dialect("cohere-v2", "/v2/rerank", _cohere_body, "results", "relevance_score", "probability", needs_model=True),
        Dialect("jina", "/v1/rerank", _jina_body, "results", "relevance_score", "probability", needs_model=True),
        Dialect("voyage", "/v1/rerank", _voyage_body, "data", "relevance_score", "probability", needs_model=True),
        Dialect("tei", "/rerank", _tei_body, "", "score", "logit", max_documents=32),
        Dialect("vllm", "/rerank", _vllm_body, "results", "relevance_score", "probability", max_documents=256),
        Dialect("vllm-score", "/score", _vllm_score_body, "data", "score", "probability", max_documents=256),
        Dialect("osrerank", "/rerank", _tei_body, "", "score", "logit"),
    )
}
