"""Connect to the broker, the Redis through which clients and workers communicate.

Requests go through Celery and Kombu. Replies go to one list for each client process, through a plain Redis client,
because Celery would need a key and a subscription for each reply (`osrerank.scoring.remote.delivery`).
"""

import ssl
from inspect import signature
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from redis.exceptions import ClusterCrossSlotError, ClusterDownError, MasterDownError, MovedError, ResponseError

from osrerank._optional import require
from osrerank._redis import open_redis
from osrerank.errors import ConfigError, WorkerError
from osrerank.settings import ONE_REDIS

CONNECT_S = 1.0
"""Timeout of connecting to the broker, in seconds."""
ANSWER_S = 5.0
"""Timeout of an answer to Celery, in seconds: longer than any of its commands that wait on purpose."""
PLAIN_ANSWER_S = 2.0
"""Timeout of an answer to the plain client, in seconds; shorter, because its callers have deadlines."""
CONNECTIONS = 64
NOT_ONE = (ClusterCrossSlotError, ClusterDownError, MovedError)
"""The errors of a Redis that is a node of a cluster."""
FIXES = {
    "READONLY": "it is a replica; name an address that always leads to the master",
    "MASTERDOWN": "it is a replica; name an address that always leads to the master",
    "NOPERM": "give its user the rights that the page on workers lists",
    "NOAUTH": "name its password",
    "WRONGPASS": "name its password",
    "OOM": "it is full; raise its maxmemory",
    "MISCONF": "it cannot write to its disk; free or mend that",
    "LOADING": "it is still loading its data; wait until it has",
}
"""What to do after an error that Redis answered with, by its code."""
OF_ADDRESS = ("host", "port", "path", "db", "username", "password")
PASSED_ON = ("health_check_interval", "client_name", "max_connections", "retry_on_timeout")
"""Options of a broker's URL that Kombu and the plain client have alike."""
OWN = ("socket_timeout", "socket_connect_timeout", "socket_keepalive", "protocol")
"""Options that replace those of this module; Kombu speaks a protocol of its own choice."""
OPTIONS = ("db", "username", "password", *PASSED_ON, *OWN, "ssl_...")
CERTIFICATES = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


def celery_app(url: str) -> Any:
    """Return a Celery application that writes and reads MessagePack only; no connection is made yet.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://``, as redis-py reads it: ``rediss://...?ssl_ca_certs=FILE``.

    Raises:
        MissingDependencyError: the extra ``workers`` is not installed.
        ConfigError: the URL has an option that is not known, or a value that cannot be used.
    """
    celery = require("celery", extra="workers")
    require("msgpack", extra="workers")
    app = celery.Celery("osrerank", set_as_current=False)
    app.conf.update(
        **_address(url),
        broker_connection_retry_on_startup=True,
        broker_pool_limit=CONNECTIONS,
        task_serializer="msgpack",
        accept_content=["msgpack"],
        task_ignore_result=True,
        task_store_errors_even_if_ignored=False,
    )
    return app


