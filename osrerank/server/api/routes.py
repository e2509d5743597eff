"""The routes of the rerank API: the paths of all dialects, and checks for monitoring."""

import asyncio
from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Header
from fastapi import Query as Parameter
from fastapi import Request as HttpRequest
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel

from osrerank.search.coverage import WARM_SHARE
from osrerank.server.api.access_log import ACCESS_RECORD
from osrerank.server.api.dialect_route import TIMEOUT_HEADER, DialectRoute
from osrerank.server.api.dialects.base import DialectRequest
from osrerank.server.api.dialects.cohere import (
    CohereRequest,
    CohereResponse,
    InfinityRequest,
    InfinityResponse,
    VoyageRequest,
    VoyageResponse,
)
from osrerank.server.api.dialects.mixedbread import MixedbreadRequest, MixedbreadResponse
from osrerank.server.api.dialects.pairs import ClassifyRequest, Label, ScoreRequest, ScoreResponse
from osrerank.server.api.dialects.shared_paths import (
    InvocationRequest,
    InvocationResponse,
    RerankRequest,
    RerankResponse,
)
from osrerank.server.api.dialects.texts import HuggingFaceRequest, TeiRequest, TeiResult
from osrerank.server.api.errors import ERROR_RESPONSES, INDEX_PATTERN, ErrorBody, RefusedRequest
from osrerank.server.api.middleware import ClientDisconnected
from osrerank.server.api.numbers import encode
from osrerank.server.api.service import ApiService
from osrerank.types import Deadline

UNSCORED_HEADER = "X-Rerank-Unscored"
"""The response header with the number of documents without a score. It is absent if the number is 0."""
TRUNCATED_HEADER = "X-Rerank-Truncated"
"""The response header with the number of truncated documents. It is absent if the number is 0."""

dialects = APIRouter(responses={**ERROR_RESPONSES}, tags=["rerank"], route_class=DialectRoute)
checks = APIRouter(tags=["checks"])

Timeout = Annotated[
    float | None,
    Header(
        alias=TIMEOUT_HEADER,
        gt=0,
        allow_inf_nan=False,
        description="Time limit of the response, in milliseconds. If the body has timeout_ms, the shorter one applies.",
    ),
]


@dialects.post("/v1/rerank", response_model=CohereResponse)
@dialects.post("/v2/rerank", response_model=CohereResponse)
async def rerank_cohere(http: HttpRequest, request: CohereRequest, timeout_ms: Timeout = None) -> Response:
    """Rerank documents as Cohere, Jina and Together do."""
    return await _respond(http, request, timeout_ms)


@dialects.post("/voyage/v1/rerank", response_model=VoyageResponse)
async def rerank_voyage(http: HttpRequest, request: VoyageRequest, timeout_ms: Timeout = None) -> Response:
    """Rerank documents as Voyage does: its clients' base URL is ``http://HOST:PORT/voyage/v1``."""
    return await _respond(http, request, timeout_ms)


@dialects.post("/v1/reranking", response_model=MixedbreadResponse)
async def rerank_mixedbread(http: HttpRequest, request: MixedbreadRequest, timeout_ms: Timeout = None) -> Response:
    """Rerank documents as Mixedbread does."""
    return await _respond(http, request, timeout_ms)


@dialects.post("/infinity/rerank", response_model=InfinityResponse)
@dialects.post("/infinity/v1/rerank", response_model=InfinityResponse)
async def rerank_infinity(http: HttpRequest, request: InfinityRequest, timeout_ms: Timeout = None) -> Response:
    """Rerank documents as Infinity does: LiteLLM's ``api_base`` is ``http://HOST:PORT/infinity``."""
    return await _respond(http, request, timeout_ms)


@dialects.post("/rerank", response_model=RerankResponse)
async def rerank(http: HttpRequest, request: RerankRequest, timeout_ms: Timeout = None) -> Response:
    """Rerank in TEI's dialect if the body has the key ``texts``, Weaviate's if it has ``property``, or else vLLM's."""
    return await _respond(http, request, timeout_ms)


