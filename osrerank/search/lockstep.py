"""Run one search, or run several searches together with few requests.

Each search is a generator of steps, and all searches advance together. Their requests to ``_search`` are combined into
one multi-search, their requests for texts into one request, and their requests for vectors into one request. Identical
GET requests are sent once. All other steps run one by one.
"""

import json
import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from osrerank.retrieval.boosts import SCORES_PARAM, requests_named_scores, restore_caller_names
from osrerank.retrieval.first_pass import read_hits
from osrerank.retrieval.requests import SideRequest, build_path
from osrerank.search.side_indices import SideIndices
from osrerank.search.step import (
    ClientStep,
    Computation,
    MultiSearchRequest,
    ReadRecords,
    ReadTexts,
    SearchRequest,
    Step,
)
from osrerank.types.engine_errors import EngineError

MIN_TIMEOUT_S = 0.05
"""The minimum timeout of a request for texts, in seconds, however close the deadline is."""
ClientSteps = Generator[ClientStep, Any, Any]
SearchSteps = Generator[Step, Any, Any]


@dataclass(slots=True, eq=False)
class _RunningSearch:
    """A search and the step that it waits for.

    Attributes:
        steps: the generator of the search's steps.
        header: the search's header in a multi-search. None if the search is not part of one.
        step: the step that the search waits for. None if the search has ended.
        outcome: the search's response, or the `EngineError` that ended the search. Other errors end all searches.
    """

    steps: SearchSteps
    header: Mapping[str, Any] | None
    step: Step | None = None
    outcome: Any = None

    def advance(self, result: Any) -> Generator[Computation, Any, None]:
        """Continue the search with the result of its step. Run its computations until it ends or waits for a request.

        If the result is an exception, it is raised in the search.
        """
        while True:
            try:
                self.step = self.steps.throw(result) if isinstance(result, Exception) else self.steps.send(result)
            except StopIteration as end:
                self.step, self.outcome = None, end.value
                return
            except EngineError as error:
                self.step, self.outcome = None, error
                return
            if not isinstance(self.step, Computation):
                return
            try:
                result = yield self.step
            except Exception as error:  # noqa: BLE001 - the search handles it
                result = error


class Outcomes(NamedTuple):
    """The outcomes of searches that ran together.

    Attributes:
        by_search: the response of each search, or the `EngineError` that ended it.
        envelope: the other parts of the multi-search's response, such as ``{"took": 5}``. Empty for a single search.
        has_responses: whether the multi-search's response had ``responses``, which ``filter_path`` may hide.
    """

    by_search: list[Any]
    envelope: dict[str, Any]
    has_responses: bool


def run_one(
    steps: SearchSteps, side_indices: SideIndices | None, header: Mapping[str, Any] | None = None
) -> ClientSteps:
    """Run one search, and return its response.

    Args:
        steps: the generator of the search's steps.
        side_indices: reads document vectors. None if the settings turn side indices off.
        header: the search's header in a multi-search. None if the search is not part of one.

    Raises:
        EngineError: the search engine refused the search.
    """
    outcomes = yield from run_in_lockstep([(header, steps)], side_indices)
    (outcome,) = outcomes.by_search
    if isinstance(outcome, EngineError):
        raise outcome
    return outcome


def run_in_lockstep(
    searches: Sequence[tuple[Mapping[str, Any] | None, SearchSteps]], side_indices: SideIndices | None
) -> Generator[ClientStep, Any, Outcomes]:
    """Run several searches together, and return their outcomes.

    Args:
        searches: each search's header and steps. The header is None if the search is not part of a multi-search.
        side_indices: reads document vectors. None if the settings turn side indices off.
    """
    running = [_RunningSearch(steps, header) for header, steps in searches]
    envelope: dict[str, Any] = {}
    try:
        for search in running:
            yield from search.advance(None)
        while waiting := [search for search in running if search.step is not None]:
            batch = _next_batch(waiting)
            steps: list[Any] = [search.step for search in batch]
            is_multi_search = batch[0].header is not None
            if isinstance(steps[0], SearchRequest) and is_multi_search:
                response, results = yield from _send_multi_search(batch)
                if isinstance(response, Mapping):
                    envelope = {**response, **envelope}  # of several multi-searches, the first one's values win
            elif isinstance(steps[0], ReadTexts):
                results = yield from _read_texts(steps)
            elif isinstance(steps[0], ReadRecords):
                results = yield from _read_vectors(steps, side_indices)
            else:
                result = yield from _attempt(steps[0])
                results = [result] * len(batch)
            for search, result in zip(batch, results, strict=True):
                yield from search.advance(result)
    finally:
        for search in running:
            search.steps.close()
    has_responses = envelope.pop("responses", None) is not None
    return Outcomes([search.outcome for search in running], envelope, has_responses)


