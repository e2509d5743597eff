import pytest

from osrerank import _platform
from osrerank.errors import OsrerankError


def test_a_lock_is_one_holders_until_it_is_closed(tmp_path):
    path = tmp_path / "lock"
    with path.open("w") as first:
        assert _platform.try_lock(first.fileno())
        with path.open("w") as second:
            assert not _platform.try_lock(second.fileno())
    with path.open("w") as third:
        assert _platform.try_lock(third.fileno())


def test_a_system_without_such_locks_is_told_in_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(_platform, "HAS_FILE_LOCKS", False)
    with (tmp_path / "lock").open("w") as file, pytest.raises(OsrerankError, match="this system has no flock"):
        _platform.try_lock(file.fileno())
