"""The steps that a search yields, and that a client performs: requests, and computations."""

from collections.abc import Callable, Generator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from osrerank.retrieval.requests import SideRequest
from osrerank.types import Deadline


class SearchRequest(NamedTuple):
    """A request to ``_search``.

    Attributes:
        body: the request's body.
        params: the URL's parameters.
        is_first_pass: whether it is a first pass for reranking, and not the caller's own request.
        is_template: whether the body is a search template's, so that the request goes to ``_search/template``.
    """

    body: Any
    params: Mapping[str, Any]
    is_first_pass: bool = False
    is_template: bool = False


class MultiSearchRequest(NamedTuple):
    """A request to ``_msearch``.

    Attributes:
        lines: headers and bodies, in turn.
        is_template: whether the bodies are search templates', so that the request goes to ``_msearch/template``.
        params: URL parameters in addition to the caller's.
    """

    lines: Sequence[Any]
    is_template: bool = False
    params: Mapping[str, Any] = MappingProxyType({})


class Texts(NamedTuple):
    """Read the texts of documents by their ids.

    Attributes:
        indices: the documents' indices.
        body: the body of the request.
        deadline: the search's deadline.
    """

    indices: Sequence[str]
    body: Mapping[str, Any]
    deadline: Deadline


class Records(NamedTuple):
    """Read records of document vectors from side indices.

    Attributes:
        wanted: the key of each record -> the index of its document.
        deadline: the search's deadline.
    """

    wanted: Mapping[bytes, str]
    deadline: Deadline


class Computation(NamedTuple):
    """Work that may block and sends nothing to the search engine.

    Attributes:
        run: does it; the asynchronous client calls it in a thread.
    """

    run: Callable[[], Any]


class Later(NamedTuple):
    """Requests that the client sends in the background, without making the search wait for them.

    Attributes:
        steps: yields the requests.
    """

    steps: Generator[SideRequest, Any, None]


class Shadow(NamedTuple):
    """A second run of a search in shadow mode; the client queues it, and answers whether the queue had room.

    Attributes:
        steps: yields the search's steps, and returns its record.
    """

    steps: Generator[Any, Any, Any]


ClientStep = SideRequest | SearchRequest | MultiSearchRequest | Computation | Later | Shadow
"""What a client performs."""
Step = SideRequest | SearchRequest | Texts | Records | Computation | Later | Shadow
"""What one search yields; `osrerank.search.together` turns it into what a client performs."""
