"""The steps that a search yields, and that the synchronous or asynchronous client performs: requests and scoring."""

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

from osrerank.retrieval.requests import SideRequest
from osrerank.search.call import Plain


class SearchRequest(NamedTuple):
    """A request to OpenSearch's ``_search``.

    Attributes:
        call: holds the body and the URL parameters.
    """

    call: Plain


class Scoring(NamedTuple):
    """Computation that takes long and sends nothing to OpenSearch.

    Attributes:
        run: computes it; the asynchronous client calls it in a thread.
    """

    run: Callable[[], Any]


class MultiSearchRequest(NamedTuple):
    """A request to OpenSearch's ``_msearch``.

    Attributes:
        lines: headers and bodies, in turn.
    """

    lines: Sequence[Any]


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


Step = SideRequest | SearchRequest | MultiSearchRequest | Scoring | Later | Shadow
