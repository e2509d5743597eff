"""The application over a scorer that needs no model."""

import time
from contextlib import ExitStack

import pytest
from starlette.testclient import TestClient

from osrerank.server.api.app import create_app
from osrerank.server.api.limits import ServerLimits
from osrerank.service import RerankService
from osrerank.settings import Settings
from osrerank.testing import FunctionScorer


@pytest.fixture
def serve():
    """Return a function that makes a client of an application, closed at the end."""
    with ExitStack() as stack:

        def open_client(scorer=None, clock=time.monotonic, *, token=None, **limits):
            reranker = RerankService(Settings.load(), scorer or FunctionScorer(), clock=clock)
            app = create_app(reranker, ServerLimits(**limits), token=token)
            return stack.enter_context(TestClient(app, raise_server_exceptions=False))

        yield open_client


@pytest.fixture
def client(serve):
    return serve()
