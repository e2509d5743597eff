"""Record which hits users saw, in the index ``ubi_queries`` of User Behavior Insights (UBI, schema 1.3).

A record lists the hits of the page that was returned. If two rankings were interleaved, it also has the ranking that
each hit comes from.
"""

import logging
import time
import uuid
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from osrerank._pause import Pause
from osrerank.retrieval.requests import SideRequest
from osrerank.search.report import Report
from osrerank.search.ubi_query import UbiQuery
from osrerank.types import Deadline
from osrerank.types.engine_errors import EngineError

logger = logging.getLogger(__name__)

INDEX = "ubi_queries"
# The names of the ``query_attributes`` that osrerank adds, and what their values, which are texts, say:
APPLIED = "osrerank_applied"  # whether the hits were reranked: "true", "false" or "partial"
TEAMS = "osrerank_teams"  # which of two interleaved rankings each hit comes from, such as "ABBA"
SESSION = "osrerank_session"  # a digest of the key of an interleaved search's user
EXPERIMENT = "osrerank_experiment"  # the name that the options give to the interleaving
FIRST_RANK = "osrerank_first_rank"  # the rank of the page's first hit, such as "21"
CHOSEN = "osrerank_chosen"  # whether the search is in the share of searches that are reranked
MIN_TIMEOUT_S = 0.1
"""The minimum timeout of the request that records a search, in seconds, however close the deadline is."""
MAX_TIMEOUT_S = 2.0
"""The maximum timeout of the request that records a search, in seconds."""
PAUSE_S = 10.0
"""How long nothing is recorded after a failure, in seconds, so that searches do not wait for the engine."""
INDEX_EXISTS = "resource_already_exists_exception"
"""The type of the engine's error if another process has just created the index."""
_KEYWORD = {"type": "keyword", "ignore_above": 100}
_TEXT = {"type": "text", "fields": {"keyword": {"type": "keyword", "ignore_above": 256}}}
_FIELDS: dict[str, Any] = {
    "timestamp": {"type": "date"},
    "query_id": _KEYWORD,
    "query": {"type": "text"},
    "query_response_id": _KEYWORD,
    "query_response_hit_ids": {"type": "keyword"},
    "user_query": _TEXT,
    "client_id": _KEYWORD,
    "application": _KEYWORD,
}


class UbiRecords:
    """Records the searches that have ``ext.ubi`` in their body. If that fails, the response and the log say why.

    Safe to use from many threads.

    Args:
        is_embedded: whether the search engine is osrerank's embedded engine.
        clock: returns the time in seconds.
    """

    def __init__(self, *, is_embedded: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._is_embedded = is_embedded
        self._pause = Pause(PAUSE_S, clock=clock)
        self._has_index = False

    def record(
        self, ubi: UbiQuery, report: Report, *, text: str, session: str, deadline: Deadline
    ) -> Generator[SideRequest, Any, Report]:
        """Record a search. Return its report with the query id, in the same place of the response as the plugin's.

        Args:
            ubi: the content of the search's ``ext.ubi``.
            report: the report of the search, with its page of hits.
            text: the query text that the hits were reranked by.
            session: a digest that identifies the user of an interleaved search. Empty for all other searches.
            deadline: the deadline of the search.
        """
        if self._pause.is_on:
            reason = "the engine refused an earlier record, and recording pauses"
        else:
            try:
                record = make_record(ubi, report, text=text, session=session)
            except KeyError as error:
                reason = f"a hit has no field {error.args[0]!r}, which ext.ubi names as object_id_field"
            else:
                timeout_s = min(max(deadline.remaining_s(), MIN_TIMEOUT_S), MAX_TIMEOUT_S)
                reason = yield from self._write(record, timeout_s)
        if reason:
            logger.warning("[ubi-lost] a search was not recorded in %s: %s", INDEX, reason)
        report = report.with_entries(ubi={"recorded": not reason, "reason": reason or None, "query_id": ubi.query_id})
        return replace(report, ext={"ubi": {"query_id": ubi.query_id}})

    def _write(self, record: Mapping[str, Any], timeout_s: float) -> Generator[SideRequest, Any, str]:
        """Write a record. Return why it was not written, or an empty string if it was."""
        params = {"request_timeout": timeout_s}
        try:
            has_index = self._has_index or (yield SideRequest("HEAD", f"/{INDEX}", params=params))
            if not has_index:
                try:
                    yield SideRequest("PUT", f"/{INDEX}", index_body(is_embedded=self._is_embedded), params)
                except EngineError as error:
                    if error.kind != INDEX_EXISTS:
                        raise
            self._has_index = True
            yield SideRequest("POST", f"/{INDEX}/_doc", record, params)
        except EngineError as error:
            self._has_index = False
            self._pause.begin(error)
            return error.kind or error.external_message
        return ""


def index_body(*, is_embedded: bool) -> dict[str, Any]:
    """Return the body that creates the index with the plugin's mapping, or a simpler one for the embedded engine."""
    if not is_embedded:
        return {"mappings": {"dynamic": False, "properties": {**_FIELDS, "query_attributes": {"type": "flat_object"}}}}
    simple_fields = {name: {"type": "keyword"} if mapping is _KEYWORD else mapping for name, mapping in _FIELDS.items()}
    simple_fields["user_query"] = {"type": "text"}
    return {"mappings": {"properties": {**simple_fields, "query_attributes": {"type": "object", "enabled": False}}}}


def make_record(ubi: UbiQuery, report: Report, *, text: str = "", session: str = "") -> dict[str, Any]:
    """Return the UBI record of a search.

    Args:
        ubi: the content of the search's ``ext.ubi``.
        report: the report of the search, with its page of hits.
        text: the query text that the hits were reranked by. It is recorded if ``ubi`` has no user query.
        session: a digest that identifies the user of an interleaved search.

    Raises:
        KeyError: a hit has no ``_id``, or lacks the field that identifies it.
    """
    interleaved = report.entries.get("interleave") or {}
    attributes = {APPLIED: str(report.applied).lower(), FIRST_RANK: str(ubi.first_rank)}
    if "traffic" in report.entries:
        attributes[CHOSEN] = str(report.entries["traffic"]["chosen"]).lower()
    if interleaved.get("applied"):
        attributes |= {TEAMS: interleaved["teams"], SESSION: session, EXPERIMENT: interleaved["name"]}
    optional = {"client_id": ubi.client_id, "application": ubi.application, "object_id_field": ubi.object_id_field}
    return {
        "timestamp": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "query_id": ubi.query_id,
        "user_query": ubi.user_query or text,
        "query": ubi.query,
        "query_response_id": str(uuid.uuid4()),
        "query_response_hit_ids": [_object_id(hit, ubi.object_id_field) for hit in report.hits or ()],
        "query_attributes": {**ubi.attributes, **attributes},
        **{name: value for name, value in optional.items() if value},
    }


def _object_id(hit: Mapping[str, Any], id_field: str) -> str:
    """Return the value that identifies a hit.

    Args:
        hit: the hit.
        id_field: the field of ``_source`` or ``fields`` that has the value. If empty, the value is the ``_id``.

    Raises:
        KeyError: the hit has no such value.
    """
    if not id_field:
        return str(hit["_id"])
    source, fields = hit.get("_source") or {}, hit.get("fields") or {}
    value = source.get(id_field, fields.get(id_field))
    if value is None:
        raise KeyError(id_field)
    return str(value[0] if isinstance(value, list) else value)
