"""The application in a server of its own process."""

import uvicorn

from osrerank.reranker import Reranker
from osrerank.server.app import create_app
from osrerank.server.limits import Limits

MOST_CONNECTIONS = 2_000
"""Those beyond are answered 503 at once."""
KEEP_ALIVE_S = 30
"""Longer than a search takes, so that OpenSearch's connector finds its connections open."""
BACKLOG = 512


def run(reranker: Reranker, limits: Limits, *, host: str, port: int) -> None:
    """Serve until SIGTERM or SIGINT, then finish what was taken on.

    Args:
        reranker: scores; stays the caller's to close.
        limits: what is taken on; its timeout bounds the finishing too.
        host: address to listen on.
        port: port to listen on.
    """
    token = reranker.settings.server_token
    app = create_app(reranker, limits, token=None if token is None else token.get_secret_value())
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        server_header=False,
        backlog=BACKLOG,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=int(limits.timeout_ms / 1000) + 1,
    )
    server = uvicorn.Server(config)
    server.run()
    if not server.started:
        raise OSError(f"http://{host}:{port} cannot be listened on")
