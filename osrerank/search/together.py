"""Perform the steps of one search, or of the several searches of a multi-search, which advance side by side.

Each search is a generator of its own. Their search requests are sent as one, and so are their requests for texts and
vectors; identical GET requests are sent once. All other steps are performed one by one.
"""

import json
import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from osrerank.retrieval.boosts import SCORES_PARAM, requests_query_scores, restore_caller_names
from osrerank.retrieval.first_pass import unchecked_hits
from osrerank.retrieval.requests import SideRequest, build_path
from osrerank.search.step import (
    ClientStep,
    Computation,
    MultiSearchRequest,
    Records,
    SearchRequest,
    Step,
    Texts,
)
from osrerank.search.vectors import SideVectors
from osrerank.types.failed import Failed

MIN_TIMEOUT_S = 0.05
"""The shortest timeout of a request for texts, in seconds."""
ClientSteps = Generator[ClientStep, Any, Any]


@dataclass(slots=True, eq=False)
class _Search:
    """A search that is under way.

    Attributes:
        steps: yields its steps.
        header: its header in a multi-search; None for a search by itself.
        step: what it waits for; None if it has ended.
        outcome: what it returned, or the `Failed` that ended it; any other error ends all searches.
    """

    steps: Generator[Step, Any, Any]
    header: Mapping[str, Any] | None
    step: Step | None = None
    outcome: Any = None

    def advance(self, answer: Any) -> Generator[Computation, Any, None]:
        """Give the search the answer to its step; yield its computations until it waits for something else."""
        while True:
            try:
                self.step = self.steps.throw(answer) if isinstance(answer, Exception) else self.steps.send(answer)
            except StopIteration as end:
                self.step, self.outcome = None, end.value
                return
            except Failed as failed:
                self.step, self.outcome = None, failed
                return
            if not isinstance(self.step, Computation):
                return
            try:
                answer = yield self.step
            except Exception as error:  # noqa: BLE001 - the search deals with it
                answer = error


class Outcomes(NamedTuple):
    """What came of several searches.

    Attributes:
        outcomes: the response of each search, or the `Failed` that ended it.
        envelope: the answer of the multi-search without its responses; empty for a search by itself.
        has_responses: whether that answer had responses; ``filter_path`` may hide them.
    """

    outcomes: list[Any]
    envelope: dict[str, Any]
    has_responses: bool


def alone(
    steps: Generator[Step, Any, Any], vectors: SideVectors | None, header: Mapping[str, Any] | None = None
) -> ClientSteps:
    """Yield what a client performs for one search, and return its response.

    Args:
        steps: the search.
        vectors: reads side indices of document vectors; None if they are off.
        header: its header in a multi-search; None for a search by itself.

    Raises:
        Failed: the search engine refused the search.
    """
    outcomes = yield from together([(header, steps)], vectors)
    if isinstance(outcomes.outcomes[0], Failed):
        raise outcomes.outcomes[0]
    return outcomes.outcomes[0]


def together(
    searches: Sequence[tuple[Mapping[str, Any] | None, Generator[Step, Any, Any]]], vectors: SideVectors | None
) -> Generator[ClientStep, Any, Outcomes]:
    """Yield what a client performs for several searches, and return what came of them.

    Args:
        searches: each with its header in the multi-search; None for a search by itself.
        vectors: reads side indices of document vectors; None if they are off.
    """
    under_way = [_Search(steps, header) for header, steps in searches]
    envelope: dict[str, Any] = {}
    try:
        for search in under_way:
            yield from search.advance(None)
        while waiting := [search for search in under_way if search.step is not None]:
            batch = _next_batch(waiting)
            steps: list[Any] = [search.step for search in batch]
            if isinstance(steps[0], SearchRequest) and batch[0].header is not None:
                request = _multi_search(batch)
                answer = yield from _attempt(request)
                answers = _responses(answer, len(batch), any(step.is_first_pass for step in steps))
                if request.params:
                    answers = [_as_asked(answer, step) for answer, step in zip(answers, steps, strict=True)]
                envelope = {**answer, **envelope} if isinstance(answer, Mapping) else envelope
            elif isinstance(steps[0], Texts):
                answers = yield from _texts(steps)
            elif isinstance(steps[0], Records):
                answers = yield from _records(steps, vectors)
            else:
                answers = [(yield from _attempt(steps[0]))] * len(batch)
            for search, answer in zip(batch, answers, strict=True):
                yield from search.advance(answer)
    finally:
        for search in under_way:
            search.steps.close()
    has_responses = envelope.pop("responses", None) is not None
    return Outcomes([search.outcome for search in under_way], envelope, has_responses)


