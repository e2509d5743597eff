"""Open Redis connections with timeouts, so that a failing Redis cannot delay a search for long."""

from typing import Any

MAX_CONNECTIONS = 1024
"""The maximum number of connections per client. Each concurrent thread needs one; redis-py allows 100 by default."""


def open_redis(url: str, *, connect_s: float, response_s: float, **options: Any) -> Any:
    """Return a Redis client that connects on first use. It does not retry, because retries would exceed the timeouts.

    Args:
        url: the server's URL, with the scheme ``redis``, ``rediss`` or ``unix``.
        connect_s: the timeout for a connection, in seconds.
        response_s: the timeout for a response, in seconds.
        options: other options of redis-py's client.
    """
    from redis import Redis  # noqa: PLC0415 - only where a Redis is configured
    from redis.backoff import NoBackoff  # noqa: PLC0415 - only where a Redis is configured
    from redis.exceptions import ReadOnlyError  # noqa: PLC0415 - only where a Redis is configured
    from redis.retry import Retry  # noqa: PLC0415 - only where a Redis is configured

    return Redis.from_url(
        url,
        socket_connect_timeout=connect_s,
        socket_timeout=response_s,
        retry=Retry(NoBackoff(), 0),
        # without retries, redis-py only closes the connection after this error: the next call reaches the new master
        retry_on_error=[ReadOnlyError],
        max_connections=MAX_CONNECTIONS,
        **options,
    )
