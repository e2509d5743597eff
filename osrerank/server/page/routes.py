"""Serve the comparison page, ``/ui``: its files, and the JSON endpoints that it calls."""

from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Annotated, Any, TypeVar

import anyio.to_thread
from fastapi import APIRouter, FastAPI
from fastapi import Query as Parameter
from fastapi import Request as HttpRequest
from fastapi.responses import RedirectResponse
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
from osrerank.retrieval.requests import name_engine
from osrerank.scoring.names import HTTP
from osrerank.server.api.dialect_route import media_type
from osrerank.server.api.docs_page import file_endpoint
from osrerank.server.api.errors import ERROR_RESPONSES, INDEX_PATTERN, ErrorBody, RefusedRequest
from osrerank.server.page.comparison import ComparedSearch, compare, highlight_body
from osrerank.server.page.judgments import Judgments
from osrerank.server.page.vector_shares import VectorShares
from osrerank.service import SERVER_STARTUP_MS, RerankService

PATH = "/ui"
UNCACHED_PATHS = frozenset({f"{PATH}/config", f"{PATH}/search", f"{PATH}/judge"})
"""The JSON endpoints. Browsers must not cache their responses."""
MAX_DEPTH = 200
"""The maximum number of candidates that a search on the page reranks."""
BLEND_STAGE = "blend"
"""The name of the stage that blends the first-pass score with the model's."""
MAX_INDICES = 200
"""The maximum number of indices in the page's list."""
MAX_QUERIES = 1_000
"""The maximum number of queries in the page's list."""
MAX_CONCURRENT = 8
"""The maximum number of requests that use the search engine or write judgments at the same time. Others wait."""
MAX_WAITING = 32
"""The maximum number of requests that wait meanwhile. Further requests get status 429."""
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
"""The security headers of the page's responses. They let it load only files of this server, and forbid frames."""
ASSETS = {
    "page.html": "text/html; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "view.js": "text/javascript; charset=utf-8",
    "lines.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
"""The files of the page, with their media types."""
Value = TypeVar("Value")
Application = Callable[[MutableMapping[str, Any], Any, Any], Awaitable[None]]
"""An ASGI application, which is called with the scope, `receive` and `send`."""


class PipelineEntry(BaseModel):
    """A pipeline that the page offers."""

    name: str
    reason: str = Field(description="Why the pipeline cannot be used. Empty if it can.")


class QueryEntry(BaseModel):
    """A query that the page offers."""

    query_id: str
    text: str
    is_judged: bool


class PageConfig(BaseModel):
    """The options that the page offers."""

    version: str
    model: str
    pipelines: list[PipelineEntry]
    default_depth: int = Field(description="How many candidates `rerank=True` reranks in the default index.")
    max_depth: int
    index: str = Field(description="The index that is searched by default. Empty if the cluster has no index.")
    indexes: list[str]
    problem: str = Field(description="Why the indices cannot be listed. Empty if they can.")
    queries: list[QueryEntry]
    can_judge: bool = Field(description="Whether users can judge documents.")


class PageJudgment(BaseModel):
    """A user's judgment of how relevant a document is to a query."""

    q: str = Field(min_length=1, max_length=1_000, pattern=r"\S", description="The query's text.")
    doc_id: str = Field(min_length=1, max_length=512)
    relevance: int | None = Field(ge=0, le=3, description="The grade, where 0 is not relevant. null removes it.")


class SavedJudgment(BaseModel):
    """The response to a judgment that was saved."""

    query_id: str


@dataclass(frozen=True, slots=True)
class ComparisonPage:
    """Runs the searches of the comparison page, and contains the choices that the page offers.

    Attributes:
        client: the client that searches and reranks. The caller closes it.
        pipelines: the name of each pipeline that the page offers -> why it cannot be used, or "" if it can.
        indexes: the indices that the page offers, of which the first is the default. If there are none, the page
            offers all indices that the client can read.
        judgments: the queries that the page offers, and their judgments.
    """

    client: Client
    pipelines: dict[str, str]
    indexes: tuple[str, ...] = ()
    judgments: Judgments = field(default_factory=Judgments)

    def list_indices(self) -> list[str]:
        """Return the names of the indices that the page offers, at most `MAX_INDICES` if they are not configured.

        Raises:
            TransportError: the engine does not respond, or refuses the request.
        """
        if self.indexes:
            return list(self.indexes)
        rows = self.client.cat.indices(params={"format": "json"})
        names = sorted(row["index"] for row in rows if not row["index"].startswith("."))
        return names[:MAX_INDICES]

    def default_depth(self, index: str) -> int:
        """Return how many candidates ``rerank=True`` reranks in an index, at most `MAX_DEPTH`.

        With the depth ``auto``, this is the minimum.
        """
        return min(self.client.searcher.defaults.options_for(index).min_depth, MAX_DEPTH)

    def search(
        self, query: str, index: str, pipeline: str, depth: int | None, *, passage_words: int, timeout_ms: float
    ) -> ComparedSearch:
        """Search with reranking, and compare the first-pass order of the hits with the reranked order.

        Args:
            query: the text of the query.
            index: the index to search.
            pipeline: the pipeline, or "" for the first one that can be used.
            depth: the number of candidates to rerank, or None for `default_depth`.
            passage_words: the number of words in a passage, or 0 to split documents as the index's options say.
            timeout_ms: the deadline for reranking, in milliseconds.

        Raises:
            RefusedRequest: the page does not offer the index or the pipeline, or the engine refuses the search.
        """
        if self.indexes and index not in self.indexes:
            raise RefusedRequest(404, f"this server does not offer the index {index}, only {', '.join(self.indexes)}")
        if not pipeline:
            usable_pipelines = [name for name, reason in self.pipelines.items() if not reason]
            pipeline = usable_pipelines[0] if usable_pipelines else AUTO_PIPELINE
        if pipeline not in {AUTO_PIPELINE, *self.pipelines}:
            names = ", ".join(self.pipelines)
            raise RefusedRequest(422, f"there is no pipeline {pipeline}: choose one of {names}")
        depth = depth or self.default_depth(index)
        options: RerankOptions = {"pipeline": pipeline, "depth": depth, "deadline_ms": timeout_ms}
        options |= {  # turn off what removes or mixes hits, because the page shows all candidates
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
            response = self._search_with_highlighting(query, index, depth, options)
        except TransportError as error:
            raise explain_engine_error(error, name_engine(self.client), index) from error
        return compare(
            response,
            request={"query": query, "index": index, "pipeline": pipeline, "depth": depth},
            fields=response["rerank"].get("fields") or (),
            judged=self.judgments.find_judgments(query),
            blend=self._find_blend_method(response, index, options),
        )

    def _search_with_highlighting(self, query: str, index: str, depth: int, options: RerankOptions) -> Any:
        """Search with highlighted query terms, or without them if the engine refuses, as for very long texts."""
        try:
            return self.client.search(query, index=index, size=depth, rerank=options, body=highlight_body())
        except RequestError:
            return self.client.search(query, index=index, size=depth, rerank=options)

    def _find_blend_method(self, response: Any, index: str, options: RerankOptions) -> str | None:
        """Return the method that blended the scores of a response's hits, or None if no scores were blended."""
        if not any(stage["name"] == BLEND_STAGE and stage["applied"] for stage in response["rerank"]["stages"]):
            return None
        with self.client.searcher.service_for(index) as service:
            blend = service.identity(self.client.options_of(index, rerank=options))["blend"]
        if not isinstance(blend, list):  # a blend is a list of its method and the method's parameters
            return None
        method, *_parameters = blend
        return str(method)


def check_pipelines(reranker: RerankService) -> dict[str, str]:
    """Load the models of all pipelines, and return why each pipeline cannot be used, or "" if it can.

    An example is ``{"mono": "", "duo": "the model cannot be loaded"}``. The model's default pipeline comes first,
    because the page selects the first one.
    """
    names = [name for name in PIPELINES if name not in (AUTO_PIPELINE, NO_STAGES)]
    reasons = {name: _load_models(reranker, name) for name in names}
    try:
        default_pipeline, _warning = reranker.resolve_pipeline(Rerank())
    except (ModelLoadError, MissingDependencyError, WorkerError):
        return reasons
    return {default_pipeline: reasons.pop(default_pipeline), **reasons}


def _load_models(reranker: RerankService, pipeline: str) -> str:
    """Load a pipeline's models, and return why the pipeline cannot be used, or "" if it can."""
    options = Rerank(pipeline=pipeline)
    try:
        reranker.warm_up(options, server_ms=SERVER_STARTUP_MS)
        _pipeline, warning = reranker.resolve_pipeline(options)  # warns if the model does not fit the pipeline
    except (ConfigError, ModelLoadError, MissingDependencyError) as error:
        return str(error)
    except WorkerError:  # workers can start later
        return ""
    except ScoringError:
        if reranker.settings.backend != HTTP:
            raise
        return ""  # the rerank server can start later
    return str(warning)


def explain_engine_error(error: TransportError, engine: str, index: str = "") -> RefusedRequest:
    """Return the response for an error of the engine or of the connection, without addresses or credentials.

    Args:
        error: the error.
        engine: the name of the engine for messages, such as "the search engine".
        index: the index that was searched, or "" if the request was not for a certain index.
    """
    if isinstance(error, ConnectionTimeout):
        return RefusedRequest(504, f"{engine} did not respond in time: try again, or check its load")
    if isinstance(error, Unreachable):
        return RefusedRequest(503, f"{engine} cannot be reached: check that it runs, and that --url has its address")
    if isinstance(error, AuthenticationException | AuthorizationException):
        return RefusedRequest(502, f"{engine} does not let this server read the index: check the credentials in --url")
    if isinstance(error, NotFoundError) and index:
        return RefusedRequest(404, f"there is no index {index}: choose another one")
    return RefusedRequest(502, f"{engine} responded with status {error.status_code}: {str(error.error)[:200]}")


router = APIRouter(
    prefix=PATH,
    tags=["comparison page"],
    responses={
        **{status: ERROR_RESPONSES[status] for status in (401, 422, 429, 500, 503, 504)},
        404: {"model": ErrorBody, "description": "There is no such index."},
        502: {"model": ErrorBody, "description": "The search engine refused the search."},
    },
)


@router.get("/config")
async def config(http: HttpRequest) -> PageConfig:
    """Return the pipelines, indices and queries that the comparison page offers."""
    page: ComparisonPage = http.app.state.comparison
    problem = ""
    indexes: list[str] = []
    try:
        indexes = await _run_in_thread(http, page.list_indices)
    except TransportError as error:
        problem = str(explain_engine_error(error, name_engine(page.client)))
    default_index = indexes[0] if indexes else ""
    judgments = page.judgments
    return PageConfig(
        version=http.app.version,
        model=page.client.searcher.service.model_name,
        pipelines=[PipelineEntry(name=name, reason=reason) for name, reason in page.pipelines.items()],
        default_depth=page.default_depth(default_index),
        max_depth=MAX_DEPTH,
        index=default_index,
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
        str, Parameter(max_length=50, description="The name of a pipeline. If empty, the first usable one is chosen.")
    ] = "",
    depth: Annotated[
        int | None,
        Parameter(
            ge=1, le=MAX_DEPTH, description="How many candidates to rerank. By default, as many as `rerank=True` does."
        ),
    ] = None,
    passages: Annotated[
        int, Parameter(ge=0, le=500, description="Words per passage. If 0, documents are split as `rerank=True` does.")
    ] = 0,
) -> ComparedSearch:
    """Search an index, and return the order of the first pass and the reranked order."""
    page: ComparisonPage = http.app.state.comparison
    timeout_ms = http.app.state.service.limits.timeout_ms

    def run_search() -> ComparedSearch:
        return page.search(query, index, pipeline, depth, passage_words=passages, timeout_ms=timeout_ms)

    return await _run_in_thread(http, run_search)


@router.post("/judge")
async def judge(http: HttpRequest, judgment: PageJudgment) -> SavedJudgment:
    """Save how relevant a document is to a query, as TREC qrels."""
    if media_type(http) != "application/json":  # pages of other sites can make a browser send forms, but not JSON
        raise RefusedRequest(415, "send the judgment as Content-Type: application/json")
    page: ComparisonPage = http.app.state.comparison

    def save() -> str:
        try:
            return page.judgments.save_judgment(judgment.q, judgment.doc_id, judgment.relevance)
        except ConfigError as error:
            raise RefusedRequest(422, str(error)) from error
        except OSError as error:
            raise RefusedRequest(500, f"cannot save the judgment: {error.strerror}") from error

    return SavedJudgment(query_id=await _run_in_thread(http, save))


async def _run_in_thread(http: HttpRequest, function: Callable[[], Value]) -> Value:
    """Run a function in a thread and return its result, with at most `MAX_CONCURRENT` such threads at once.

    Raises:
        RefusedRequest: `MAX_WAITING` requests already wait for a thread.
    """
    limiter: anyio.CapacityLimiter = http.app.state.comparison_limiter
    if limiter.statistics().tasks_waiting >= MAX_WAITING:
        raise RefusedRequest(429, "too many searches are waiting; try again in a second")
    return await anyio.to_thread.run_sync(function, limiter=limiter)


class PageHeadersMiddleware:
    """ASGI middleware that adds security and cache headers to all responses under `PATH`, including errors."""

    def __init__(self, application: Application) -> None:
        self._application = application

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Pass a request to the application. If it is for the page, add the headers to the response."""
        path = scope.get("path", "")
        is_page_request = scope["type"] == "http" and (path == PATH or path.startswith(f"{PATH}/"))
        if not is_page_request:
            await self._application(scope, receive, send)
            return

        async def send_with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                other_headers = [
                    (name, value) for name, value in message["headers"] if name.lower() != b"cache-control"
                ]
                page_headers = {**HEADERS, "Cache-Control": "no-store" if path in UNCACHED_PATHS else "no-cache"}
                encoded = [(name.lower().encode(), value.encode()) for name, value in page_headers.items()]
                message = {**message, "headers": other_headers + encoded}
            await send(message)

        await self._application(scope, receive, send_with_headers)


def add_page(app: FastAPI, comparison: ComparisonPage) -> None:
    """Add the comparison page to the application of the rerank API, with a redirect from ``/`` to ``/ui``."""
    app.state.comparison = comparison
    app.state.find_vector_share = VectorShares(comparison.client, comparison.indexes)
    app.state.comparison_limiter = anyio.CapacityLimiter(MAX_CONCURRENT)
    app.include_router(router)
    app.add_api_route("/", _redirect_to_page, methods=["GET"], include_in_schema=False)
    for name, asset_type in ASSETS.items():
        path = PATH if name == "page.html" else f"{PATH}/{name}"
        content = (files("osrerank.server.page") / "static" / name).read_bytes()
        app.add_api_route(path, file_endpoint(content, asset_type), methods=["GET"], include_in_schema=False)
    app.add_middleware(PageHeadersMiddleware)


async def _redirect_to_page() -> RedirectResponse:
    return RedirectResponse(PATH)
