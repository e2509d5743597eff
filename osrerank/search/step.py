"""What a search asks its client to do, step by step: send a request, run a computation, or queue work for later."""

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
        is_first_pass: whether the request fetches candidates for reranking. If False, it is the caller's own request.
        is_template: whether the body is a search template, which goes to ``_search/template``.
    """

    body: Any
    params: Mapping[str, Any]
    is_first_pass: bool = False
    is_template: bool = False


class MultiSearchRequest(NamedTuple):
    """A request to ``_msearch``.

    Attributes:
        lines: the searches' headers and bodies, in turn.
        is_template: whether the bodies are search templates, which go to ``_msearch/template``.
        params: URL parameters in addition to the caller's.
    """

    lines: Sequence[Any]
    is_template: bool = False
    params: Mapping[str, Any] = MappingProxyType({})


class ReadTexts(NamedTuple):
    """A request for the texts of documents by their ids.

    Attributes:
        indices: the documents' indices.
        body: the request's body.
        deadline: the search's deadline.
    """

    indices: Sequence[str]
    body: Mapping[str, Any]
    deadline: Deadline


class ReadRecords(NamedTuple):
    """A request for records of document vectors, which side indices store.

    Attributes:
        index_by_key: the index of each record's document, by the record's key.
        deadline: the search's deadline.
    """

    index_by_key: Mapping[bytes, str]
    deadline: Deadline


class Computation(NamedTuple):
    """Work that may take long and sends no requests to the search engine.

    Attributes:
        run: the function that does the work; the asynchronous client calls it in a thread.
    """

    run: Callable[[], Any]


class SendLater(NamedTuple):
    """Requests that the client sends in the background while the search goes on.

    Attributes:
        steps: the generator of the requests.
    """

    steps: Generator[SideRequest, Any, None]


class QueueShadowRun(NamedTuple):
    """A second, reranked run of a search in shadow mode, to be queued. The step's result is whether the queue had room.

    Attributes:
        steps: the generator of the second run's steps, which returns the record of the run.
    """

    steps: Generator[Any, Any, Any]


ClientStep = SideRequest | SearchRequest | MultiSearchRequest | Computation | SendLater | QueueShadowRun
"""The steps that a client performs."""
Step = SideRequest | SearchRequest | ReadTexts | ReadRecords | Computation | SendLater | QueueShadowRun
"""The steps that one search yields. `osrerank.search.lockstep` turns them into steps that a client performs."""