def _next_batch(waiting: Sequence[_RunningSearch]) -> list[_RunningSearch]:
    """Return the searches whose steps are performed next, all of them with one request.

    A request to ``_search`` waits until all searches have one, so that one multi-search carries them all.
    """
    not_searching = [search for search in waiting if not isinstance(search.step, SearchRequest)]
    next_search = not_searching[0] if not_searching else waiting[0]
    step = next_search.step
    if isinstance(step, SearchRequest | ReadTexts | ReadRecords):
        return [search for search in waiting if type(search.step) is type(step)]
    if isinstance(step, SideRequest) and step.method == "GET":  # such as the mapping
        return [search for search in waiting if search.step == step]
    return [next_search]


def _attempt(step: ClientStep) -> Generator[ClientStep, Any, Any]:
    """Perform a step. Return its result. If it raises an error, return the error."""
    try:
        return (yield step)
    except Exception as error:  # noqa: BLE001 - it is raised in the searches that wait for the step
        return error


def _send_multi_search(searches: Sequence[_RunningSearch]) -> Generator[ClientStep, Any, tuple[Any, list[Any]]]:
    """Send one multi-search for several searches. Return its response, and the response or the error of each search.

    If one of the searches requests scores of named queries, all get them. They are then removed from the others.
    """
    steps = [search.step for search in searches if isinstance(search.step, SearchRequest)]
    lines = [line for search, step in zip(searches, steps, strict=True) for line in (search.header, step.body)]
    requests_scores = any(requests_named_scores(step.params) for step in steps)
    request = MultiSearchRequest(lines, params={SCORES_PARAM: "true"} if requests_scores else {})
    response = yield from _attempt(request)
    has_first_pass = any(step.is_first_pass for step in steps)
    results = _split_responses(response, len(steps), has_first_pass=has_first_pass)
    if requests_scores:
        results = [_without_unrequested_scores(result, step) for result, step in zip(results, steps, strict=True)]
    return response, results


def _without_unrequested_scores(response: Any, step: SearchRequest) -> Any:
    """Return a search's response, with only the names of matched queries unless the search requested their scores."""
    if requests_named_scores(step.params) or not (isinstance(response, Mapping) and read_hits(response)):
        return response
    return restore_caller_names(response, wants_scores=False)


def _split_responses(result: Any, count: int, *, has_first_pass: bool) -> list[Any]:
    """Return the response or the error of each search in a multi-search. All are None if ``filter_path`` hides them.

    Args:
        result: the multi-search's response, or the error that it raised.
        count: the number of searches.
        has_first_pass: whether one of the requests is a first pass, which might be why the engine refused all of them.
    """
    if isinstance(result, EngineError):
        result.is_shared = has_first_pass  # the other searches may succeed if each is sent alone
        return [result] * count
    if isinstance(result, Exception):
        return [result] * count
    responses = result.get("responses") if isinstance(result, Mapping) else None
    if responses is None:
        return [None] * count
    return [
        _error_of_search(response) if isinstance(response, Mapping) and "error" in response else response
        for response in responses
    ]


def _error_of_search(response: Mapping[str, Any]) -> EngineError:
    """Return the error of one search in a multi-search, from a response such as ``{"error": {...}, "status": 400}``."""
    error = response["error"]
    if not isinstance(error, Mapping):
        error = {"type": error}
    root_causes = error.get("root_cause") or [error]
    cause = root_causes[0]
    status = response.get("status")
    return EngineError(
        response,
        status=status if isinstance(status, int) else 400,
        kind=str(cause.get("type") or ""),
        external_message=f"{cause.get('type')}: {cause.get('reason')}",
    )


def _read_texts(steps: Sequence[Any]) -> Generator[ClientStep, Any, list[Any]]:
    """Fetch the texts of all searches' hits with one request. Return the response or the error of each search."""
    remaining_s = min(step.deadline.remaining_s() for step in steps)
    timeout = {} if remaining_s == math.inf else {"request_timeout": max(remaining_s, MIN_TIMEOUT_S)}
    if len(steps) == 1:
        step = steps[0]
        request = SideRequest("POST", build_path(step.indices, "_search"), step.body, timeout)
        return [(yield from _attempt(request))]
    lines = [line for step in steps for line in ({"index": step.indices}, step.body)]
    content = "".join(json.dumps(line) + "\n" for line in lines)
    response = yield from _attempt(SideRequest("POST", "/_msearch", content, timeout))
    return _split_responses(response, len(steps), has_first_pass=False)


def _read_vectors(steps: Sequence[Any], side_indices: SideIndices | None) -> Generator[ClientStep, Any, list[Any]]:
    """Read document vectors for several searches at once. Return each search's vectors, by key, or its error."""
    if side_indices is None:
        return [{} for _ in steps]
    index_by_key = {key: index for step in steps for key, index in step.index_by_key.items()}
    try:
        vectors = yield from side_indices.fetch(
            index_by_key, remaining_s=lambda: min(step.deadline.remaining_s() for step in steps)
        )
    except Exception as error:  # noqa: BLE001 - it is raised in the searches
        return [error] * len(steps)
    return [{key: vectors[key] for key in step.index_by_key if key in vectors} for step in steps]
