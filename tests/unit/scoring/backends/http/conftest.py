"""Scorers of the backend ``http``, closed at the end."""

from contextlib import ExitStack, closing

import pytest

from osrerank.scoring.card import POINTWISE
from osrerank.scoring.registry import load
from osrerank.settings import Settings
from tests.rerank_server import server_file


@pytest.fixture
def settings_of(tmp_path):
    """Return a function from keys of ``[http]``, and settings, to the settings of a rerank server."""

    def make(url, dialect="tei", *, http=None, **settings):
        file = server_file(tmp_path, url, dialect=dialect, **(http or {}))
        return Settings.load(backend="http", settings_file=file, **settings)

    return make


@pytest.fixture
def scorer_of(settings_of):
    """Return a function, with the arguments of `settings_of`, to the scorer of a rerank server."""
    with ExitStack() as stack:

        def make(*arguments, **options):
            return stack.enter_context(closing(load(settings_of(*arguments, **options), POINTWISE)))

        yield make


@pytest.fixture
def no_waiting(monkeypatch):
    """Let retries follow at once."""
    monkeypatch.setattr("osrerank.scoring.backends.http.connection.FIRST_WAIT_S", 0.0)
