"""Scorers of the backend ``http``, closed at the end."""

from contextlib import ExitStack, closing

import pytest

from osrerank.scoring.card import POINTWISE
from osrerank.scoring.registry import load
from osrerank.settings import Settings


@pytest.fixture
def scorer_of():
    """Return a function from settings to the scorer of a rerank server."""
    with ExitStack() as stack:

        def make(url, dialect="tei", **options):
            settings = Settings.load(backend="http", rerank_url=url, rerank_dialect=dialect, **options)
            return stack.enter_context(closing(load(settings, POINTWISE)))

        yield make


@pytest.fixture
def no_waiting(monkeypatch):
    """Let retries follow at once."""
    monkeypatch.setattr("osrerank.scoring.backends.http.connection.FIRST_WAIT_S", 0.0)
