"""A Redis with a replica under a Sentinel, behind one port that always leads to the master."""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from redis import Redis, RedisError

from tests import servers
from tests.toxics import Proxies, Toxic
from tests.waiting import wait_until

NAME = "broker"
CONFIGURATION = f"""\
sentinel monitor {NAME} 127.0.0.1 {{master}} 1
sentinel down-after-milliseconds {NAME} 2000
sentinel failover-timeout {NAME} 5000
"""
FOLLOW_S = 0.05
"""How often the proxy asks the Sentinel for the master."""


class Failover:
    """Two Redis servers, one of them the master, and a port that leads to it.

    Args:
        sentinel: a client of the Sentinel.
        proxies: hold the link to the master.
        cuts: whether the proxy ends connections to a master that is none any more.
    """

    def __init__(self, sentinel: Any, proxies: Proxies, *, cuts: bool) -> None:
        self._sentinel, self._proxies, self._cuts = sentinel, proxies, cuts
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self.url = f"redis://127.0.0.1:{proxies.open(NAME, self.master())}/0"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        self._thread.join()

    def master(self) -> int:
        """Return the port of the master, as the Sentinel knows it."""
        return int(self._sentinel.sentinel_get_master_addr_by_name(NAME)[1])

    def force(self) -> None:
        """Let the replica become the master; return when the Sentinel has ended that, and both servers have a role."""
        before = self.master()
        self.wait_until_whole()
        self._sentinel.execute_command("SENTINEL", "FAILOVER", NAME)
        wait_until(lambda: self.master() != before, 30)
        self.wait_until_whole()

    def wait_until_whole(self) -> None:
        """Return when the master has its replica again, and no failover is under way."""

        def is_whole() -> bool:
            flags = self._sentinel.sentinel_masters()[NAME]["flags"]
            with contextlib.suppress(RedisError), Redis(port=self.master(), socket_timeout=2) as master:
                replicas = [replica for replica in self._sentinel.sentinel_slaves(NAME) if not replica["is_sdown"]]
                role = master.role()
                return flags == "master" and len(replicas) == 1 and role[0] == b"master" and len(role[2]) == 1
            return False

        wait_until(is_whole, 60, lambda: str(self._sentinel.sentinel_masters()[NAME]))

    def _follow(self) -> None:
        link = self._proxies.links[NAME]
        while not self._ended.wait(FOLLOW_S):
            master = self.master()
            if master != link.target:
                link.target = master
                if self._cuts:
                    self._proxies.infect(NAME, Toxic("reset"))
                    self._proxies.infect(NAME, None)


@contextlib.contextmanager
def failover(folder: Path, *, cuts: bool) -> Iterator[Failover]:
    """Start a master, its replica and a Sentinel."""
    binary, names = servers.redis_binary(), ("master", "replica", "sentinel")
    master, replica, sentinel = ((name, servers.free_port()) for name in names)
    sentinel_file = folder / "sentinel.conf"
    sentinel_file.write_text(CONFIGURATION.format(master=master[1]))
    follows = ("--replicaof", "127.0.0.1", str(master[1]))
    diskless = ("--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0")
    with (
        servers.start_redis(binary, folder / master[0], port=master[1], options=diskless),
        servers.start_redis(binary, folder / replica[0], port=replica[1], options=(*diskless, *follows)),
        servers.start_redis(
            binary, folder / sentinel[0], port=sentinel[1], options=("--sentinel",), configuration=sentinel_file
        ),
        Proxies() as proxies,
        Redis(port=sentinel[1], decode_responses=True) as redis,
        Failover(redis, proxies, cuts=cuts) as made,
    ):
        made.wait_until_whole()
        yield made
