"""Send documents in bulk requests, several at a time, and report each rejected document.

The requests create documents and never overwrite one. After a repeated request or a resumed load, the index therefore
contains no deleted copies, and BM25's statistics are exact. A rejected document is sent again in a separate request.
"""

import dataclasses
import json
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from opensearchpy import OpenSearch
from opensearchpy.exceptions import TransportError

from osrerank.types import Document
from osrerank_loaders.load.retry import RETRIED_STATUSES, RetryBudget, is_transient

_BAD_REQUEST = 400
_CONFLICT = 409
_TOO_LARGE = 413
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class BulkOptions:
    """How documents are sent.

    Attributes:
        max_bytes: the maximum size of a request, in bytes. A larger document gets a separate request.
        max_documents: the maximum number of documents in a request.
        in_flight: the number of requests that are sent at the same time.
        retry_budget: how long to wait for a server that is busy or does not respond.
    """

    max_bytes: int = 4 << 20
    max_documents: int = 2000
    in_flight: int = 4
    retry_budget: RetryBudget = field(default_factory=RetryBudget)


@dataclass(frozen=True, slots=True)
class BulkEntry:
    """A document, and its two lines in a bulk request."""

    doc_id: str
    body: bytes


@dataclass(frozen=True, slots=True)
class BulkBatch:
    """The entries of one request.

    ``n_read`` is the number of the collection's records up to the last entry, including bad records.
    """

    entries: tuple[BulkEntry, ...]
    n_read: int


@dataclass(frozen=True, slots=True)
class Rejection:
    """A document that the engine rejected."""

    doc_id: str
    status: int
    reason: str

    def to_json(self) -> dict[str, Any]:
        return {"_id": self.doc_id, "status": self.status, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class BulkOutcome:
    """The result of a batch.

    Attributes:
        n_created: the number of documents that were added to the index.
        existing_ids: the ids of the documents that the index already contained.
        rejections: the documents that the engine rejected again when each was sent in a separate request.
    """

    n_created: int
    existing_ids: tuple[str, ...] = ()
    rejections: tuple[Rejection, ...] = ()


class _SentBatch(NamedTuple):
    batch: BulkBatch
    outcome: Future[BulkOutcome]


def encode_document(document: Document) -> BulkEntry:
    """Encode a document for a bulk request.

    Raises:
        ValueError: the text is not valid Unicode (half of a surrogate pair), or the metadata is not valid JSON.
    """
    source = {"title": document.title, "text": document.text, **document.metadata}
    body = f'{{"create":{{"_id":{_encode(document.doc_id)}}}}}\n{_encode(source)}\n'
    return BulkEntry(document.doc_id, body.encode())


def send_all(
    client: OpenSearch, index: str, batches: Iterable[BulkBatch], options: BulkOptions
) -> Iterator[tuple[BulkBatch, BulkOutcome]]:
    """Send batches, ``in_flight`` at a time, and yield each batch with its outcome, in the order of the batches."""
    pending: deque[_SentBatch] = deque()
    with ThreadPoolExecutor(options.in_flight, thread_name_prefix="bulk") as pool:
        for batch in batches:
            outcome = pool.submit(send, client, index, batch.entries, options.retry_budget)
            pending.append(_SentBatch(batch, outcome))
            while len(pending) > options.in_flight or (pending and pending[0].outcome.done()):
                first = pending.popleft()
                yield first.batch, first.outcome.result()
        while pending:
            first = pending.popleft()
            yield first.batch, first.outcome.result()


def send(client: OpenSearch, index: str, entries: Sequence[BulkEntry], retry_budget: RetryBudget) -> BulkOutcome:
    """Send entries in one request, and repeat it while the server is busy. Then send each rejected entry separately."""
    outcome, rejected = _send_until_processed(client, index, entries, retry_budget)
    if len(entries) == 1:  # it was sent separately already
        return dataclasses.replace(outcome, rejections=tuple(rejection for _entry, rejection in rejected))
    for entry, _rejection in rejected:
        entry_outcome = send(client, index, (entry,), retry_budget)
        outcome = BulkOutcome(
            outcome.n_created + entry_outcome.n_created,
            outcome.existing_ids + entry_outcome.existing_ids,
            outcome.rejections + entry_outcome.rejections,
        )
    return outcome


def _send_until_processed(
    client: OpenSearch, index: str, entries: Sequence[BulkEntry], retry_budget: RetryBudget
) -> tuple[BulkOutcome, list[tuple[BulkEntry, Rejection]]]:
    """Send entries until each is in the index or rejected. Return the outcome, and the rejected entries."""
    n_created = 0
    existing_ids, rejected = [], []
    remaining = entries
    wait = retry_budget.start_waits()
    while remaining:
        retried, retry_reason = [], ""
        for entry, status, reason in _send_once(client, index, remaining, retry_budget.timeout_s):
            if status in RETRIED_STATUSES:
                retried.append(entry)
                retry_reason = reason
            elif status == _CONFLICT:
                existing_ids.append(entry.doc_id)
            elif status < _BAD_REQUEST:
                n_created += 1
            else:
                rejected.append((entry, Rejection(entry.doc_id, status, reason)))
        remaining = retried
        if remaining:
            wait(retry_reason)  # raises an error if the server has not responded for too long
    return BulkOutcome(n_created, tuple(existing_ids)), rejected


def _send_once(
    client: OpenSearch, index: str, entries: Sequence[BulkEntry], timeout_s: float
) -> Iterator[tuple[BulkEntry, int, str]]:
    """Send one request, and yield each entry with its status, such as 201, and the reason of an error, or ""."""
    try:
        response = client.bulk(
            body=b"".join(entry.body for entry in entries),
            index=index,
            params={"filter_path": "errors,items.*.status,items.*.error", "request_timeout": timeout_s},
        )
    except TransportError as error:
        # A single document may be to blame for a refused request. Each is then sent in a separate request.
        if not is_transient(error) and error.status_code not in {_TOO_LARGE, _BAD_REQUEST}:
            raise
        status = error.status_code if isinstance(error.status_code, int) else 503  # "N/A" without a response
        for entry in entries:
            yield entry, status, str(error.error)
        return
    for entry, item in zip(entries, response["items"], strict=True):
        (result,) = item.values()
        yield entry, result["status"], _describe_cause(result.get("error"))


def _describe_cause(error: Any) -> str:
    """Return the innermost cause of an error, such as "illegal_argument_exception: ...", or "" without an error."""
    while isinstance(error, dict):
        cause = error.get("caused_by")
        if not cause:
            return f"{error.get('type', '')}: {error.get('reason', '')}"
        error = cause
    return str(error or "")
