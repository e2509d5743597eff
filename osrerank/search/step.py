"""What a search asks of whoever performs it: to send a request, or to score."""

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

from osrerank.retrieval.requests import SideRequest
from osrerank.search.call import Plain


class SearchRequest(NamedTuple):
    """A request to OpenSearch's ``_search``.

    Attributes:
        call: has the body and the URL parameters.
    """

    call: Plain


class Scoring(NamedTuple):
    """Work that takes long and sends nothing to OpenSearch.

    Attributes:
        run: does it; an event loop calls it in a thread.
    """

    run: Callable[[], Any]


class MultiSearchRequest(NamedTuple):
    """A request to OpenSearch's ``_msearch``.

    Attributes:
        lines: headers and bodies, in turn.
    """

    lines: Sequence[Any]


class Later(NamedTuple):
    """Requests that nobody waits for: the client sends them after the search has returned.

    Attributes:
        steps: yields them.
    """

    steps: Generator[SideRequest, Any, None]


class Shadow(NamedTuple):
    """A second run of a search in shadow mode; the client queues it, and answers whether there was room.

    Attributes:
        steps: yields the search's steps, and returns its record.
    """

    steps: Generator[Any, Any, Any]


Step = SideRequest | SearchRequest | MultiSearchRequest | Scoring | Later | Shadow
