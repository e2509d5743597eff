"""The steps that a search yields, and that its client performs: requests, computations, and work in the background.

A search does no I/O itself, so that synchronous and asynchronous clients share its code.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from osrerank.retrieval.requests import SideRequest
from osrerank.types import Deadline


class SearchRequest(NamedTuple):
    """A request to ``_search``.

    Attributes:
        body: the request's body.
        params: the URL parameters.
        is_first_pass: whether the request fetches candidates for reranking. If not, it is the caller's own request.
        is_template: whether the body is a search template, which goes to ``_search/template``.
    """

    body: Any
    params: Mapping[str, Any]
    is_first_pass: bool = False
    is_template: bool = False


class MultiSearchRequest(NamedTuple):
    """A request to ``_msearch``.

    Attributes:
        lines: a header and a body for each search, such as ``[{"index": "notes"}, {"query": {...}}]``.
        is_template: whether the bodies are search templates, which go to ``_msearch/template``.
        params: URL parameters in addition to those of the caller.
    """

    lines: Sequence[Any]
    is_template: bool = False
    params: Mapping[str, Any] = MappingProxyType({})


class ReadTexts(NamedTuple):
    """A search for the texts of the hits, if the first pass's response does not have them.

    Attributes:
        indices: the indices of the hits.
        body: the request's body, which finds the hits by their ids.
        deadline: the deadline of the whole search.
    """

    indices: Sequence[str]
    body: Mapping[str, Any]
    deadline: Deadline


class ReadRecords(NamedTuple):
    """A request for the stored vectors of documents, which are records in indices beside the searched ones.

    Attributes:
        index_by_key: record's key -> name of the searched index that has the record's document, such as "notes".
        deadline: the deadline of the whole search.
    """

    index_by_key: Mapping[bytes, str]
    deadline: Deadline


class Computation(NamedTuple):
    """Work that may take long and sends no requests to the search engine.

    Attributes:
        run: the function that does the work. The asynchronous client calls it in a thread.
    """

    run: Callable[[], Any]


class SendLater(NamedTuple):
    """Requests that the client sends in the background while the search goes on.

    Attributes:
        steps: the generator of the requests.
    """

    steps: Generator[SideRequest, Any, None]


class QueueShadowRun(NamedTuple):
    """A second, reranked run of a search in shadow mode, which the client queues.

    The step's result is whether the queue had room.

    Attributes:
        steps: the generator of the second run's steps. It returns a record of how the order changed.
    """

    steps: Generator[Any, Any, Any]


ClientStep = SideRequest | SearchRequest | MultiSearchRequest | Computation | SendLater | QueueShadowRun
"""A step that a client performs."""
Step = SideRequest | SearchRequest | ReadTexts | ReadRecords | Computation | SendLater | QueueShadowRun
"""A step that one search yields. `osrerank.search.lockstep` combines the steps of searches into steps of the client."""
