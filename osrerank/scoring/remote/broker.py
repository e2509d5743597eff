"""Connect to the broker, the Redis through which clients and workers communicate.

Requests go through Celery, which uses Kombu. Replies bypass Celery, because it would need a key and a subscription for
each reply. They go into one Redis list for each client process (`osrerank.scoring.remote.delivery`), which is read with
the library redis-py.
"""

import ssl
from inspect import signature
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from redis.exceptions import (
    ClusterCrossSlotError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    RedisError,
    ResponseError,
)

from osrerank._optional import require
from osrerank._redis import open_redis
from osrerank.errors import ConfigError, WorkerError
from osrerank.settings import ONLY_ONE_REDIS

CONNECT_TIMEOUT_S = 1.0
"""Timeout for connecting to the broker, in seconds."""
CELERY_REPLY_TIMEOUT_S = 5.0
"""Timeout for a reply from Redis to Celery, in seconds. Celery's blocking commands must end sooner."""
REPLY_TIMEOUT_S = 2.0
"""Timeout for a reply from Redis to other requests, in seconds. It is short, because their callers have deadlines."""
CONNECTIONS = 64
"""Maximum number of Celery's connections to the broker."""
CLUSTER_ERRORS = (ClusterCrossSlotError, ClusterDownError, MovedError)
"""Errors that only a node of a Redis Cluster returns."""
CAUSES_AND_FIXES = {
    "READONLY": "it is a replica; set an address that always leads to the master",
    "MASTERDOWN": "it is a replica; set an address that always leads to the master",
    "NOPERM": "its user lacks permissions; grant those listed in docs/workers.md",
    "NOAUTH": "set its password in the URL",
    "WRONGPASS": "set its password in the URL",
    "OOM": "it is full; increase its maxmemory",
    "MISCONF": "it cannot write to its disk; free space, or repair the disk",
    "LOADING": "it is still loading its data; wait until it has finished",
}
"""The cause and fix of a Redis error, by its code: the first word of Redis' reply."""
ADDRESS_OPTIONS = ("host", "port", "path", "db", "username", "password")
"""Options of a broker URL that say where the broker is and who connects."""
SHARED_OPTIONS = ("health_check_interval", "client_name", "max_connections", "retry_on_timeout")
"""Options of a broker URL that both Kombu and redis-py accept."""
SOCKET_OPTIONS = ("socket_timeout", "socket_connect_timeout", "socket_keepalive", "protocol")
"""Options of a broker URL that override the timeouts of this module. Kombu ignores ``protocol``."""
OPTIONS = ("db", "username", "password", *SHARED_OPTIONS, *SOCKET_OPTIONS, "ssl_...")
"""The options that an error message lists."""
URL_SETTINGS = "OSRERANK_BROKER_URL, or OSRERANK_REDIS_URL if the broker uses that"
CERTIFICATE_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
"""TLS options whose values are files."""
CERTIFICATES = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
"""How Celery verifies the broker's certificate for each value of ``ssl_cert_reqs``."""


def celery_app(url: str) -> Any:
    """Return a Celery application that exchanges only MessagePack, and connects on first use.

    Args:
        url: a URL in redis-py's format, with ``redis://``, ``rediss://`` or ``unix://``.

    Raises:
        MissingDependencyError: the extra ``workers`` is not installed.
        ConfigError: the URL has an unknown option, or an invalid value.
    """
    celery = require("celery", extra="workers")
    require("msgpack", extra="workers")
    app = celery.Celery("osrerank", set_as_current=False)
    app.conf.update(
        **_celery_settings(url),
        broker_connection_retry_on_startup=True,
        broker_pool_limit=CONNECTIONS,
        task_serializer="msgpack",
        accept_content=["msgpack"],
        task_ignore_result=True,
        task_store_errors_even_if_ignored=False,
    )
    return app


def check_redis_mode(redis: Any) -> None:
    """Raise `WorkerError` if a Redis is a Sentinel or a node of a Redis Cluster, which cannot be brokers."""
    try:
        reply = redis.execute_command("HELLO")
    except ResponseError:  # Redis is older than 6, or forbids the command to this user
        return
    # RESP3 replies with a map, RESP2 with a list: [key, value, key, value, ...]
    fields = reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))
    mode = bytes(fields.get(b"mode", b"standalone")).decode()
    if mode != "standalone":
        raise WorkerError(f"the broker is a Redis in {mode} mode: {ONLY_ONE_REDIS}")


def explain_broker_failure(error: BaseException) -> str:
    """Return a sentence with the reason why the broker cannot be used, and the fix. It never contains the URL."""
    if isinstance(error.__cause__, RedisError):  # Celery raises an error of its own, with that of redis-py as its cause
        error = error.__cause__
    # A replica also raises MasterDownError, which redis-py derives from ClusterDownError.
    is_cluster_error = isinstance(error, CLUSTER_ERRORS) and not isinstance(error, MasterDownError)
    if is_cluster_error or "unknown command" in str(error):  # a Sentinel knows few commands
        return f"the broker is a node of a Redis Cluster, or a Sentinel: {ONLY_ONE_REDIS}"
    code = read_error_code(error)
    fix = CAUSES_AND_FIXES.get(code, "check its log" if code else "start its Redis")
    problem = f"failed ({code})" if code else f"cannot be used ({type(error).__name__})"
    return f"the broker {problem}: {fix}, or correct {URL_SETTINGS}"


