"""Rerank the hits of search templates: let the engine render the template, and rerank the search that it returns."""

import json
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from osrerank.options.rerank import Rerank
from osrerank.retrieval.requests import SideRequest
from osrerank.search.calls import multi_search_steps, parse_lines, search_steps
from osrerank.search.lockstep import ClientSteps, run_one
from osrerank.search.outcome import unranked_report
from osrerank.search.plan import Plan, RerankArgument, SearchCall, decode_body
from osrerank.search.run import Steps, finish_search
from osrerank.search.searcher import Searcher
from osrerank.search.step import MultiSearchRequest, SearchRequest
from osrerank.types.engine_errors import EngineError
from osrerank.types.reasons import Reason, ReasonCode

CALLER_KEYS = ("explain", "profile")
"""Keys of a search body that count only in the caller's request: the engine ignores them in a template."""
IGNORED_PARAMS = (
    "_source", "_source_excludes", "_source_includes", "docvalue_fields", "explain", "from", "q", "seq_no_primary_term",
    "size", "sort", "stats", "stored_fields", "terminate_after", "track_scores", "version",
)  # fmt: skip
"""The URL parameters that the engine ignores in a search by template."""


def template_steps(
    searcher: Searcher, body: Any, params: Mapping[str, Any], *, index: Any, rerank: RerankArgument, headers: Any = None
) -> ClientSteps:
    """Perform a search by template, and return the response.

    If the template cannot be rendered, or if the rendered search is refused, the caller's own request is sent.

    Args:
        searcher: the client's searcher.
        body: the caller's request, such as ``{"id": "my-template", "params": {"text": "dogs"}}``.
        params: the caller's URL parameters.
        index: the caller's index or indices.
        rerank: the caller's ``rerank`` argument.
        headers: the headers of the caller's request.

    Raises:
        ConfigError: as for a search.
        EngineError: the search engine refused the template or its search.
        PropagatedError: as for a search.
    """
    rendered = yield from _render(decode_body(body))
    if isinstance(rendered, EngineError):
        error = rendered
    else:
        search_params = {name: value for name, value in params.items() if name not in IGNORED_PARAMS}
        search_body = json.dumps(rendered) if isinstance(body, str | bytes) else rendered  # JSON stays JSON
        steps = search_steps(
            searcher, query=None, body=search_body, params=search_params, index=index, rerank=rerank, headers=headers
        )
        response_or_error = yield from _search_or_bad_request(steps)
        if not isinstance(response_or_error, EngineError):
            adds_status = isinstance(response_or_error, Mapping) and not params.get("filter_path")
            return {**response_or_error, "status": 200} if adds_status else response_or_error  # as the engine does
        error = response_or_error
    response = yield SearchRequest(body, params, is_template=True)
    return (yield from run_one(_report_not_reranked(searcher, response, error, index, rerank), searcher.vectors))


