"""The comparison page: its files, its JSON endpoints, and the headers that keep untrusted text harmless."""

from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Annotated, Any, TypeVar

import anyio.to_thread
from fastapi import APIRouter, FastAPI
from fastapi import Query as Parameter
from fastapi import Request as HttpRequest
from fastapi.responses import RedirectResponse, Response
from opensearchpy import (
    AuthenticationException,
    AuthorizationException,
    ConnectionTimeout,
    NotFoundError,
    RequestError,
    TransportError,
)
from opensearchpy import ConnectionError as Unreachable
from pydantic import BaseModel, Field

from osrerank.client import Client
from osrerank.errors import ConfigError, MissingDependencyError, ModelLoadError, ScoringError, WorkerError
from osrerank.options.rerank import AUTO_PIPELINE, NO_STAGES, PIPELINES, Rerank, RerankOptions
from osrerank.retrieval.requests import engine_label
from osrerank.scoring.names import HTTP
from osrerank.server.api.errors import ANSWERS, INDEX_PATTERN, ErrorBody, RefusedRequest
from osrerank.server.page.comparison import ComparedSearch, compare, highlighting
from osrerank.server.page.judgments import Judgments
from osrerank.server.page.vector_shares import VectorShares
from osrerank.service import SERVER_MS, RerankService