def explain_redis_error(error: BaseException, default: str) -> str:
    """Return the cause and fix of an error of redis-py, or ``default`` if Redis did not reply."""
    code = read_error_code(error)
    if not code and error.__cause__:
        code = read_error_code(error.__cause__)
    return CAUSES_AND_FIXES.get(code, "check its log") if code else default


def read_error_code(error: BaseException) -> str:
    """Return the code of a Redis error reply, such as READONLY. Returns "" if Redis did not reply."""
    text = str(error).rpartition("caused error: ")[2]  # for a pipeline, redis-py puts the command before "caused"
    code: str = getattr(error, "status_code", None) or text.partition(" ")[0]
    return code if code.isupper() else ""


def connect(url: str) -> Any:
    """Return a client of redis-py, without Celery, for replies and heartbeats. It connects on first use."""
    keepalive = {} if url.startswith("unix:") else {"socket_keepalive": True}
    return open_redis(url, connect_s=CONNECT_TIMEOUT_S, response_s=REPLY_TIMEOUT_S, **keepalive)


def _celery_settings(url: str) -> dict[str, Any]:
    """Convert a URL in redis-py's format to Celery's settings. Kombu alone would not use TLS for ``rediss://``.

    Raises:
        ConfigError: the URL has an unknown option, or an invalid value.
    """
    scheme = urlsplit(url).scheme
    options = _parse_options(url, scheme)
    user, password = (quote(options.get(name) or "", safe="") for name in ("username", "password"))
    credentials = f"{user}:{password}@" if user or password else ""
    database = options.get("db", 0)
    settings: dict[str, Any] = {
        "broker_transport_options": {
            **{name: options[name] for name in SHARED_OPTIONS if name in options},
            "socket_connect_timeout": options.get("socket_connect_timeout", CONNECT_TIMEOUT_S),
            "socket_timeout": max(options.get("socket_timeout", 0.0), CELERY_REPLY_TIMEOUT_S),
            "socket_keepalive": options.get("socket_keepalive", True),
        }
    }
    if scheme == "unix":
        query = urlencode({"virtual_host": database})
        return {**settings, "broker_url": f"redis+socket://{credentials}{quote(options.get('path', ''))}?{query}"}
    host = options.get("host", "localhost")
    url_host = f"[{host}]" if ":" in host else host  # an IPv6 address is in brackets
    settings["broker_url"] = f"{scheme}://{credentials}{url_host}:{options.get('port', 6379)}/{database}"
    if scheme == "rediss":
        tls_options = {name: value for name, value in options.items() if name.startswith("ssl_")}
        for option in CERTIFICATE_FILES:
            file = tls_options.get(option)
            if file and not Path(file).is_file():
                raise _url_error(f"{option} is {file!r}, but there is no such file")
        verification = str(tls_options.get("ssl_cert_reqs", "required")).lower()
        verification = verification.removeprefix("cert_")  # Celery's form is CERT_NONE
        if verification not in CERTIFICATES:
            raise _url_error(f"ssl_cert_reqs is {verification!r}; it must be none, optional or required")
        tls_options["ssl_cert_reqs"] = CERTIFICATES[verification]
        tls_options.setdefault("ssl_check_hostname", verification != "none")
        settings["broker_use_ssl"] = tls_options
    return settings


def _parse_options(url: str, scheme: str) -> dict[str, Any]:
    """Return the options in a URL, such as ``{"host": "redis", "db": 1}``. Raises `ConfigError` if one is unknown.

    The settings have already checked the URL's format.
    """
    from redis.connection import SSLConnection, parse_url  # noqa: PLC0415 - only where a Redis is configured

    options: dict[str, Any] = parse_url(url)  # type: ignore[no-untyped-call]
    options.pop("connection_class", None)
    tls_options = [name for name in signature(SSLConnection.__init__).parameters if name.startswith("ssl_")]
    known_options = {*ADDRESS_OPTIONS, *SHARED_OPTIONS, *SOCKET_OPTIONS, *(tls_options if scheme == "rediss" else ())}
    unknown_options = sorted({*options} - known_options)
    if unknown_options:
        hint = "TLS options need rediss://"
        if unknown_options[0] not in tls_options:
            hint = f"the options are {', '.join(sorted(OPTIONS))}"
        raise _url_error(f"{unknown_options[0]!r} is not an option of a broker URL; {hint}")
    return options


def _url_error(reason: str) -> ConfigError:
    return ConfigError(f"broker_url ({URL_SETTINGS}) is invalid: {reason}", setting="broker_url")
