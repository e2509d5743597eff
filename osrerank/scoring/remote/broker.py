"""The way to the Redis through which clients and workers meet: Celery's for requests, a plain client for the rest.

Requests go through Celery and Kombu; replies, which Celery would keep one key and one subscription each for, go to one
list for each client process (`osrerank.scoring.remote.delivery`).
"""

import ssl
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from redis.exceptions import ClusterCrossSlotError, ClusterDownError, MovedError, ResponseError

from osrerank._optional import require
from osrerank._redis import open_redis
from osrerank.errors import WorkerError
from osrerank.settings import ONE_REDIS

CONNECT_S = 1.0
ANSWER_S = 5.0
"""For Celery's connections: longer than any command that waits on purpose."""
PLAIN_ANSWER_S = 2.0
"""For ours, whose callers have deadlines; likewise."""
CONNECTIONS = 64
NOT_ONE = (ClusterCrossSlotError, ClusterDownError, MovedError)
"""What a node of a cluster answers."""
CERTIFICATES = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


def celery_app(url: str) -> Any:
    """Return a Celery application that writes and reads MessagePack only; no connection is made yet.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://``, as redis-py reads it: ``rediss://...?ssl_ca_certs=FILE``.

    Raises:
        MissingDependencyError: the extra ``workers`` is not installed.
    """
    celery = require("celery", extra="workers")
    require("msgpack", extra="workers")
    app = celery.Celery("osrerank", set_as_current=False)
    app.conf.update(
        **_address(url),
        broker_connection_retry_on_startup=True,
        broker_pool_limit=CONNECTIONS,
        broker_transport_options={
            "socket_connect_timeout": CONNECT_S,
            "socket_timeout": ANSWER_S,
            "socket_keepalive": True,
        },
        task_serializer="msgpack",
        accept_content=["msgpack"],
        task_ignore_result=True,
        task_store_errors_even_if_ignored=False,
    )
    return app


def check_mode(redis: Any) -> None:
    """Check that a Redis that answers is one that chunks can go through.

    Raises:
        WorkerError: it is a node of a Redis Cluster, or a Sentinel.
    """
    try:
        answer = redis.execute_command("HELLO")
    except ResponseError:  # older than 6, or this user may not ask
        return
    fields = answer if isinstance(answer, dict) else dict(zip(answer[::2], answer[1::2], strict=True))
    mode = bytes(fields.get(b"mode", b"standalone")).decode()
    if mode != "standalone":
        raise WorkerError(f"the broker is a Redis in {mode} mode: {ONE_REDIS}")


def no_broker(error: Exception) -> str:
    """Say in a sentence that the broker does not answer, and what to do; nothing of its URL is shown."""
    if isinstance(error, NOT_ONE) or "unknown command" in str(error):
        return f"the broker is a node of a Redis Cluster, or a Sentinel: {ONE_REDIS}"
    return (
        f"the broker cannot be asked for workers ({type(error).__name__}): start its Redis, or correct "
        "OSRERANK_BROKER_URL, or OSRERANK_REDIS_URL where that is the broker too"
    )


def connect(url: str) -> Any:
    """Return a Redis client for replies and worker heartbeats; no connection is made yet."""
    keepalive = {} if url.startswith("unix:") else {"socket_keepalive": True}
    return open_redis(url, connect_s=CONNECT_S, answer_s=PLAIN_ANSWER_S, **keepalive)


def _address(url: str) -> dict[str, Any]:
    """Return Celery's settings for a URL that redis-py understands; Kombu alone would speak plain text to rediss://."""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    if parts.scheme == "unix":
        database = urlencode({"virtual_host": query.get("db", "0")})
        return {"broker_url": f"redis+socket://{parts.netloc}{parts.path}?{database}"}
    options: dict[str, Any] = {name: value for name, value in query.items() if name.startswith("ssl_")}
    rest = urlencode({name: value for name, value in query.items() if name not in options})
    settings: dict[str, Any] = {"broker_url": urlunsplit(parts._replace(query=rest))}
    if parts.scheme == "rediss":
        wanted = str(options.get("ssl_cert_reqs", "required")).lower().removeprefix("cert_")
        options["ssl_cert_reqs"] = CERTIFICATES[wanted]
        options["ssl_check_hostname"] = str(options.get("ssl_check_hostname", wanted != "none")).lower() == "true"
        settings["broker_use_ssl"] = options
    return settings