def check_mode(redis: Any) -> None:
    """Check that a Redis can serve as a broker.

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


def no_broker(error: BaseException) -> str:
    """Return a sentence that says that the broker does not answer, and what to do; it shows nothing of the URL."""
    is_of_cluster = isinstance(error, NOT_ONE) and not isinstance(error, MasterDownError)
    if is_of_cluster or "unknown command" in str(error):
        return f"the broker is a node of a Redis Cluster, or a Sentinel: {ONE_REDIS}"
    code = error_code(error)
    fix = FIXES.get(code, "look at its Redis" if code else "start its Redis")
    return (
        f"the broker cannot be asked for workers ({code or type(error).__name__}): {fix}, or correct "
        "OSRERANK_BROKER_URL, or OSRERANK_REDIS_URL where that is the broker too"
    )


def redis_fix(error: BaseException, away: str) -> str:
    """Return what to do about an error of a Redis.

    Args:
        error: redis-py's, or one that it caused.
        away: what to do if it did not answer.
    """
    code = error_code(error) or (error_code(error.__cause__) if error.__cause__ else "")
    return FIXES.get(code, "look at its log") if code else away


def error_code(error: BaseException) -> str:
    """Return the code of an error that Redis answered with, such as READONLY; empty if it did not answer."""
    text = str(error).rpartition("caused error: ")[2]  # after the command, which redis-py names in a pipeline
    code: str = getattr(error, "status_code", None) or text.partition(" ")[0]
    return code if code.isupper() else ""


def connect(url: str) -> Any:
    """Return a plain Redis client for replies and heartbeats; it connects on first use."""
    keepalive = {} if url.startswith("unix:") else {"socket_keepalive": True}
    return open_redis(url, connect_s=CONNECT_S, answer_s=PLAIN_ANSWER_S, **keepalive)


def _address(url: str) -> dict[str, Any]:
    """Return Celery's settings for a URL as redis-py reads it; Kombu alone would not use TLS for rediss://.

    Raises:
        ConfigError: the URL has an option that is not known, or a value that cannot be used.
    """
    scheme = urlsplit(url).scheme
    options = _options(url, scheme)
    user, password = (quote(options.get(name) or "", safe="") for name in ("username", "password"))
    credentials = f"{user}:{password}@" if user or password else ""
    database = options.get("db", 0)
    settings: dict[str, Any] = {
        "broker_transport_options": {
            **{name: options[name] for name in PASSED_ON if name in options},
            "socket_connect_timeout": options.get("socket_connect_timeout", CONNECT_S),
            "socket_timeout": max(options.get("socket_timeout", 0.0), ANSWER_S),
            "socket_keepalive": options.get("socket_keepalive", True),
        }
    }
    if scheme == "unix":
        query = urlencode({"virtual_host": database})
        return {**settings, "broker_url": f"redis+socket://{credentials}{quote(options.get('path', ''))}?{query}"}
    host = options.get("host", "localhost")
    name = f"[{host}]" if ":" in host else host
    settings["broker_url"] = f"{scheme}://{credentials}{name}:{options.get('port', 6379)}/{database}"
    if scheme == "rediss":
        tls = {name: value for name, value in options.items() if name.startswith("ssl_")}
        wanted = str(tls.get("ssl_cert_reqs", "required")).lower().removeprefix("cert_")
        if wanted not in CERTIFICATES:
            raise _misread(f"ssl_cert_reqs is {wanted}, and must be none, optional or required")
        tls["ssl_cert_reqs"] = CERTIFICATES[wanted]
        tls.setdefault("ssl_check_hostname", wanted != "none")
        settings["broker_use_ssl"] = tls
    return settings


def _options(url: str, scheme: str) -> dict[str, Any]:
    """Return what redis-py reads from a URL.

    Raises:
        ConfigError: as `_address`.
    """
    from redis.connection import SSLConnection, parse_url  # noqa: PLC0415 - only where a Redis is configured

    try:
        options: dict[str, Any] = parse_url(url)  # type: ignore[no-untyped-call]
    except ValueError as error:
        reason = str(error).rstrip(".")  # of a port it may repeat a password that is not percent-encoded
        is_option = reason.startswith("Invalid value for")
        raise _misread(reason if is_option else "the port is no number; percent-encode the password") from None
    options.pop("connection_class", None)
    tls = [name for name in signature(SSLConnection.__init__).parameters if name.startswith("ssl_")]
    known = {*OF_ADDRESS, *PASSED_ON, *OWN, *(tls if scheme == "rediss" else ())}
    if unknown := sorted({*options} - known):
        hint = "options of TLS belong to rediss://" if unknown[0] in tls else f"known are {', '.join(sorted(OPTIONS))}"
        raise _misread(f"{unknown[0]} is no option of a broker; {hint}")
    return options


def _misread(reason: str) -> ConfigError:
    return ConfigError(
        f"broker_url (OSRERANK_BROKER_URL, or OSRERANK_REDIS_URL where that is the broker too): {reason}",
        setting="broker_url",
    )
