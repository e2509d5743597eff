"""Create Redis clients, all with the same limits and without retries."""

from typing import Any

MAX_CONNECTIONS = 1024
"""The maximum number of connections of a client. It needs one per concurrent thread; redis-py's default is 100."""


def open_redis(url: str, *, connect_s: float, response_s: float, **options: Any) -> Any:
    """Return a Redis client that connects on first use and does not retry, so that callers can bound a call's time.

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
        retry_on_error=[ReadOnlyError],  # closes the connection, so that the next call reaches the new master
        max_connections=MAX_CONNECTIONS,
        **options,
    )