@dialects.post("/", response_model=list[TeiResult])
async def rerank_tei(http: HttpRequest, request: TeiRequest, timeout_ms: Timeout = None) -> Response:
    """Rerank texts as text-embeddings-inference does."""
    return await _respond(http, request, timeout_ms)


@dialects.post("/hf/rerank", response_model=list[TeiResult])
async def rerank_hugging_face(http: HttpRequest, request: HuggingFaceRequest, timeout_ms: Timeout = None) -> Response:
    """Rerank texts for Elasticsearch's inference service ``hugging_face``."""
    return await _respond(http, request, timeout_ms)


@dialects.post("/invocations", response_model=InvocationResponse)
async def invoke(http: HttpRequest, request: InvocationRequest, timeout_ms: Timeout = None) -> Response:
    """Score as a SageMaker endpoint does. The body contains pairs in ``inputs``, or is the same as for ``/rerank``."""
    return await _respond(http, request, timeout_ms)


@dialects.post("/predict", response_model=list[Label])
async def classify(http: HttpRequest, request: ClassifyRequest, timeout_ms: Timeout = None) -> Response:
    """Score pairs of a query and a document in the format of a text classifier."""
    return await _respond(http, request, timeout_ms)


@dialects.post("/v1/score", response_model=ScoreResponse)
@dialects.post("/score", response_model=ScoreResponse)
async def score(http: HttpRequest, request: ScoreRequest, timeout_ms: Timeout = None) -> Response:
    """Score pairs of a query and a document as vLLM does."""
    return await _respond(http, request, timeout_ms)


async def _respond(http: HttpRequest, request: DialectRequest, header_timeout_ms: float | None) -> Response:
    """Score a request's documents, and respond in its dialect. If the client disconnects, scoring stops."""
    service: ApiService = http.app.state.service
    questions = request.questions()  # queries, each with its documents
    n_documents = sum(len(question.documents) for question in questions)
    max_documents = service.limits.max_documents
    if n_documents > max_documents:
        reason = f"the request contains {n_documents} documents, but the maximum is {max_documents}"
        raise RefusedRequest(413, f"{reason}: send several requests")
    http.scope[ACCESS_RECORD].update(documents=n_documents, questions=questions)
    timeouts_ms = (service.limits.timeout_ms, request.timeout_ms, header_timeout_ms)
    timeout_ms = min(timeout for timeout in timeouts_ms if timeout is not None)
    deadline = Deadline.after_ms(timeout_ms, service.reranker.clock)
    scoring = asyncio.ensure_future(
        service.score_questions(questions, deadline, refuses_truncation=request.refuses_truncation)
    )
    disconnection = asyncio.ensure_future(_wait_for_disconnection(http))
    try:
        await asyncio.wait({scoring, disconnection}, return_when=asyncio.FIRST_COMPLETED)
        if not scoring.done():
            raise ClientDisconnected
        scored_questions = scoring.result()
    finally:
        scoring.cancel()
        disconnection.cancel()
    http.scope[ACCESS_RECORD]["cached"] = sum(scored_question.cached for scored_question in scored_questions)
    counts = {
        UNSCORED_HEADER: sum(scored_question.unscored for scored_question in scored_questions),
        TRUNCATED_HEADER: sum(scored_question.truncated for scored_question in scored_questions),
    }
    headers = {name: str(count) for name, count in counts.items() if count}
    content = encode(request.build_response(scored_questions, service.model))
    return Response(content, media_type="application/json", headers=headers)


async def _wait_for_disconnection(http: HttpRequest) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass


class Health(BaseModel):
    """The response of ``/health``."""

    status: str


class Readiness(BaseModel):
    """The response of ``/ready`` if the model is loaded and the server accepts requests."""

    status: str
    model: str


