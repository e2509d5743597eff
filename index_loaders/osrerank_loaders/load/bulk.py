"""Send documents in bulk requests, several at a time, each bounded in bytes and documents; report every refusal.

The requests create documents and never overwrite one: after a repeated request or a resumed load the index has no
deleted copies, so BM25's statistics are exact. A refused document is sent once more alone, then reported.
"""

import dataclasses
import json
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from opensearchpy import OpenSearch
from opensearchpy.exceptions import TransportError

from osrerank.types import Document
from osrerank_loaders.load.retry import RETRIED_STATUSES, RetryBudget, is_transient

_CONFLICT, _TOO_LARGE, _BAD_REQUEST = 409, 413, 400
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class BulkOptions:
    """How documents are sent.

    Attributes:
        max_bytes: the maximum size of a request in bytes; a larger document gets a request of its own.
        max_documents: the maximum number of documents in a request.
        in_flight: the number of requests at a time.
        retry_budget: how long to wait for a server that is busy or does not respond.
    """

    max_bytes: int = 4 << 20
    max_documents: int = 2000
    in_flight: int = 4
    retry_budget: RetryBudget = field(default_factory=RetryBudget)


@dataclass(frozen=True, slots=True)
class BulkEntry:
    """A document as a bulk request carries it."""

    doc_id: str
    body: bytes


@dataclass(frozen=True, slots=True)
class BulkBatch:
    """The entries of one request; ``end`` is the number of records read from the collection up to its last entry."""

    entries: tuple[BulkEntry, ...]
    end: int


@dataclass(frozen=True, slots=True)
class Rejection:
    """A document that OpenSearch refused."""

    doc_id: str
    status: int
    reason: str

    def as_dict(self) -> dict[str, Any]:
        return {"_id": self.doc_id, "status": self.status, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class BulkOutcome:
    """The result of a batch.

    Attributes:
        created: the number of documents that are new in the index.
        present: the ids of documents that the index had before.
        rejected: the documents that were refused even when sent alone.
    """

    created: int
    present: tuple[str, ...] = ()
    rejected: tuple[Rejection, ...] = ()


def entry(document: Document) -> BulkEntry:
    """Encode a document for a bulk request.

    Raises:
        ValueError: its text is not valid Unicode (half of a surrogate pair), or its metadata cannot be JSON.
    """
    source = {"title": document.title, "text": document.text, **document.metadata}
    body = f'{{"create":{{"_id":{_encode(document.doc_id)}}}}}\n{_encode(source)}\n'
    return BulkEntry(document.doc_id, body.encode())


def send_all(
    client: OpenSearch, index: str, batches: Iterable[BulkBatch], options: BulkOptions
) -> Iterator[tuple[BulkBatch, BulkOutcome]]:
    """Send batches, ``in_flight`` at a time; yield each with its outcome, in order.

    When a batch is yielded, its documents and those of all earlier batches are in the index, on disk.
    """
    pending: deque[tuple[BulkBatch, Future[BulkOutcome]]] = deque()
    with ThreadPoolExecutor(options.in_flight, thread_name_prefix="bulk") as pool:
        for batch in batches:
            pending.append((batch, pool.submit(send, client, index, batch.entries, options.retry_budget)))
            while len(pending) > options.in_flight or (pending and pending[0][1].done()):
                first, outcome = pending.popleft()
                yield first, outcome.result()
        while pending:
            first, outcome = pending.popleft()
            yield first, outcome.result()


def send(client: OpenSearch, index: str, entries: Sequence[BulkEntry], retry_budget: RetryBudget) -> BulkOutcome:
    """Send entries in one request, again while the server is busy; then send each refused entry once more by itself."""
    outcome, refused = _send_until_answered(client, index, entries, retry_budget)
    if len(entries) == 1:
        return dataclasses.replace(outcome, rejected=tuple(rejection for _entry, rejection in refused))
    for entry_refused, _rejection in refused:
        sent_singly = send(client, index, (entry_refused,), retry_budget)
        outcome = BulkOutcome(
            outcome.created + sent_singly.created,
            outcome.present + sent_singly.present,
            outcome.rejected + sent_singly.rejected,
        )
    return outcome


def _send_until_answered(
    client: OpenSearch, index: str, entries: Sequence[BulkEntry], retry_budget: RetryBudget
) -> tuple[BulkOutcome, list[tuple[BulkEntry, Rejection]]]:
    """Send entries again until each is in the index or refused; return the outcome and the refused entries."""
    created, present, refused = 0, [], []
    remaining, wait = entries, retry_budget.waits()
    while remaining:
        retried, busy = [], ""
        for item, status, reason in _attempt(client, index, remaining, retry_budget.timeout_s):
            if status in RETRIED_STATUSES:
                retried.append(item)
                busy = reason
            elif status == _CONFLICT:
                present.append(item.doc_id)
            elif status < _BAD_REQUEST:
                created += 1
            else:
                refused.append((item, Rejection(item.doc_id, status, reason)))
        remaining = retried
        if remaining:
            wait(busy)
    return BulkOutcome(created, tuple(present)), refused


def _attempt(
    client: OpenSearch, index: str, entries: Sequence[BulkEntry], timeout_s: float
) -> Iterator[tuple[BulkEntry, int, str]]:
    """Send one request; yield each entry with its HTTP status and the reason of a refusal."""
    try:
        response = client.bulk(
            body=b"".join(item.body for item in entries),
            index=index,
            params={"filter_path": "errors,items.*.status,items.*.error", "request_timeout": timeout_s},
        )
    except TransportError as error:
        if not is_transient(error) and error.status_code not in {_TOO_LARGE, _BAD_REQUEST}:
            raise
        status = error.status_code if isinstance(error.status_code, int) else 503
        for item in entries:
            yield item, status, str(error.error)
        return
    for item, answer in zip(entries, response["items"], strict=True):
        (result,) = answer.values()
        yield item, result["status"], _reason(result.get("error"))


def _reason(error: Any) -> str:
    """Return the innermost cause of an item's error."""
    while isinstance(error, dict):
        cause = error.get("caused_by")
        if not cause:
            return f"{error.get('type', '')}: {error.get('reason', '')}"
        error = cause
    return str(error or "")
