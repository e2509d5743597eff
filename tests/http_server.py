"""The rerank server on a free loopback port, in a thread of the test's process."""

import contextlib
import threading
from collections.abc import Iterator

import uvicorn

from osrerank.server.api.app import create_app
from osrerank.server.api.limits import ServerLimits
from osrerank.server.page.routes import ComparisonPage, add_page
from osrerank.server.run import bind, configure_uvicorn, listen
from osrerank.service import RerankService
from osrerank.settings import Settings
from osrerank.types import Scorer
from tests.servers import free_port
from tests.waiting import wait_until

START_TIMEOUT_S = 30


@contextlib.contextmanager
def running(
    scorer: Scorer | None = None,
    *,
    token: str | None = None,
    limits: ServerLimits | None = None,
    port: int | None = None,
    comparison: ComparisonPage | None = None,
) -> Iterator[str]:
    """Yield the URL of a server over a scorer or the shipped model, with the comparison page where one is given."""
    reranker = RerankService(Settings.load(), scorer)
    limits = limits or ServerLimits()
    port = port or free_port()
    app = create_app(reranker, limits, token=token)
    if comparison is not None:
        add_page(app, comparison)
    server = uvicorn.Server(configure_uvicorn(app, limits))
    listener = bind("127.0.0.1", port)
    listen(listener)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        wait_until(lambda: server.started or not thread.is_alive(), START_TIMEOUT_S)
        assert thread.is_alive(), "the server ended at start"
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(60)
        listener.close()
        reranker.close()