class ModelEntry(BaseModel):
    """A model, in OpenAI's format."""

    id: str
    object: str
    created: int
    owned_by: str


class ModelList(BaseModel):
    """The list of the server's models. A server has one model."""

    object: str
    data: list[ModelEntry]


class Info(BaseModel):
    """The model, and the limits of the server."""

    model_id: str
    version: str
    backend: str
    max_client_batch_size: int  # TEI's name for the maximum number of documents
    max_body_bytes: int
    max_held_documents: int
    timeout_ms: float


@checks.get("/health")
@checks.get("/live")
@checks.get("/ping")
async def health() -> Health:
    """Report that the server is running."""
    return Health(status="ok")


@checks.get(
    "/ready",
    responses={
        503: {"model": ErrorBody, "description": "The server is not ready; the body says why."},
        400: {"model": ErrorBody, "description": "The request specifies no index, or the server has no indices."},
        404: {"model": ErrorBody, "description": "The index does not exist, or the server does not offer it."},
        422: {"model": ErrorBody, "description": "A parameter is invalid."},
        502: {"model": ErrorBody, "description": "The index cannot be read."},
    },
)
async def ready(
    http: HttpRequest,
    index: Annotated[str | None, Parameter(max_length=255, pattern=INDEX_PATTERN)] = None,
    at_least: Annotated[float | None, Parameter(ge=0, le=1)] = None,
) -> Readiness:
    """Report whether the model is loaded and the queue has room.

    With ``index``, also report whether enough of its documents have vectors: a share of ``at_least`` (.95 by default).
    """
    service: ApiService = http.app.state.service
    problem = await service.explain_if_not_ready()
    if problem:
        raise RefusedRequest(503, problem)
    if index is not None or at_least is not None:
        min_share = WARM_SHARE if at_least is None else at_least
        await _check_vectors(http, index, min_share)
    return Readiness(status="ready", model=service.model)


@checks.get(
    "/.well-known/ready",
    responses={503: {"model": ErrorBody, "description": "The server is not ready; the body says why."}},
)
async def ready_weaviate(http: HttpRequest) -> Readiness:
    """Report the same as ``/ready``. Weaviate polls this path when it starts."""
    return await ready(http)


async def _check_vectors(http: HttpRequest, index: str | None, min_share: float) -> None:
    """Refuse a readiness check if less than this share of an index's documents have vectors."""
    find_vector_share: Callable[[str], float] | None = http.app.state.find_vector_share
    if find_vector_share is None:
        raise RefusedRequest(400, "this server reads no indices: start it with --ui, or leave out index and at_least")
    if index is None:
        raise RefusedRequest(400, "at_least needs an index: add index=NAME")
    share = await asyncio.to_thread(find_vector_share, index)
    if share < min_share:
        reason = f"only {share:.1%} of the documents of {index} have vectors, less than {min_share:.1%}"
        raise RefusedRequest(503, f"{reason}: run osrerank vectors build --index {index}")


@checks.get("/v1/models")
async def models(http: HttpRequest) -> ModelList:
    """List the server's only model."""
    entry = ModelEntry(
        id=http.app.state.service.model, object="model", created=http.app.state.started_at_s, owned_by="osrerank"
    )
    return ModelList(object="list", data=[entry])


@checks.get("/info")
@checks.get("/meta")
async def info(http: HttpRequest) -> Info:
    """Report the model and the server's limits. Weaviate requests ``/meta`` when it starts."""
    service: ApiService = http.app.state.service
    return Info(
        model_id=service.model,
        version=http.app.version,
        backend=service.reranker.settings.backend,
        max_client_batch_size=service.limits.max_documents,
        max_body_bytes=service.limits.max_body_bytes,
        max_held_documents=service.limits.max_held_documents,
        timeout_ms=service.limits.timeout_ms,
    )


@checks.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics() -> Response:
    """Return Prometheus metrics."""
    return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)
