"""Settings of vectors: where they go, how they are signed; and work that no search waits for."""

import logging
import os
import sys
import threading
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from click import Context
from click.testing import CliRunner

from osrerank import Rerank, Reranker, connect
from osrerank.cli import cli
from osrerank.cli.options import MODEL_OPTIONS, open_reranker
from osrerank.errors import ConfigError
from osrerank.settings import Settings
from osrerank.vectors.background import BackgroundTasks
from osrerank.vectors.file import FileStore
from osrerank.vectors.redis import RedisStore
from osrerank.vectors.storage import VectorStorage
from tests.bi_encoders import TINY
from tests.letters import Letters
from tests.waiting import held, in_a_child


def test_vectors_go_to_a_file_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OSRERANK_VECTORS_FOLDER")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    vectors = VectorStorage.from_settings(Settings.load())
    assert isinstance(vectors.store, FileStore)
    assert vectors.store.folder == tmp_path / "osrerank" / "vectors"
    assert (vectors.bits, vectors.secret) == (8, b"")
    assert not list(tmp_path.iterdir())
    assert VectorStorage.from_settings(Settings.load()).store is vectors.store
    assert VectorStorage.from_settings(Settings.load(vectors="off")).store is None


def test_vectors_are_dropped_only_after_confirmation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSRERANK_VECTORS_FOLDER", str(tmp_path / "vectors"))
    store = VectorStorage.from_settings(Settings.load()).store
    assert store is not None
    store.write({bytes(16): b"a record"})
    for answer, code, records_left in (("n", 1, 1), ("", 1, 1), ("y", 0, 0)):
        assert CliRunner().invoke(cli, ["vectors", "drop"], input=f"{answer}\n").exit_code == code
        assert store.size().records == records_left


def test_a_signing_key_of_any_length_signs_vectors() -> None:
    secrets = {VectorStorage.from_settings(Settings.load(vectors_key=key)).secret for key in ("a", "b", "long" * 100)}
    assert len(secrets) == 3
    assert {len(secret) for secret in secrets} == {32}


@pytest.mark.parametrize(
    ("url", "warns"), [("redis://127.0.0.1:1", False), ("redis://far:1", True), ("rediss://far:1", False)]
)
def test_keeping_vectors_in_a_remote_redis_without_tls_is_warned_of(
    url: str, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        vectors = VectorStorage.from_settings(Settings.load(vectors="redis", redis_url=url))
    assert isinstance(vectors.store, RedisStore)
    assert ("without TLS" in caplog.text) is warns


def test_without_a_side_index_a_configured_redis_keeps_vectors() -> None:
    redis = {"redis_url": "redis://127.0.0.1:1"}
    for settings, has_index, is_redis in (
        (redis, False, True), (redis, True, False), ({**redis, "vectors": "file"}, False, False), ({}, False, False),
        ({**redis, "vectors": "redis"}, True, True), ({**redis, "vectors": "index"}, False, False),
    ):  # fmt: skip
        store = VectorStorage.from_settings(Settings.load(**settings), has_index=has_index).store
        assert isinstance(store, RedisStore) is is_redis
    with pytest.raises(ConfigError, match="OSRERANK_VECTORS is redis, but OSRERANK_REDIS_URL is not set"):
        VectorStorage.from_settings(Settings.load(vectors="redis"))


def test_only_clients_of_a_cluster_have_a_side_index() -> None:
    url = "redis://127.0.0.1:1"
    context = Context(cli, obj={**dict.fromkeys(MODEL_OPTIONS), "model": str(TINY), "redis_url": url})
    client = connect("http://localhost:9", scorer=Letters(), redis_url=url)
    with Reranker(scorer=Letters(), redis_url=url) as reranker, closing(open_reranker(context)) as served:
        services = reranker._service, served, client.searcher.service
        stores = [type(service.load_vectors(Rerank()).store) for service in services]
    assert stores == [RedisStore, RedisStore, FileStore]


def test_background_tasks_run_in_order_and_closing_waits_for_them() -> None:
    background, done = BackgroundTasks(max_weight=20), list[int]()
    assert all(background.submit(partial(done.append, number)) for number in range(20))
    background.close()
    assert done == list(range(20))
    assert background.submit(lambda: done.append(20))  # it begins again
    background.close()
    assert done[-1] == 20


def test_background_tasks_beyond_the_bound_are_dropped() -> None:
    background = BackgroundTasks(max_weight=2)
    hold = held(background)
    assert [background.submit(lambda: None) for _ in range(3)] == [True, True, False]
    hold.set()
    background.close()


def test_background_tasks_may_run_newest_first_and_drop_the_oldest() -> None:
    background, done = BackgroundTasks(max_weight=10, newest_first=True), list[int]()
    hold = held(background)
    for number, weight in enumerate((4, 4, 4, 2)):
        assert background.submit(partial(done.append, number), weight)
    hold.set()
    background.close()
    assert done == [3, 2, 1]


def test_a_failed_background_task_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    background, done = BackgroundTasks(), list[int]()
    background.submit(lambda: 1 // 0)
    background.submit(sys.exit)
    background.submit(lambda: done.append(1))
    background.close()
    assert done == [1]
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_has_no_background_tasks_of_its_parent() -> None:
    background, hold = BackgroundTasks(), threading.Event()
    background.submit(lambda: hold.wait(10))

    def works() -> bool:
        done: list[int] = []
        background.submit(lambda: done.append(1))
        background.close()
        return done == [1]

    assert in_a_child(works)
    hold.set()
    background.close()
