"""Scorers of the backend ``http``, closed at the end."""

import pytest

from osrerank.scoring.card import POINTWISE
from osrerank.scoring.registry import load
from osrerank.settings import Settings


@pytest.fixture
def scorer_of():
    """Return a function from settings to the scorer of a rerank server."""
    scorers = []

    def make(url, dialect="tei", **options):
        settings = Settings.load(backend="http", rerank_url=url, rerank_dialect=dialect, **options)
        scorers.append(load(settings, POINTWISE))
        return scorers[-1]

    yield make
    for scorer in scorers:
        scorer.close()


@pytest.fixture
def no_waiting(monkeypatch):
    """Let retries follow at once."""
    monkeypatch.setattr("osrerank.scoring.backends.http.connection.FIRST_WAIT_S", 0.0)
