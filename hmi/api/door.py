"""The listening side: which connections are accepted, which are closed to make room, and which time out."""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
import logging
import socket
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from aiohttp import web

from hmi.api.connection import Connection, handler_settings, most_connections
from hmi.config import Settings

log = logging.getLogger("hmi.api")
AT_ONCE = 32
"""Connections accepted before the event loop goes on to others."""
GUESTS = 32
"""Beyond the limit: they ask whether the server lives, or hear that it is overloaded."""
GRACE_S = 1.0
"""In which an honest client has sent its request: younger connections are the last to be closed."""
RETRY_S = 0.2
SWEEP_S = 1.0
COMPLAIN_S = 60.0


@dataclass(frozen=True)
class Limits:
    connections: int
    by_address: int
    head_s: float
    idle_s: float

    @classmethod
    def of(cls, settings: Settings) -> Limits:
        most = most_connections(settings)
        return cls(most, settings.max_address_connections or most // 2, settings.head_s, settings.idle_s)


class Door:
    """Owns the listening socket's accepting and every connection's place.

    With all places taken, the connection that has waited longest goes: first of those that have not sent the
    whole head of a request in a second, then of those that have been answered. Where all are at work, a
    newcomer is a guest.
    """

    def __init__(self, listener: socket.socket, server: web.Server, settings: Settings) -> None:
        self._listener, self._server = listener, server
        self._limits, self._settings = Limits.of(settings), handler_settings(settings)
        self._loop = asyncio.get_running_loop()
        self._all: dict[Connection, None] = {}
        self._fresh: dict[Connection, None] = {}
        self._answered: dict[Connection, None] = {}
        self._by_address: Counter[str] = Counter()
        self._arriving = 0
        self.resting = 0
        self._pause: asyncio.TimerHandle | None = None
        self._greetings: set[asyncio.Task[None]] = set()
        self._open = self._listening = False
        self._complained = -COMPLAIN_S

    def open(self) -> None:
        self._listener.setblocking(False)
        self._open = True
        self._listen()
        self._loop.call_later(SWEEP_S, self._sweep)

    async def stop(self) -> None:
        """Let nobody in any more, and close the socket; the connections stay."""
        self._open = False
        self._stop_listening()
        self._listener.close()

    # What connections tell: see `connection.Books`.

    def arrived(self, connection: Connection) -> None:
        self._arriving -= 1
        connection.since = self._loop.time()
        self._all[connection] = self._fresh[connection] = None
        self._listen()  # it sends nothing yet, so it can make room

    def busy(self, connection: Connection) -> None:
        self._fresh.pop(connection, None)
        self._answered.pop(connection, None)

    def answered(self, connection: Connection) -> None:
        if connection in self._all:
            connection.since = self._loop.time()
            self._answered[connection] = None

    def left(self, connection: Connection) -> None:
        self.busy(connection)
        if self._all.pop(connection, False) is None:
            self._forget(connection.address)
        self._listen()

    def _forget(self, address: str) -> None:
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]

    def _listen(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        if self._open and not self._listening:
            self._listening = True
            self._loop.add_reader(self._listener, self._accept)

    def _rest(self) -> None:
        """Stop accepting for a moment. Whoever comes, goes or frees a descriptor elsewhere may end what was
        in the way; since not all of these are told here, a timer ends the pause in any case."""
        self._stop_listening()
        self._pause = self._loop.call_later(RETRY_S, self._listen)

    def _stop_listening(self) -> None:
        if self._listening:
            self._listening = False
            self._loop.remove_reader(self._listener)

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            if self._count() >= self._limits.connections + GUESTS and not self._make_room(None):
                self._rest()
                return
            try:
                sock, peer = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptors, or no memory for one
                self._wait(error)
                return
            self._let_in(sock, peer[0])

    def _let_in(self, sock: socket.socket, host: str) -> None:
        address = _address(host)
        guest = False
        if address and self._by_address[address] >= self._limits.by_address:
            guest = not self._make_room(address)
        elif self._count() >= self._limits.connections:
            guest = not self._make_room(None)
        self._by_address[address] += 1
        self._arriving += 1
        sock.setblocking(False)
        task = self._loop.create_task(
            self._greet(sock, Connection(self._server, self, address, guest, **self._settings))
        )
        self._greetings.add(task)
        task.add_done_callback(self._greetings.discard)

    async def _greet(self, sock: socket.socket, connection: Connection) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: connection, sock)
        except OSError as error:  # it has gone already
            log.debug("a connection from %s failed: %s", connection.address or "this machine", error)
            sock.close()
        if connection.wire is None:
            self._arriving -= 1
            self._forget(connection.address)

    def _count(self) -> int:
        return len(self._all) + self._arriving

    def _make_room(self, address: str | None) -> bool:
        """Close the connection (of `address`) that has waited longest; False where all are at work."""
        for connection in self._waiting():
            if address in (None, connection.address):
                self._drop(connection)
                return True
        return False

    def _waiting(self) -> Iterator[Connection]:
        """Those not at work, the first to go first."""
        young = self._loop.time() - GRACE_S
        yield from itertools.takewhile(lambda c: c.since < young, self._fresh)
        yield from self._answered
        yield from self._fresh

    def _drop(self, connection: Connection) -> None:
        self.left(connection)  # now: its last callback comes later, and the next victim must be another
        connection.abort()

    def _wait(self, error: OSError) -> None:
        """Accepting failed: make room, try again a little later, and say so now and then."""
        self._rest()
        self._make_room(None)
        if self._loop.time() - self._complained >= COMPLAIN_S:
            self._complained = self._loop.time()
            log.warning(
                "cannot accept connections (%s) with %d open: raise the limit of files, or lower "
                "max_connections",
                error.strerror,
                len(self._all),
            )

    def _sweep(self) -> None:
        """Close what has been waited for long enough. Idle kept connections, aiohttp closes itself."""
        now = self._loop.time()
        for connection in list(self._all):
            late = connection in self._fresh and now - connection.since > self._limits.head_s
            if late or _stalled(connection, now, self._limits.idle_s):
                self._drop(connection)
        if self._open or self._all:
            self._loop.call_later(SWEEP_S, self._sweep)


def _stalled(connection: Connection, now: float, idle_s: float) -> bool:
    """Whether the client has read nothing of an answer for too long."""
    unsent = connection.wire.get_write_buffer_size() if connection.wire is not None else 0
    if not unsent or unsent != connection.unsent[0]:
        connection.unsent = (unsent, now)
    return now - connection.unsent[1] > idle_s


def _address(host: str) -> str:
    """Whose connections count together: an IPv4 address, an IPv6 network of one customer, and "" for this
    machine.

    This machine's are not limited by address: a proxy in front brings everybody's.
    """
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    mapped = getattr(address, "ipv4_mapped", None) or address
    if mapped.is_loopback:
        return ""
    return str(mapped) if mapped.version == 4 else str(ipaddress.ip_network((mapped, 64), strict=False))
