"""Settings of states: where they go, how they are signed, and what is said of a Redis without TLS."""

import logging
from pathlib import Path

import pytest

from osrerank.errors import ConfigError
from osrerank.scoring.states.configured import States
from osrerank.scoring.states.file import FileStore
from osrerank.scoring.states.redis import RedisStore
from osrerank.settings import Settings


def test_states_go_to_a_file_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OSRERANK_STATES_FOLDER")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    states = States.of(Settings.load())
    assert isinstance(states.store, FileStore)
    assert states.store.folder == tmp_path / "osrerank" / "states"
    assert (states.bits, states.secret) == (8, b"")
    assert not list(tmp_path.iterdir())


def test_two_clients_of_a_process_share_the_file() -> None:
    assert States.of(Settings.load()).store is States.of(Settings.load()).store


def test_nothing_is_kept_where_they_are_off() -> None:
    assert States.of(Settings.load(states="off")).store is None


def test_a_key_of_any_length_signs_them() -> None:
    secrets = {States.of(Settings.load(states_key=key)).secret for key in ("a", "b", "long" * 100)}
    assert len(secrets) == 3
    assert {len(secret) for secret in secrets} == {32}


@pytest.mark.parametrize(
    ("url", "warns"), [("redis://127.0.0.1:1", False), ("redis://far:1", True), ("rediss://far:1", False)]
)
def test_a_redis_without_tls_is_warned_of(url: str, warns: bool, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        states = States.of(Settings.load(states="redis", states_redis_url=url))
    assert isinstance(states.store, RedisStore)
    assert ("without TLS" in caplog.text) is warns


def test_a_redis_must_be_named() -> None:
    with pytest.raises(ConfigError, match="OSRERANK_STATES_REDIS_URL"):
        States.of(Settings.load(states="redis"))