def _next_batch(waiting: Sequence[_Search]) -> list[_Search]:
    """Return the searches to serve next: the first that waits for no search request, and those that share its request.

    If all wait for search requests, all are returned, so that one multi-search carries them.
    """
    before_search = [search for search in waiting if not isinstance(search.step, SearchRequest)]
    step = (before_search or waiting)[0].step
    if isinstance(step, SearchRequest | Texts | Records):
        return [search for search in waiting if type(search.step) is type(step)]
    if isinstance(step, SideRequest) and step.method == "GET":  # such as the mapping
        return [search for search in waiting if search.step == step]
    return before_search[:1]


def _attempt(step: ClientStep) -> Generator[ClientStep, Any, Any]:
    """Yield a step; return its result, or the error that it raises."""
    try:
        return (yield step)
    except Exception as error:  # noqa: BLE001 - the searches that wait for it deal with it
        return error


def _multi_search(searches: Sequence[_Search]) -> MultiSearchRequest:
    """Return the request of several searches; if one of them asks for the scores of named queries, all get them."""
    steps = [(search.header, search.step) for search in searches if isinstance(search.step, SearchRequest)]
    lines = [line for header, step in steps for line in (header, step.body)]
    is_scored = any(requests_query_scores(step.params) for _, step in steps)
    return MultiSearchRequest(lines, params={SCORES_PARAM: "true"} if is_scored else {})


def _as_asked(answer: Any, step: SearchRequest) -> Any:
    """Return the answer to a search without the scores of its named queries, unless it has asked for them."""
    if requests_query_scores(step.params) or not (isinstance(answer, Mapping) and unchecked_hits(answer)):
        return answer
    return restore_caller_names(answer, has_scores=False)


def _responses(answer: Any, count: int, has_first_pass: bool) -> list[Any]:  # noqa: FBT001 - the argument of a private function
    """Return the response to each search of a multi-search, or its error; None for each if the answer hides them."""
    if isinstance(answer, Failed):
        answer.is_shared = has_first_pass
        return [answer] * count
    if isinstance(answer, Exception):
        return [answer] * count
    responses = answer.get("responses") if isinstance(answer, Mapping) else None
    if responses is None:
        return [None] * count
    return [
        _failed(response) if isinstance(response, Mapping) and "error" in response else response
        for response in responses
    ]


def _failed(response: Mapping[str, Any]) -> Failed:
    """Return the error of one search in a multi-search."""
    error = response["error"]
    cause = next(iter(error.get("root_cause") or ()), error) if isinstance(error, Mapping) else {"type": error}
    status = response.get("status")
    return Failed(
        response,
        status=status if isinstance(status, int) else 400,
        kind=str(cause.get("type") or ""),
        foreign=f"{cause.get('type')}: {cause.get('reason')}",
    )


def _texts(steps: Sequence[Any]) -> Generator[ClientStep, Any, list[Any]]:
    """Yield the request for the texts of one search's hits, or of several searches' at once; return the answers."""
    left_s = min(step.deadline.remaining_s() for step in steps)
    timeout = {} if left_s == math.inf else {"request_timeout": max(left_s, MIN_TIMEOUT_S)}
    if len(steps) == 1:
        step = steps[0]
        request = SideRequest("POST", build_path(step.indices, "_search"), step.body, timeout)
        return [(yield from _attempt(request))]
    lines = [line for step in steps for line in ({"index": step.indices}, step.body)]
    content = "".join(json.dumps(line) + "\n" for line in lines)
    answer = yield from _attempt(SideRequest("POST", "/_msearch", content, timeout))
    return _responses(answer, len(steps), has_first_pass=False)


def _records(steps: Sequence[Any], vectors: SideVectors | None) -> Generator[ClientStep, Any, list[Any]]:
    """Yield the requests for the records that searches lack, and return those of each search."""
    if vectors is None:
        return [{} for _ in steps]
    wanted = {key: index for step in steps for key, index in step.wanted.items()}
    try:
        records = yield from vectors.fetch(wanted, lambda: min(step.deadline.remaining_s() for step in steps))
    except Exception as error:  # noqa: BLE001 - the searches deal with it
        return [error] * len(steps)
    return [{key: records[key] for key in step.wanted if key in records} for step in steps]
