"""Bulk requests of a load: retries, refused documents, batches, and resuming."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from opensearchpy import OpenSearch
from opensearchpy.exceptions import AuthorizationException

from osrerank.errors import CorpusFormatError, LoaderError
from osrerank.testing import ManualClock
from osrerank.types import Document
from osrerank_loaders.load.bulk import (
    BulkBatch,
    BulkEntry,
    BulkOptions,
    BulkOutcome,
    Rejection,
    encode_document,
    send,
    send_all,
)
from osrerank_loaders.load.reading import RecordReader
from osrerank_loaders.load.retry import RetryBudget
from tests.rerank_server import Received, Reply, answering

HURRIED = RetryBudget(first_pause_s=0.001, longest_pause_s=0.01, give_up_s=2, timeout_s=0.5)
Script = Callable[[int, list[str]], tuple[int, dict[str, Any]] | None]


class FaultyServer:
    """A bulk endpoint that answers as its script says, and keeps what it was asked to create.

    The script gets the request's number, from 0, and its ids; None stands for the ordinary answer.
    """

    client: OpenSearch

    def __init__(self, script: Script) -> None:
        self.script, self.lock = script, threading.Lock()
        self.requests: list[list[str]] = []
        self.kept: dict[str, Any] = {}

    def answer(self, received: Received) -> Reply:
        ids = [row["create"]["_id"] for row in received.body[::2]]
        with self.lock:
            self.requests.append(ids)
            scripted = self.script(len(self.requests) - 1, ids)
            status, content = scripted or (200, self.create(dict(zip(ids, received.body[1::2], strict=True))))
        return Reply(content, status, (("Content-Type", "application/json"),))

    def create(self, documents: dict[str, Any]) -> dict[str, Any]:
        items = []
        for doc_id, source in documents.items():
            items.append({"create": {"status": 409 if doc_id in self.kept else 201}})
            self.kept.setdefault(doc_id, source)
        return {"errors": True, "items": items}


@pytest.fixture
def faulty_server() -> Iterator[Callable[[Script], FaultyServer]]:
    with ExitStack() as stack:

        def start(script: Script) -> FaultyServer:
            server = FaultyServer(script)
            running = stack.enter_context(answering(server.answer, lambda raw: [*map(json.loads, raw.splitlines())]))
            server.client = stack.enter_context(OpenSearch([running.url], max_retries=0))
            return server

        yield start


def entries(count: int) -> tuple[BulkEntry, ...]:
    return tuple(encode_document(Document(str(number), f"text {number}")) for number in range(count))


def item(status: int, reason: str = "") -> dict[str, Any]:
    error = {"error": {"type": "some_exception", "reason": reason}} if reason else {}
    return {"create": {"status": status, **error}}


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_bulk_request_is_repeated_if_the_server_is_busy(
    faulty_server: Callable[[Script], FaultyServer], status: int
) -> None:
    server = faulty_server(lambda number, _ids: (status, {"error": "busy"}) if number < 3 else None)
    assert send(server.client, "i", entries(5), HURRIED) == BulkOutcome(5)
    assert len(server.requests) == 4


def test_only_busy_documents_are_sent_again(faulty_server: Callable[[Script], FaultyServer]) -> None:
    def script(number: int, ids: list[str]) -> tuple[int, dict[str, Any]] | None:
        if number:
            return None
        statuses = [item(429, "queue is full") if int(doc_id) % 2 else item(201) for doc_id in ids]
        return 200, {"errors": True, "items": statuses}

    server = faulty_server(script)
    assert send(server.client, "i", entries(6), HURRIED) == BulkOutcome(6)
    assert server.requests == [["0", "1", "2", "3", "4", "5"], ["1", "3", "5"]]


@pytest.mark.long
def test_a_bulk_answer_after_the_timeout_loses_and_repeats_no_document(
    faulty_server: Callable[[Script], FaultyServer],
) -> None:
    late = threading.Event()
    server = faulty_server(lambda _number, _ids: None)
    original = server.create

    def slow_once(documents: dict[str, Any]) -> dict[str, Any]:
        answer = original(documents)
        if not late.is_set():
            late.set()
            threading.Event().wait(0.8)  # longer than the client waits
        return answer

    server.create = slow_once  # type: ignore[method-assign]  # a fault put in for this test
    outcome = send(server.client, "i", entries(4), HURRIED)
    assert (outcome.n_created, outcome.existing_ids) == (0, ("0", "1", "2", "3"))
    assert sorted(server.kept) == ["0", "1", "2", "3"]


def test_a_load_waits_for_a_missing_server_and_then_gives_up() -> None:
    client, clock = OpenSearch(["http://127.0.0.1:9"], max_retries=0), ManualClock()
    began_s = clock()
    with pytest.raises(LoaderError, match=r"OpenSearch has not responded for 300 s .* run the same command again"):
        send(client, "i", entries(1), RetryBudget(clock=clock, sleep=clock.sleep))
    assert 290 < clock() - began_s <= 302.5
    client.close()


def test_refused_documents_are_sent_again_alone_and_then_reported(
    faulty_server: Callable[[Script], FaultyServer],
) -> None:
    def script(_number: int, ids: list[str]) -> tuple[int, dict[str, Any]] | None:
        if not {"1", "2"} & set(ids):
            return None
        # Together both are refused; alone only the first.
        alone = len(ids) == 1
        refused = {"1"} if alone else {"1", "2"}
        return 200, {"items": [item(400, "mapping") if doc_id in refused else item(201) for doc_id in ids]}

    server = faulty_server(script)
    outcome = send(server.client, "i", entries(4), HURRIED)
    assert outcome == BulkOutcome(3, rejections=(Rejection("1", 400, "some_exception: mapping"),))
    assert server.requests == [["0", "1", "2", "3"], ["1"], ["2"]]


def test_a_bulk_request_that_is_too_large_is_split(faulty_server: Callable[[Script], FaultyServer]) -> None:
    def script(_number: int, ids: list[str]) -> tuple[int, dict[str, Any]] | None:
        return (413, {"error": "too large"}) if len(ids) > 1 or ids == ["2"] else None

    server = faulty_server(script)
    outcome = send(server.client, "i", entries(4), HURRIED)
    assert outcome.n_created == 3
    assert [(refusal.doc_id, refusal.status) for refusal in outcome.rejections] == [("2", 413)]


def test_a_forbidden_bulk_request_is_not_repeated(faulty_server: Callable[[Script], FaultyServer]) -> None:
    server = faulty_server(lambda _number, _ids: (403, {"error": "forbidden"}))
    with pytest.raises(AuthorizationException):
        send(server.client, "i", entries(2), HURRIED)
    assert len(server.requests) == 1


def test_batches_come_back_in_order_whatever_their_answers(faulty_server: Callable[[Script], FaultyServer]) -> None:
    server = faulty_server(lambda number, _ids: (429, {"error": "busy"}) if number % 3 == 0 else None)
    batches = [BulkBatch((entry,), index) for index, entry in enumerate(entries(40), 1)]
    ended = [
        batch.n_read for batch, _outcome in send_all(server.client, "i", batches, BulkOptions(retry_budget=HURRIED))
    ]
    assert ended == list(range(1, 41))
    assert len(server.kept) == 40


class TestReading:
    def test_batches_are_bounded_by_count_and_bytes(self) -> None:
        documents = [Document(str(number), "x" * (10 if number != 4 else 1000)) for number in range(9)]
        batches = list(RecordReader(documents).read_batches(BulkOptions(max_documents=3, max_bytes=300)))
        assert [[item.doc_id for item in batch.entries] for batch in batches] == [
            ["0", "1", "2"],
            ["3"],
            ["4"],  # over the limit: alone
            ["5", "6", "7"],
            ["8"],
        ]
        assert [batch.n_read for batch in batches] == [3, 4, 5, 8, 9]

    def test_bad_records_end_the_reading_or_are_counted(self) -> None:
        error = CorpusFormatError("bad")
        reader = RecordReader([Document("1", "x"), error, Document("2", "y")])
        (batch,) = reader.read_batches(BulkOptions())
        assert ([item.doc_id for item in batch.entries], batch.n_read) == (["1"], 1)
        assert reader.final_error is error
        reader = RecordReader([CorpusFormatError("a"), Document("1", "x"), CorpusFormatError("b")], max_skipped=2)
        (batch,) = reader.read_batches(BulkOptions())
        assert (reader.n_read, reader.n_skipped, reader.final_error, batch.n_read) == (3, 2, None, 3)
        assert [str(error) for error in reader.errors] == ["a", "b"]
        reader = RecordReader([Document("1", "x\ud800")], max_skipped=1)
        assert list(reader.read_batches(BulkOptions())) == []
        assert "record 1 of the collection: document '1' cannot be written as JSON in UTF-8" in str(reader.errors[0])

    def test_a_damaged_file_ends_the_reading_however_many_bad_records_may_be_skipped(self) -> None:
        def records() -> Iterator[Document]:
            yield Document("1", "x")
            raise CorpusFormatError("is truncated or damaged")

        reader = RecordReader(records(), max_skipped=100)
        assert len(list(reader.read_batches(BulkOptions()))) == 1
        assert (reader.n_skipped, str(reader.final_error)) == (0, "is truncated or damaged")

    def test_a_resumed_load_sends_only_the_remaining_documents(self) -> None:
        reader = RecordReader([Document(str(number), "x") for number in range(5)])
        (batch,) = reader.read_batches(BulkOptions(), n_done=3)
        assert ([item.doc_id for item in batch.entries], batch.n_read, reader.n_read) == (["3", "4"], 5, 5)
