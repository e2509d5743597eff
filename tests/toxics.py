"""TCP proxies on loopback, and what networks do to connections: toxics, one at a time on each link."""

import asyncio
import contextlib
import random
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Self

PIECE_BYTES = 65_536
SLOW_BYTES, SLOW_PAUSE_S = 256, 0.01
RESETTING = struct.pack("ii", 1, 0)
"""For SO_LINGER: the connection ends by a reset, and what is not sent yet is lost."""

ToxicKind = Literal["latency", "jitter", "bandwidth", "slow_reader", "reset", "swallow"]


@dataclass(frozen=True, slots=True)
class Toxic:
    """What is wrong with a link.

    Attributes:
        kind: ``latency``: all that is sent comes so many milliseconds later. ``jitter``: likewise, at most so many.
            ``bandwidth``: so many kilobytes a second. ``slow_reader``: the other side reads a little at a time, and its
            buffers are full. ``reset``: all connections are reset at once, new ones after so many bytes.
            ``swallow``: nothing arrives any more and nobody is told, for ever: connections of that time stay half open
            when the toxic is gone.
        amount: in that unit; 0 where there is none.
    """

    kind: ToxicKind
    amount: float = 0.0


class Link:
    """A port that carries bytes to another port.

    Args:
        target: the port that answers.
        secure: speaks TLS to whoever connects.
        seed: of the jitter.
    """

    def __init__(self, target: int, *, secure: ssl.SSLContext | None = None, seed: int = 0) -> None:
        self.target, self.secure = target, secure
        self.port = 0
        self.toxic: Toxic | None = None
        self._open: set[_Connection] = set()
        self._rng = random.Random(seed)
        self._server: asyncio.Server | None = None

    async def listen(self, port: int) -> None:
        """Begin; port 0 picks a free one."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port, ssl=self.secure)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening and close all connections."""
        assert self._server is not None
        self._server.close()
        while self._open:
            for connection in list(self._open):
                connection.abort()  # the end of a TLS connection may wait half a minute for the other side
            await asyncio.sleep(0.01)

    def infect(self, toxic: Toxic | None) -> None:
        """Let a toxic act on the link, instead of the one before; None for none."""
        self.toxic = toxic
        for connection in list(self._open):
            if toxic is not None and toxic.kind == "reset":
                connection.reset()
            elif toxic is not None and toxic.kind == "swallow":
                connection.swallows = True

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection(writer, swallows=self.toxic is not None and self.toxic.kind == "swallow")
        self._open.add(connection)
        try:
            if self.toxic is not None and self.toxic.kind == "slow_reader":
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            upstream = await asyncio.open_connection("127.0.0.1", self.target)
            connection.writers.append(upstream[1])
            ends = ((reader, upstream[1]), (upstream[0], writer))
            pumps = [asyncio.ensure_future(self._pump(connection, *pair)) for pair in ends]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            connection.close()
            await asyncio.wait(pumps)
        except OSError:  # nobody answers there
            connection.reset()
        finally:
            connection.close()
            self._open.discard(connection)

    async def _pump(
        self, connection: "_Connection", reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Carry bytes in one direction, until either side ends."""
        with contextlib.suppress(OSError):
            while chunk := await reader.read(self._piece_bytes()):
                await asyncio.sleep(self._delay_s(len(chunk)))
                if connection.swallows:
                    continue
                connection.passed += len(chunk)
                if self.toxic is not None and self.toxic.kind == "reset" and connection.passed > self.toxic.amount:
                    connection.reset()
                    return
                writer.write(chunk)
                await writer.drain()

    def _piece_bytes(self) -> int:
        return SLOW_BYTES if self.toxic is not None and self.toxic.kind == "slow_reader" else PIECE_BYTES

    def _delay_s(self, size: int) -> float:
        kind, amount = ("", 0.0) if self.toxic is None else (self.toxic.kind, self.toxic.amount)
        delays: dict[str, float] = {
            "latency": amount / 1000,
            "jitter": self._rng.uniform(0, amount / 1000) if kind == "jitter" else 0.0,
            "bandwidth": size / 1000 / amount if kind == "bandwidth" else 0.0,
            "slow_reader": SLOW_PAUSE_S,
        }
        return delays.get(kind, 0.0)


class _Connection:
    """Both ends of what passes through a link."""

    def __init__(self, writer: asyncio.StreamWriter, *, swallows: bool) -> None:
        self.writers = [writer]
        self.swallows = swallows
        self.passed = 0

    def reset(self) -> None:
        for writer in self.writers:
            with contextlib.suppress(OSError):
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESETTING)
            writer.transport.abort()

    def abort(self) -> None:
        for writer in self.writers:
            writer.transport.abort()

    def close(self) -> None:
        if self.swallows:
            self.abort()
        for writer in self.writers:
            writer.close()


class Proxies:
    """Links with names, on an event loop in a thread of its own; used as a context."""

    def __init__(self) -> None:
        self.links: dict[str, Link] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        for link in self.links.values():
            self._run(link.close)
        self._run(self._ended)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def open(self, name: str, target: int, *, port: int = 0, secure: ssl.SSLContext | None = None) -> int:
        """Begin a link; return the port to connect to."""
        link = self.links[name] = Link(target, secure=secure, seed=len(self.links))
        self._run(lambda: link.listen(port))
        return link.port

    def infect(self, name: str, toxic: Toxic | None) -> None:
        """Let a toxic act on a link; None for none."""

        async def infect() -> None:
            self.links[name].infect(toxic)

        self._run(infect)

    async def _ended(self) -> None:
        """Wait for the tasks that still run."""
        other_tasks = asyncio.all_tasks() - {asyncio.current_task()}
        if other_tasks:
            await asyncio.wait(other_tasks, timeout=5)

    def _run(self, make: Callable[[], Any]) -> None:
        asyncio.run_coroutine_threadsafe(make(), self._loop).result(30)