def multi_template_steps(
    searcher: Searcher, body: Any, index: Any, *, rerank: RerankArgument, params: Mapping[str, Any]
) -> ClientSteps:
    """Perform a multi-search by templates, and return its response.

    If a template cannot be rendered, or if the rendered multi-search is refused, the caller's own request is sent. Its
    response has an error for each search that fails. Any other search whose template was rendered is then reranked.

    Args:
        searcher: the client's searcher.
        body: newline-delimited JSON, or a list with a header and a template for each search.
        index: the index of searches whose header names none.
        rerank: the caller's ``rerank`` argument, which applies to each search.
        params: the keyword arguments of the caller's ``msearch_template``.

    Raises:
        ConfigError: the body has a header without a template, or the rerank options cannot be used.
        EngineError: the search engine refused the request.
    """
    lines = parse_lines(body)
    is_json = isinstance(body, str | bytes)
    headers, templates = lines[::2], lines[1::2]  # the lines alternate
    bodies_or_errors: list[Mapping[str, Any] | EngineError] = []
    for template in templates:
        rendered = yield from _render(decode_body(template or {}))
        bodies_or_errors.append(rendered)

    def search_rendered(positions: Sequence[int]) -> ClientSteps:
        """Perform a multi-search of the rendered searches at these positions."""
        search_lines = [line for position in positions for line in (headers[position], bodies_or_errors[position])]
        search_body = "".join(f"{json.dumps(line)}\n" for line in search_lines) if is_json else search_lines
        return multi_search_steps(searcher, search_body, index, rerank=rerank, params=params)

    if not any(isinstance(body_or_error, EngineError) for body_or_error in bodies_or_errors):
        response_or_error = yield from _search_or_bad_request(search_rendered(range(len(bodies_or_errors))))
        if not isinstance(response_or_error, EngineError):
            return response_or_error
    unranked_response = yield MultiSearchRequest(lines, is_template=True)
    url_params = {**(params.get("params") or {}), **params}  # the engine's clients accept both
    if not isinstance(unranked_response, Mapping) or url_params.get("filter_path"):
        return unranked_response
    responses = list(unranked_response["responses"])
    succeeded = [position for position, response in enumerate(responses) if "error" not in response]
    rerankable = [position for position in succeeded if not isinstance(bodies_or_errors[position], EngineError)]
    if rerankable:
        reranked_response = yield from search_rendered(rerankable)
        for position, response in zip(rerankable, reranked_response["responses"], strict=True):
            responses[position] = response
    for position in succeeded:  # the report of an unrendered search says why it is not reranked
        error = bodies_or_errors[position]
        if isinstance(error, EngineError):
            searched_index = headers[position].get("index", index)
            steps = _report_not_reranked(searcher, responses[position], error, searched_index, rerank)
            responses[position] = yield from run_one(steps, searcher.vectors)
    return {**unranked_response, "responses": responses}


def _render(template: Mapping[str, Any]) -> Generator[SideRequest, Any, Mapping[str, Any] | EngineError]:
    """Let the engine render a template. Return the search body, or the error if it cannot be rendered.

    Raises:
        EngineError: the search engine is overloaded, or did not respond in time.
    """
    try:
        response = yield SideRequest("POST", "/_render/template", template)
    except EngineError as error:
        if error.is_overload or error.timed_out:
            raise
        return error
    body = response.get("template_output") if isinstance(response, Mapping) else None
    if not isinstance(body, Mapping):
        return EngineError(response, external_message="the search engine rendered no search body")
    search_body = {name: value for name, value in body.items() if name not in CALLER_KEYS}
    for name in CALLER_KEYS:
        if str(template.get(name)).lower() == "true":
            search_body[name] = True
    return search_body


def _search_or_bad_request(rendered_search: ClientSteps) -> ClientSteps:
    """Perform a rendered search, and return its response, or its error if the status is 400.

    After a 400, the caller's own request may succeed, and if it fails, its error is about what the caller wrote.

    Raises:
        EngineError: the status is not 400, so the caller's own request would fail, too.
    """
    try:
        return (yield from rendered_search)
    except EngineError as error:
        if error.status != 400:
            raise
        return error


def _report_not_reranked(
    searcher: Searcher, response: Any, error: EngineError, index: Any, rerank: RerankArgument
) -> Steps:
    """Return the response to the caller's own request with the reason why its hits are not reranked.

    Args:
        searcher: the client's searcher.
        response: the engine's response.
        error: why the template could not be rendered, or why the rendered search failed.
        index: the caller's index or indices.
        rerank: the caller's ``rerank`` argument.
    """
    if not isinstance(response, Mapping):
        return response
    reason = Reason(ReasonCode.REFUSED, "the template could not be rendered for reranking", error.external_message)
    options = Rerank.of(rerank, searcher.defaults.options_for(index)) or Rerank()
    with searcher.service_for(index, allow_mixed_models=True) as service:
        plan = Plan(SearchCall(index=index, options=options), service, options=options, skip_reason=reason)
        report = unranked_report(response, reason, plan)
        return (yield from finish_search(reason, report, response, plan, hits=(), searcher=searcher))
