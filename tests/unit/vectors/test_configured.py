"""Settings of vectors: where they go, how they are signed, and what is said of a Redis without TLS."""

import logging
from pathlib import Path

import pytest

from osrerank.errors import ConfigError
from osrerank.settings import Settings
from osrerank.vectors.configured import VectorStorage
from osrerank.vectors.file import FileStore
from osrerank.vectors.redis import RedisStore


def test_vectors_go_to_a_file_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OSRERANK_VECTORS_FOLDER")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    vectors = VectorStorage.of(Settings.load())
    assert isinstance(vectors.store, FileStore)
    assert vectors.store.folder == tmp_path / "osrerank" / "vectors"
    assert (vectors.bits, vectors.secret) == (8, b"")
    assert not list(tmp_path.iterdir())
    assert VectorStorage.of(Settings.load()).store is vectors.store
    assert VectorStorage.of(Settings.load(vectors="off")).store is None


def test_a_key_of_any_length_signs_them() -> None:
    secrets = {VectorStorage.of(Settings.load(vectors_key=key)).secret for key in ("a", "b", "long" * 100)}
    assert len(secrets) == 3
    assert {len(secret) for secret in secrets} == {32}


@pytest.mark.parametrize(
    ("url", "warns"), [("redis://127.0.0.1:1", False), ("redis://far:1", True), ("rediss://far:1", False)]
)
def test_a_redis_without_tls_is_warned_of(url: str, warns: bool, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        vectors = VectorStorage.of(Settings.load(vectors="redis", vectors_redis_url=url))
    assert isinstance(vectors.store, RedisStore)
    assert ("without TLS" in caplog.text) is warns


def test_without_an_index_a_redis_that_is_named_keeps_them() -> None:
    named = {"redis_url": "redis://127.0.0.1:1"}
    for settings, has_index, is_redis in (
        (named, False, True), (named, True, False), ({**named, "vectors": "file"}, False, False), ({}, False, False),
    ):  # fmt: skip
        store = VectorStorage.of(Settings.load(**settings), has_index=has_index).store
        assert isinstance(store, RedisStore) is is_redis
    with pytest.raises(ConfigError, match="OSRERANK_VECTORS_REDIS_URL"):
        VectorStorage.of(Settings.load(vectors="redis"))
