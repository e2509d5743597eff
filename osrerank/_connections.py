"""Connections of the engines' client libraries, in a process that forks."""

from typing import Any

from urllib3 import HTTPConnectionPool

from osrerank._platform import renew_after_fork


class ForkSafeConnections:
    """Gives a forked child process new connections. Two processes with one connection would mix up their responses.

    Args:
        transport: the transport of opensearch-py or elasticsearch-py, whose connections urllib3 or requests keeps open.
    """

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        renew_after_fork(self)

    def renew(self) -> None:
        """Forget the connections of the parent process, so that the child opens its own."""
        for connection in self._find_connections():
            pool = getattr(connection, "pool", None)  # urllib3's
            if isinstance(pool, HTTPConnectionPool) and pool.pool is not None:
                size = pool.pool.maxsize
                pool.pool = pool.QueueCls(size)
                for _ in range(size):
                    pool.pool.put(None)  # urllib3 opens a connection when it gets a None
            for adapter in getattr(getattr(connection, "session", None), "adapters", {}).values():  # requests'
                adapter.init_poolmanager(adapter._pool_connections, adapter._pool_maxsize, adapter._pool_block)  # noqa: SLF001

    def _find_connections(self) -> list[Any]:
        """Return an object for each host: opensearch-py's connections, or elasticsearch-py's nodes."""
        if hasattr(self._transport, "node_pool"):
            return list(self._transport.node_pool.all())
        return list(getattr(getattr(self._transport, "connection_pool", None), "connections", ()))