PATH = "/ui"
MAX_DEPTH = 200
BLEND = "blend"
MAX_INDEXES = 200
MAX_QUERIES = 1_000
SEARCHES = 8
"""The most searches at a time; further ones wait."""
MAX_WAITING = 32
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
ASSETS = {
    "page.html": "text/html; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "view.js": "text/javascript; charset=utf-8",
    "lines.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
Answer = TypeVar("Answer")
Application = Callable[[MutableMapping[str, Any], Any, Any], Awaitable[None]]


class PipelineEntry(BaseModel):
    """A pipeline that the page offers."""

    name: str
    reason: str = Field(description="Why it cannot be used; empty if it can.")


class QueryEntry(BaseModel):
    """A query that the page offers."""

    query_id: str
    text: str
    is_judged: bool


class PageConfig(BaseModel):
    """What a user of the page can choose from."""

    version: str
    model: str
    pipelines: list[PipelineEntry]
    default_depth: int = Field(description="The depth of `rerank=True` in the field index.")
    max_depth: int
    index: str = Field(description="The index that is searched by default; empty if there is none.")
    indexes: list[str]
    problem: str = Field(description="Why the indexes cannot be listed; empty if they can.")
    queries: list[QueryEntry]
    can_judge: bool = Field(description="Whether users may judge documents.")


class PageJudgment(BaseModel):
    """A user's judgment of how relevant a document is to a query."""

    q: str = Field(min_length=1, max_length=1_000, pattern=r"\S", description="The query's text.")
    doc_id: str = Field(min_length=1, max_length=512)
    relevance: int | None = Field(ge=0, le=3, description="0 is not relevant; none removes the judgment.")


class Saved(BaseModel):
    """The query of a judgment that was saved."""

    query_id: str


@dataclass(frozen=True, slots=True)
class ComparisonPage:
    """The searches of the page.

    Attributes:
        client: the client that searches and reranks; the caller closes it.
        pipelines: name of a pipeline -> why it cannot be used, empty if it can (``usable_pipelines``).
        indexes: the indexes that may be searched, the first by default; empty for all that the client can read.
        judgments: the queries to choose from and their judgments.
    """

    client: Client
    pipelines: dict[str, str]
    indexes: tuple[str, ...] = ()
    judgments: Judgments = field(default_factory=Judgments)

    def named_indexes(self) -> list[str]:
        """Return the indexes to offer.

        Raises:
            TransportError: OpenSearch does not answer.
        """
        if self.indexes:
            return list(self.indexes)
        rows = self.client.cat.indices(params={"format": "json"})
        names = sorted(row["index"] for row in rows if not row["index"].startswith("."))
        return names[:MAX_INDEXES]

    def depth_of(self, index: str) -> int:
        """Return how many candidates ``rerank=True`` reranks in an index, at most `MAX_DEPTH`."""
        return min(self.client.searcher.defaults.of(index).min_depth, MAX_DEPTH)

    def search(
        self, query: str, index: str, pipeline: str, depth: int | None, *, passage_words: int, timeout_ms: float
    ) -> ComparedSearch:
        """Search once and return both orders; a depth of None and 0 passage words mean those of ``rerank=True``.

        Raises:
            RefusedRequest: the index or the pipeline is not offered, or OpenSearch does not answer.
        """
        if self.indexes and index not in self.indexes:
            raise RefusedRequest(404, f"this server does not offer the index {index}, only {', '.join(self.indexes)}")
        pipeline = pipeline or next((name for name, reason in self.pipelines.items() if not reason), AUTO_PIPELINE)
        if pipeline not in {AUTO_PIPELINE, *self.pipelines}:
            raise RefusedRequest(422, f"there is no pipeline {pipeline}; there are {', '.join(self.pipelines)}")
        depth = depth or self.depth_of(index)
        options: RerankOptions = {"pipeline": pipeline, "depth": depth, "deadline_ms": timeout_ms}
        options |= {
            "query": None,
            "min_score": None,
            "min_probability": None,
            "cutoff": None,
            "interleave": None,
            "explain": False,
            "on_failure": "first_pass",
        }
        if passage_words:
            passages = {"aggregation": "maxp", "words": passage_words, "stride": max(passage_words // 2, 1)}
            options |= {"passages": passages, "sentences": None}
        try:
            response = self._response(query, index, depth, options)
        except TransportError as error:
            raise refusal(error, index, engine_label(self.client)) from error
        request = {"query": query, "index": index, "pipeline": pipeline, "depth": depth}
        fields = response["rerank"].get("fields") or ()
        return compare(response, request, fields, self.judgments.of(query), self._blend(response, index, options))

    def _response(self, query: str, index: str, depth: int, options: RerankOptions) -> Any:
        """Search with the query's words marked; without, if the engine refuses that, as it does for very long texts."""
        try:
            return self.client.search(query, index=index, size=depth, rerank=options, body=highlighting())
        except RequestError:
            return self.client.search(query, index=index, size=depth, rerank=options)

    def _blend(self, response: Any, index: str, options: RerankOptions) -> str | None:
        """Return how the first-pass score was blended with the model's; None if it was not."""
        if not any(stage["name"] == BLEND and stage["applied"] for stage in response["rerank"]["stages"]):
            return None
        with self.client.searcher.serving(index) as service:
            blend = service.identity(self.client.options_of(index, rerank=options))["blend"]
        return str(blend[0]) if isinstance(blend, list) else None


def usable_pipelines(reranker: RerankService) -> dict[str, str]:
    """Load the models of each pipeline; return its name -> why it cannot be used, empty if it can.

    The pipeline that fits the model comes first, because the page begins with it.
    """
    reasons = {name: _obstacle(reranker, name) for name in PIPELINES if name not in (AUTO_PIPELINE, NO_STAGES)}
    try:
        fitting, _ = reranker.resolve(Rerank())
    except (ModelLoadError, MissingDependencyError, WorkerError):
        return reasons
    return {fitting: reasons.pop(fitting), **reasons}


def _obstacle(reranker: RerankService, pipeline: str) -> str:
    try:
        reranker.warm_up(Rerank(pipeline=pipeline), server_ms=SERVER_MS)
        return "".join(reranker.resolve(Rerank(pipeline=pipeline))[1])
    except (ConfigError, ModelLoadError, MissingDependencyError) as error:
        return str(error)
    except WorkerError:  # workers may start later
        return ""
    except ScoringError:
        if reranker.settings.backend != HTTP:
            raise
        return ""  # a rerank server may start later, too


def refusal(error: TransportError, index: str = "", engine: str = "OpenSearch") -> RefusedRequest:
    """Turn an error of the engine or the connection into an answer for users, without addresses or credentials."""
    if isinstance(error, ConnectionTimeout):
        return RefusedRequest(504, "OpenSearch did not answer in time: try again, or look at its load")
    if isinstance(error, Unreachable):
        return RefusedRequest(503, "OpenSearch cannot be reached: check that it runs, and that --url has its address")
    if isinstance(error, AuthenticationException | AuthorizationException):
        return RefusedRequest(502, "OpenSearch does not let this server read that: check the credentials in --url")
    if isinstance(error, NotFoundError) and index:
        return RefusedRequest(404, f"there is no index {index}: choose another one")
    return RefusedRequest(502, f"{engine} answered {error.status_code}: {str(error.error)[:200]}")


router = APIRouter(
    prefix=PATH,
    tags=["comparison page"],
    responses={
        **{status: answer for status, answer in ANSWERS.items() if status in {401, 422, 429, 500, 503, 504}},
        404: {"model": ErrorBody, "description": "There is no such index."},
        502: {"model": ErrorBody, "description": "OpenSearch refused the search."},
    },
)


@router.get("/config")
async def config(http: HttpRequest) -> PageConfig:
    """Return the pipelines, indexes and queries that the comparison page offers."""
    comparison: ComparisonPage = http.app.state.comparison
    problem, indexes = "", list[str]()
    try:
        indexes = await _in_thread(http, comparison.named_indexes)
    except TransportError as error:
        problem = str(refusal(error, engine=engine_label(comparison.client)))
    judgments = comparison.judgments
    return PageConfig(
        version=http.app.version,
        model=comparison.client.searcher.service.model_name,
        pipelines=[PipelineEntry(name=name, reason=reason) for name, reason in comparison.pipelines.items()],
        default_depth=comparison.depth_of(indexes[0] if indexes else ""),
        max_depth=MAX_DEPTH,
        index=indexes[0] if indexes else "",
        indexes=indexes,
        problem=problem,
        queries=[
            QueryEntry(query_id=query.query_id, text=query.text, is_judged=judgments.is_judged(query.query_id))
            for query in judgments.queries[:MAX_QUERIES]
        ],
        can_judge=judgments.can_judge,
    )


@router.get("/search")
async def search(
    http: HttpRequest,
    query: Annotated[str, Parameter(alias="q", min_length=1, max_length=1_000, pattern=r"\S")],
    index: Annotated[str, Parameter(max_length=255, pattern=INDEX_PATTERN)],
    pipeline: Annotated[
        str, Parameter(max_length=50, description="The name of a pipeline; the first usable one if empty.")
    ] = "",
    depth: Annotated[
        int | None,
        Parameter(
            ge=1,
            le=MAX_DEPTH,
            description="How many candidates are reranked; as many as `rerank=True` does if absent.",
        ),
    ] = None,
    passages: Annotated[
        int, Parameter(ge=0, le=500, description="Words of a passage; 0 to read documents as `rerank=True` does.")
    ] = 0,
) -> ComparedSearch:
    """Search an index, and return the first pass's order and the reranked one."""
    comparison: ComparisonPage = http.app.state.comparison
    timeout_ms = http.app.state.service.limits.timeout_ms

    def answer() -> ComparedSearch:
        return comparison.search(query, index, pipeline, depth, passage_words=passages, timeout_ms=timeout_ms)

    return await _in_thread(http, answer)


@router.post("/judge")
async def judge(http: HttpRequest, judgment: PageJudgment) -> Saved:
    """Save whether a document is relevant to a query, as TREC qrels."""
    if http.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        # a page of another site may send a form here, but not this type
        raise RefusedRequest(415, "send the judgment as Content-Type: application/json")
    comparison: ComparisonPage = http.app.state.comparison

    def save() -> str:
        try:
            return comparison.judgments.judge(judgment.q, judgment.doc_id, judgment.relevance)
        except ConfigError as error:
            raise RefusedRequest(422, str(error)) from error
        except OSError as error:
            raise RefusedRequest(500, f"the judgment cannot be saved: {error.strerror}") from error

    return Saved(query_id=await _in_thread(http, save))


async def _in_thread(http: HttpRequest, function: Callable[[], Answer]) -> Answer:
    limiter: anyio.CapacityLimiter = http.app.state.comparison_limiter
    if limiter.statistics().tasks_waiting >= MAX_WAITING:
        raise RefusedRequest(429, "too many searches are waiting; try again in a second")
    return await anyio.to_thread.run_sync(function, limiter=limiter)


class PageHeaders:
    """ASGI middleware that adds the page's headers to all responses of its paths, including refusals."""

    def __init__(self, application: Application) -> None:
        self._application = application

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Answer one request."""
        path = scope.get("path", "")
        if scope["type"] != "http" or not (path == PATH or path.startswith(f"{PATH}/")):
            await self._application(scope, receive, send)
            return

        async def send_with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                other_headers = [
                    (name, value) for name, value in message["headers"] if name.lower() != b"cache-control"
                ]
                page_headers = {**HEADERS, "Cache-Control": "no-store" if path in _LIVE else "no-cache"}
                message = {**message, "headers": other_headers + _encode(page_headers)}
            await send(message)

        await self._application(scope, receive, send_with_headers)


_LIVE = frozenset({f"{PATH}/config", f"{PATH}/search", f"{PATH}/judge"})


def _encode(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode()) for name, value in headers.items()]


def add_page(app: FastAPI, comparison: ComparisonPage) -> None:
    """Add the comparison page to the rerank API."""
    app.state.comparison = comparison
    app.state.share_of = VectorShares(comparison.client, comparison.indexes)
    app.state.comparison_limiter = anyio.CapacityLimiter(SEARCHES)
    app.include_router(router)
    app.add_api_route("/", _to_page, methods=["GET"], include_in_schema=False)
    for name, kind in ASSETS.items():
        path = PATH if name == "page.html" else f"{PATH}/{name}"
        app.add_api_route(path, _asset(name, kind), methods=["GET"], include_in_schema=False)
    app.add_middleware(PageHeaders)


async def _to_page() -> RedirectResponse:
    return RedirectResponse(PATH)


def _asset(name: str, kind: str) -> Callable[[], Awaitable[Response]]:
    content = (files("osrerank.server.page") / "static" / name).read_bytes()

    async def answer() -> Response:
        return Response(content, media_type=kind)

    return answer
