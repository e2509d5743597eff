"""The one way to a Redis client of ours."""

from typing import Any

MOST_CONNECTIONS = 1024
"""One for each thread that asks at once; redis-py's own 100 would be an error for the next."""


def open_redis(url: str, *, connect_s: float, answer_s: float, **options: Any) -> Any:
    """Return a client without retries: the caller decides how long to wait. It connects on first use.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://``.
        connect_s: time for a connection, in seconds.
        answer_s: time for an answer, in seconds.
        options: any other of redis-py's.
    """
    from redis import Redis  # noqa: PLC0415 - only where a Redis is configured
    from redis.backoff import NoBackoff  # noqa: PLC0415 - see above
    from redis.retry import Retry  # noqa: PLC0415 - see above

    return Redis.from_url(
        url,
        socket_connect_timeout=connect_s,
        socket_timeout=answer_s,
        retry=Retry(NoBackoff(), 0),
        max_connections=MOST_CONNECTIONS,
        **options,
    )
