"""Rerank what search templates find: the search engine renders a template, and a search of that body is reranked."""

import json
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from osrerank.options.rerank import Rerank
from osrerank.retrieval.requests import SideRequest
from osrerank.search.calls import lines_of, multi_search_steps, search_steps
from osrerank.search.outcome import unranked
from osrerank.search.plan import Asked, Plan, RerankArgument, decoded
from osrerank.search.report import write
from osrerank.search.run import Steps, follow_up
from osrerank.search.searcher import Searcher
from osrerank.search.step import MultiSearchRequest, SearchRequest
from osrerank.search.together import ClientSteps, alone
from osrerank.types.failed import Failed
from osrerank.types.reasons import Reason, ReasonCode

FROM_REQUEST = ("explain", "profile")
"""Parts of a search that come from the request of the template; those that the template renders are ignored."""
IGNORED = (
    "_source", "_source_excludes", "_source_includes", "docvalue_fields", "explain", "from", "q", "seq_no_primary_term",
    "size", "sort", "stats", "stored_fields", "terminate_after", "track_scores", "version",
)  # fmt: skip
"""URL parameters of a search that a template's search ignores, because the rendered body replaces them."""


def template_steps(
    searcher: Searcher, body: Any, params: Mapping[str, Any], *, index: Any, rerank: RerankArgument, headers: Any = None
) -> ClientSteps:
    """Yield what a client performs for the search of a template, and return the response.

    Args:
        searcher: the client's searcher.
        body: the caller's request: ``id`` or ``source`` of the template, ``params``, ``explain``, ``profile``.
        params: the caller's URL parameters.
        index: the caller's index or indices.
        rerank: the caller's ``rerank`` argument.
        headers: the headers of the caller's request.

    Raises:
        ConfigError: as for a search.
        Failed: the search engine refused the template or its search.
        Raised: as for a search.
    """
    template = decoded(body)
    found = yield from _rendered(template)
    if not isinstance(found, Failed):
        own = {name: value for name, value in params.items() if name not in IGNORED}
        content = json.dumps(found) if isinstance(body, str | bytes) else found
        try:
            response = yield from search_steps(
                searcher, None, content, own, index=index, rerank=rerank, headers=headers
            )
        except Failed as failed:
            found = _refused(failed)
        else:
            has_status = isinstance(response, Mapping) and not params.get("filter_path")
            return {**response, "status": 200} if has_status else response
    # outside the except block, so that an error of this request does not carry the other's traceback
    response = yield SearchRequest(body, params, is_template=True)
    return (yield from alone(_told(searcher, response, found, index, rerank), searcher.vectors))


def multi_template_steps(
    searcher: Searcher, body: Any, index: Any, *, rerank: RerankArgument, params: Mapping[str, Any]
) -> ClientSteps:
    """Yield what a client performs for the searches of several templates, and return the answer of all.

    If a template cannot be rendered, or its search is refused with all others, the caller's own request is sent, too:
    it has the error of each search.

    Args:
        searcher: the client's searcher.
        body: newline-delimited JSON, or headers and templates in turn.
        index: the index of searches whose header names none.
        rerank: as for a search.
        params: the keyword arguments of the caller's ``msearch_template``.

    Raises:
        ConfigError: the body has a header without a template, or the rerank options cannot be used.
        Failed: the search engine refused the request.
    """
    lines, is_json = lines_of(body), isinstance(body, str | bytes)
    found: list[Mapping[str, Any] | Failed] = []
    for template in lines[1::2]:
        found += [(yield from _rendered(decoded(template or {})))]

    def reranked(places: Sequence[int]) -> ClientSteps:
        searches = [part for place in places for part in (lines[2 * place], found[place])]
        content = "".join(f"{json.dumps(part)}\n" for part in searches) if is_json else searches
        return multi_search_steps(searcher, content, index, rerank=rerank, params=params)

    if not any(isinstance(one, Failed) for one in found):
        try:
            return (yield from reranked(range(len(found))))
        except Failed as failed:
            _refused(failed)
    own = yield MultiSearchRequest(lines, is_template=True)
    if not isinstance(own, Mapping) or {**(params.get("params") or {}), **params}.get("filter_path"):
        return own
    responses = list(own["responses"])
    answered = [place for place, response in enumerate(responses) if "error" not in response]
    if places := [place for place in answered if not isinstance(found[place], Failed)]:
        answer = yield from reranked(places)
        for place, response in zip(places, answer["responses"], strict=True):
            responses[place] = response
    for place in answered:
        if isinstance(why := found[place], Failed):
            steps = _told(searcher, responses[place], why, lines[2 * place].get("index", index), rerank)
            responses[place] = yield from alone(steps, searcher.vectors)
    return {**own, "responses": responses}


def _rendered(template: Mapping[str, Any]) -> Generator[SideRequest, Any, Mapping[str, Any] | Failed]:
    """Yield the request that renders a template; return the search body, or why there is none.

    Raises:
        Failed: the search engine is overloaded, or did not answer in time.
    """
    try:
        answer = yield SideRequest("POST", "/_render/template", template)
    except Failed as failed:
        if failed.is_overload or failed.timed_out:
            raise
        return failed
    body = answer.get("template_output") if isinstance(answer, Mapping) else None
    if not isinstance(body, Mapping):
        return Failed(answer, foreign="the search engine rendered it to something else than a search body")
    rest = {name: value for name, value in body.items() if name not in FROM_REQUEST}
    return {**rest, **{name: True for name in FROM_REQUEST if str(template.get(name)).lower() == "true"}}


def _refused(failed: Failed) -> Failed:
    """Return the error of a rendered search if the caller's own request tells best what is wrong with it.

    Raises:
        Failed: it has another reason, which holds for both.
    """
    if failed.status != 400:
        raise failed
    return failed


def _told(searcher: Searcher, response: Any, failed: Failed, index: Any, rerank: RerankArgument) -> Steps:
    """Return the response of a template that could be searched, but not rendered; it says that it is not reranked."""
    if not isinstance(response, Mapping):
        return response
    reason = Reason(ReasonCode.REFUSED, "the template could not be rendered for reranking", failed.foreign)
    options = Rerank.of(rerank, searcher.defaults.of(index)) or Rerank()
    with searcher.serving(index, checked=False) as service:
        plan = Plan(Asked(index=index, options=options), service, options=options, obstacle=reason)
        report = unranked(response, reason, plan)
        answer = write(response, report)
        yield from follow_up(reason, report, answer, plan, (), searcher)
    return answer
