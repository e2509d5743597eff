"""The text fields of indices, found by their mappings and kept while these stay the same.

Written as generators of requests, so that the synchronous and the asynchronous client send the same.
"""

import logging
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

from opensearchpy import NotFoundError, TransportError

from osrerank.errors import ResponseFormatError
from osrerank.retrieval.kept import KEPT_S, Kept
from osrerank.retrieval.requests import SideRequest, path_of
from osrerank.retrieval.text_fields import USUAL, choose_fields, fields_in

logger = logging.getLogger(__name__)

FRESH_S = 0.1
"""How long a mapping is not read again, even where searches find nothing."""
SAMPLE = 20
"""Documents whose values are looked at."""


@dataclass(frozen=True, slots=True)
class _Known:
    mapped: tuple[str, ...]
    chosen: tuple[str, ...]


class FoundFields:
    """What is searched and read in indices whose fields nobody named. Safe to use from many threads.

    Args:
        clock: gives seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._known: Kept[str, _Known] = Kept(clock)
        self._missing: Kept[tuple[str, tuple[str, ...]], str] = Kept(clock)

    def of(self, index: Any, *, anew: bool = False) -> Generator[SideRequest, Any, tuple[str, ...]]:
        """Yield the requests that are needed, mostly none, and return the fields.

        ``title`` and ``text`` where the mapping has either, else `osrerank.retrieval.text_fields.choose_fields`. Where
        the mapping cannot be read, they are ``title`` and ``text``, and a log line says so.

        Args:
            index: a name, several, a pattern, or None for all.
            anew: whether to read the mapping again, because a search found nothing to read.
        """
        path = path_of(index, "_mapping")
        known = self._known.get(path, most_s=FRESH_S if anew else KEPT_S)
        if known is not None:
            return known.chosen
        try:
            mapped = fields_in((yield SideRequest("GET", path)))
            chosen = yield from self._chosen(index, mapped, self._known.last(path))
        except NotFoundError:  # as the search will say
            return USUAL
        except (TransportError, ResponseFormatError) as error:
            logger.warning(
                "[mapping-unread] the mapping of %s cannot be read, title and text are searched: %s",
                index or "all",
                error,
            )
            return USUAL
        if chosen and mapped:
            self._known.put(path, _Known(mapped, chosen))
        return chosen

    def missing(self, index: Any, named: Sequence[str]) -> Generator[SideRequest, Any, str]:
        """Yield the request for a mapping, and return which of the named fields it lacks, as a sentence; empty if none.

        The log has it too, each time that the mapping is read.

        Args:
            index: as `of` has it.
            named: fields as options name them: with boosts, patterns, ``highlight:`` or ``inner_hits:``.
        """
        path = path_of(index, "_mapping")
        key = path, tuple(named)
        known = self._missing.get(key)
        if known is not None:
            return known
        try:
            sentence = _missing((yield SideRequest("GET", path)), named)
        except (TransportError, ResponseFormatError):
            return ""
        if sentence:
            logger.warning("[fields-missing] search of %s: %s", index or "all indices", sentence)
        self._missing.put(key, sentence)
        return sentence

    def _chosen(
        self, index: Any, mapped: Sequence[str], known: _Known | None
    ) -> Generator[SideRequest, Any, tuple[str, ...]]:
        if known is not None and known.mapped == tuple(mapped):
            return known.chosen
        if not mapped or set(USUAL) & set(mapped):
            return USUAL
        body = {"query": {"match_all": {}}, "size": SAMPLE, "_source": list(mapped)}
        found = yield SideRequest("POST", path_of(index, "_search"), body, {"search_pipeline": "_none"})
        chosen = choose_fields(mapped, [hit.get("_source") or {} for hit in found["hits"]["hits"]])
        logger.info("searching %s in %s", index or "all indices", ", ".join(chosen))
        return chosen


def _missing(mappings: Any, named: Sequence[str]) -> str:
    """Return which of the named fields mappings lack, as a sentence; empty if none."""
    there = fields_in(mappings)
    wanted = [name.partition("^")[0] for name in named if ":" not in name and "*" not in name]
    kinds = ("properties", "derived")  # a derived field is computed by a script, and searched like any other
    every = {path for one in mappings.values() for kind in kinds for path in _paths(one["mappings"].get(kind, {}))}
    lacking = [name for name in dict.fromkeys(wanted) if name not in every]
    if not lacking:
        return ""
    return f"the mapping has no {', '.join(lacking)}; its text fields are {', '.join(there) or 'none'}"


def _paths(properties: Any, above: str = "") -> Generator[str]:
    """Yield the names of all fields, those below others with dots."""
    for name, field in properties.items():
        yield f"{above}{name}"
        for below in ("properties", "fields"):
            yield from _paths(field.get(below, {}), f"{above}{name}.")
