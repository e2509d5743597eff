"""What the embedded engine keeps when an index is damaged, a document is unusable, or a process forks."""

import contextlib
import os
import signal
import sqlite3
from pathlib import Path

import pytest
from opensearchpy import OpenSearch, RequestError

from osrerank.embedded.errors import ApiError
from osrerank.embedded.storage.engine import MAX_WRITERS
from osrerank.embedded.storage.lock import FolderLock
from osrerank.embedded.storage.store import SqliteStore, StoredDocument
from tests.waiting import wait_until


def test_damage_to_one_index_takes_nothing_from_another(engine: OpenSearch, tmp_path: Path) -> None:
    never = {"settings": {"refresh_interval": "-1"}}
    for number in range(MAX_WRITERS + 1):
        engine.indices.create(index=f"i{number}", body=never)
        engine.index(index=f"i{number}", id="mapped", body={"text": "x"}, refresh=True)
    for number in range(1, MAX_WRITERS + 1):  # these have their writers open, with a document that waits
        engine.index(index=f"i{number}", id="waits", body={"text": "x"})
        (tmp_path / "engine" / f"index-{number + 1}").rename(tmp_path / f"gone-{number}")
    for doc_id in ("1", "2", "3"):
        engine.index(index="i0", id=doc_id, body={"text": "x"})
    assert [engine.exists(index="i0", id=doc_id) for doc_id in ("mapped", "1", "2", "3")] == [True] * 4
    engine.indices.refresh(index="i0")
    assert engine.count(index="i0")["count"] == 4
    for number in range(1, MAX_WRITERS + 1):
        assert engine.exists(index=f"i{number}", id="waits")


def test_a_sequence_number_given_twice_is_an_error(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    with store.transaction():
        index = store.create("a", {}, {}, {})
    with store.transaction():
        store.put(index, [StoredDocument(1, "one", 1, "{}"), StoredDocument(2, "one", 2, "{}")])
    with pytest.raises(ApiError, match="UNIQUE"), store.transaction():
        store.put(index, [StoredDocument(2, "two", 1, "{}")])
    assert store.get(index, "one") == StoredDocument(2, "one", 2, "{}")
    store.close()


def nested(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


@pytest.mark.parametrize(
    "body", [r'{"text": "\ud800"}', r'{"\udc00": 1}', nested(101), nested(3000), nested(100_000), '{"n": NaN}']
)
def test_document_that_cannot_be_indexed_is_refused(engine: OpenSearch, body: str) -> None:
    engine.index(index="a", id="good", body={"text": "x"})
    with pytest.raises(RequestError) as caught:
        engine.index(index="a", id="bad", body=body)
    assert caught.value.error == "mapper_parsing_exception"
    answer = engine.bulk(index="a", body=f'{{"index": {{"_id": "bad"}}}}\n{body}\n')
    assert answer["items"][0]["index"]["status"] == 400
    engine.indices.refresh(index="a")
    assert engine.count(index="a")["count"] == 1


def test_id_that_utf8_cannot_hold_is_refused(engine: OpenSearch) -> None:
    answer = engine.bulk(index="a", body='{"index": {"_id": "\\ud800"}}\n{"text": "x"}\n')
    assert answer["items"][0]["index"]["status"] == 400


def test_a_stored_document_that_cannot_be_indexed_hides_no_other_document(engine, open_engine, tmp_path, caplog):
    engine.index(index="a", id="1", body={"text": "x"}, refresh=True)
    engine.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "engine" / "store.sqlite")) as db, db:
        db.execute("INSERT INTO docs_1 VALUES (2, 'bad', 1, ?)", (r'{"text": "\ud800"}',))
        db.execute("INSERT INTO docs_1 VALUES (3, 'good', 1, ?)", ('{"text": "x"}',))
    again = open_engine()
    again.indices.refresh(index="a")
    assert again.count(index="a")["count"] == 2
    assert "document [bad] of [a] cannot be searched" in caplog.text


@pytest.mark.long
def test_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    holder, second_lock = FolderLock(tmp_path), FolderLock(tmp_path)
    holder.acquire()
    process = os.fork()
    if process == 0:
        signal.pause()  # until it is killed
    holder.release()
    try:
        wait_until(second_lock.try_acquire)  # the child lets go of it when it runs
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        second_lock.release()
