"""Read result pages and clicks from the indices of User Behavior Insights (UBI, schema 1.3).

``ubi_queries`` contains the pages that users saw: ``query_id``, ``user_query`` and ``query_response_hit_ids``.
``ubi_events`` contains the users' actions: ``query_id``, ``action_name`` and ``event_attributes.object.object_id``. The
rank of a click is that of its document on the page. ``event_attributes.position`` is ignored, because some applications
count from 0.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from opensearchpy import NotFoundError

from osrerank.client import Client
from osrerank.decision.use.clicks import ShownPage
from osrerank.errors import EvaluationError
from osrerank.indexing.side_index import scroll_hits
from osrerank.search.ubi import EXPERIMENT, FIRST_RANK, SESSION, TEAMS

CLICK_ACTIONS = ("click", "click_through")
SCROLL_SIZE = 1_000
"""The number of documents that one request reads."""


@dataclass(frozen=True, slots=True)
class UbiSource:
    """The indices of UBI, and the records to read.

    Attributes:
        queries: the name of the index of searches.
        events: the name of the index of events.
        actions: the values of ``action_name`` that count as clicks.
        application: the application whose searches are read, or "" for all applications.
        since, until: the first and last time of the records to read, in ISO 8601, or "" for no limit.
    """

    queries: str = "ubi_queries"
    events: str = "ubi_events"
    actions: Sequence[str] = CLICK_ACTIONS
    application: str = ""
    since: str = ""
    until: str = ""


@dataclass(frozen=True, slots=True)
class UbiPages:
    """The pages that were read, and the number of clicks that belong to none of them.

    Attributes:
        pages: the pages. Records without an id, a query text or hits are left out.
        unmatched: the number of clicks whose search or document is not among the pages.
    """

    pages: tuple[ShownPage, ...]
    unmatched: int = 0


@dataclass(slots=True)
class _Clicks:
    """The documents clicked in a search, and the session of the clicks."""

    doc_ids: set[str] = field(default_factory=set)
    session: str = ""


def read_ubi(client: Client, source: UbiSource) -> UbiPages:
    """Return the pages that users were shown, with the clicks on them.

    If two records have the same ``query_id`` and first rank, the later one counts.

    Raises:
        EvaluationError: an index is missing.
    """
    clicks = _read_clicks(client, source)
    records: dict[tuple[str, int], Mapping[str, Any]] = {}  # by query id and first rank
    ignored_query_ids: set[str] = set()  # searches of other applications
    for record in _scroll_documents(client, source.queries, source):
        query_id = str(record.get("query_id") or "")
        if not query_id or not _query_text(record) or not record.get("query_response_hit_ids"):
            continue
        if source.application and source.application != record.get("application"):
            ignored_query_ids.add(query_id)
            continue
        key = query_id, _first_rank(record)
        previous_record = records.get(key)
        if previous_record is None or str(previous_record.get("timestamp")) <= str(record.get("timestamp")):
            records[key] = record
    pages = []
    matched_ids: defaultdict[str, set[str]] = defaultdict(set)  # the clicked documents on the pages of each search
    for (query_id, _), record in records.items():
        page = _create_page(record, clicks.get(query_id, _Clicks()))
        pages.append(page)
        matched_ids[query_id] |= page.clicked
    n_unmatched = 0
    for query_id, search_clicks in clicks.items():
        if query_id not in ignored_query_ids:
            n_unmatched += len(search_clicks.doc_ids - matched_ids[query_id])
    return UbiPages(tuple(pages), n_unmatched)


def _read_clicks(client: Client, source: UbiSource) -> dict[str, _Clicks]:
    """Return the clicks of each search, by query id."""
    clicks: defaultdict[str, _Clicks] = defaultdict(_Clicks)
    for event in _scroll_documents(client, source.events, source):
        query_id = event.get("query_id")
        object_ = (event.get("event_attributes") or {}).get("object") or {}
        object_id = object_.get("object_id", object_.get("internal_id"))
        if event.get("action_name") in source.actions and query_id and object_id is not None:
            search_clicks = clicks[str(query_id)]
            search_clicks.doc_ids.add(str(object_id))
            if not search_clicks.session:
                search_clicks.session = str(event.get("session_id") or event.get("client_id") or "")
    return dict(clicks)


def _create_page(record: Mapping[str, Any], clicks: _Clicks) -> ShownPage:
    attributes = record.get("query_attributes") or {}
    doc_ids = tuple(str(hit_id) for hit_id in record["query_response_hit_ids"])
    teams = str(attributes.get(TEAMS) or "")
    session = attributes.get(SESSION) or record.get("client_id") or clicks.session
    return ShownPage(
        query=_query_text(record),
        doc_ids=doc_ids,
        clicked=frozenset(clicks.doc_ids & set(doc_ids)),
        session=str(session or ""),
        first_rank=_first_rank(record),
        teams=teams if len(teams) == len(doc_ids) else "",  # a letter for each document
        experiment=str(attributes.get(EXPERIMENT) or ""),
    )


def _query_text(record: Mapping[str, Any]) -> str:
    """Return the query text without surrounding spaces. Newer versions of UBI store an object with a ``text``."""
    user_query = record.get("user_query")
    text = user_query.get("text") if isinstance(user_query, Mapping) else user_query
    return text.strip() if isinstance(text, str) else ""


def _first_rank(record: Mapping[str, Any]) -> int:
    """Return the rank of the page's first document, which is 1 if the record does not contain a valid rank."""
    first_rank = str((record.get("query_attributes") or {}).get(FIRST_RANK, "1"))
    return max(int(first_rank), 1) if first_rank.isdecimal() else 1


def _scroll_documents(client: Client, index: str, source: UbiSource) -> Iterator[Mapping[str, Any]]:
    """Yield the documents of an index whose timestamps are in the source's period."""
    bounds = {name: value for name, value in (("gte", source.since), ("lte", source.until)) if value}
    query: dict[str, Any] = {"range": {"timestamp": bounds}} if bounds else {"match_all": {}}
    body = {"size": SCROLL_SIZE, "query": query}
    try:
        for hit in scroll_hits(client, index, body):
            yield hit["_source"]
    except NotFoundError:
        reason = f"there is no index {index}; set the index that contains UBI's documents, or pass a file of clicks"
        raise EvaluationError(reason) from None
