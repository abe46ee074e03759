"""The listening side: which connections are accepted, closed to make room for others, or timed out."""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
import logging
import socket
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from hmi.api.edge.capacity import most_connections
from hmi.api.edge.connection import Connection, handler_settings
from hmi.api.edge.tls import SHUTDOWN_S, Certificates
from hmi.config import Settings

log = logging.getLogger("hmi.api")
AT_ONCE = 32
"""Most connections accepted in one step of the event loop."""
GUESTS = 32
"""Connections accepted beyond the limit. Only calls that are answered while draining, such as the health
calls, are answered on them; any other gets 503 `unavailable`."""
GRACE_S = 1.0
"""Connections younger than this are the last to be closed for others: an honest client has sent its
request by then."""
RETRY_S = 0.2
"""Longest pause in accepting, after there was no room or accepting failed."""
SWEEP_S = 1.0
"""Interval at which timed-out connections are closed."""
COMPLAIN_S = 60.0
"""At most one warning in this time that accepting fails."""


@dataclass(frozen=True)
class ConnectionLimits:
    """Numbers of connections, and seconds; see docs/http.md."""

    connections: int
    by_address: int
    head_s: float
    idle_s: float

    @classmethod
    def of(cls, settings: Settings) -> ConnectionLimits:
        most = most_connections(settings)
        return cls(most, settings.max_address_connections or most // 2, settings.head_s, settings.idle_s)


class Listener:
    """Accepts connections from the listening socket, and owns the table of all connections.

    When all places are taken, a new connection takes the place of an idle one. Connections that have not sent
    the whole head of a request within GRACE_S go first, then those whose last request was answered, then the
    younger ones; within each group, the one that has waited longest goes first. If every connection has a
    request under way, the new one becomes a guest.
    """

    def __init__(
        self,
        listener: socket.socket,
        server: web.Server,
        settings: Settings,
        certificates: Certificates | None = None,
    ) -> None:
        self._listener, self._server, self._certificates = listener, server, certificates
        self._limits, self._settings = ConnectionLimits.of(settings), handler_settings(settings)
        self._loop = asyncio.get_running_loop()
        # Dicts as ordered sets, the longest-waiting first.
        self._all: dict[Connection, None] = {}
        self._fresh: dict[Connection, None] = {}
        """Connections that have not sent a whole head yet, or not finished the handshake of TLS."""
        self._answered: dict[Connection, None] = {}
        """Idle connections, whose last request was answered."""
        self._by_address: Counter[str] = Counter()
        self.resting = 0
        self._pause: asyncio.TimerHandle | None = None
        self._connecting: set[asyncio.Task[None]] = set()
        self._open = self._listening = False
        self._complained = -COMPLAIN_S

    def open(self) -> None:
        """Begin to accept connections."""
        self._listener.setblocking(False)
        self._open = True
        self._listen()
        self._loop.call_later(SWEEP_S, self._sweep)

    async def stop(self) -> None:
        """Accept no more connections and close the listening socket. The open connections stay."""
        self._open = False
        self._stop_listening()
        self._listener.close()

    # Connections call these four: see `connection.ConnectionOwner`.

    def arrived(self, connection: Connection) -> None:
        if connection not in self._all:  # it was dropped before it had a transport
            connection.abort()

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

    def _pause_accepting(self) -> None:
        """Pause accepting until a connection arrives or leaves, at most for RETRY_S.

        The timer is needed since the door does not learn when another part of the process frees a descriptor.
        """
        self._stop_listening()
        self._pause = self._loop.call_later(RETRY_S, self._listen)

    def _stop_listening(self) -> None:
        if self._listening:
            self._listening = False
            self._loop.remove_reader(self._listener)

    def _accept(self) -> None:
        for accepted in range(AT_ONCE):
            if self._count() >= self._limits.connections + GUESTS and not self._make_room(None):
                self._pause_accepting()
                return
            try:
                sock, peer = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptor is free, or no memory for one
                # Linux looks for a free descriptor before it looks for a connection, so this happens when
                # nobody waits, too. At the first accept of a step somebody does: the socket was ready.
                if not accepted:
                    self._accept_failed(error)
                return
            self._admit(sock, peer[0])

    def _admit(self, sock: socket.socket, host: str) -> None:
        address = _address(host)
        guest = False
        if address and self._by_address[address] >= self._limits.by_address:
            guest = not self._make_room(address)
        elif self._count() >= self._limits.connections:
            guest = not self._make_room(None)
        self._by_address[address] += 1
        sock.setblocking(False)
        connection = Connection(self._server, self, address, guest, **self._settings)
        # It counts from here on, and can be closed to make room: a client may never finish its handshake.
        connection.since = self._loop.time()
        self._all[connection] = self._fresh[connection] = None
        connection.connecting = task = self._loop.create_task(self._connect(sock, connection))
        self._connecting.add(task)

        def connected(task: asyncio.Task[None]) -> None:
            self._connecting.discard(task)
            connection.connecting = None
            if connection.wire is None:
                self.left(connection)
                sock.close()

        task.add_done_callback(connected)

    async def _connect(self, sock: socket.socket, connection: Connection) -> None:
        tls: dict[str, Any] = {}
        if self._certificates is not None:
            tls = {
                "ssl": self._certificates.context,
                "ssl_handshake_timeout": self._limits.head_s,
                "ssl_shutdown_timeout": SHUTDOWN_S,
            }
        try:
            await self._loop.connect_accepted_socket(lambda: connection, sock, **tls)
        except OSError as error:  # the client has gone already, or its handshake failed
            log.debug("a connection from %s failed: %s", connection.address or "this machine", error)

    def _count(self) -> int:
        return len(self._all)

    def _make_room(self, address: str | None) -> bool:
        """Close the longest-waiting idle connection, of `address` if given. False if all have requests
        under way."""
        for connection in self._waiting():
            if address in (None, connection.address):
                self._drop(connection)
                return True
        return False

    def _waiting(self) -> Iterator[Connection]:
        """The connections without a request under way, in the order in which they are closed to make room."""
        young = self._loop.time() - GRACE_S
        yield from itertools.takewhile(lambda c: c.since < young, self._fresh)
        yield from self._answered
        yield from self._fresh

    def _drop(self, connection: Connection) -> None:
        # At once: connection_lost comes later, and the next connection to drop must be another one.
        self.left(connection)
        connection.abort()

    def _accept_failed(self, error: OSError) -> None:
        """Close an idle connection, try again a little later, and log a warning at most every COMPLAIN_S."""
        self._pause_accepting()
        self._make_room(None)
        if self._loop.time() - self._complained >= COMPLAIN_S:
            self._complained = self._loop.time()
            log.warning(
                "cannot accept connections (%s) with %d open: raise the limit of open files, or lower "
                "max_connections",
                error.strerror,
                len(self._all),
            )

    def _sweep(self) -> None:
        """Close connections whose first head or whose client takes too long. aiohttp itself closes idle
        ones."""
        now = self._loop.time()
        for connection in list(self._all):
            late = connection in self._fresh and now - connection.since > self._limits.head_s
            if late or _stalled(connection, now, self._limits.idle_s):
                self._drop(connection)
        if self._open or self._all:
            self._loop.call_later(SWEEP_S, self._sweep)


def _stalled(connection: Connection, now: float, idle_s: float) -> bool:
    """Return whether the client has read nothing of an answer for `idle_s` seconds."""
    unsent = connection.unsent_bytes()
    if not unsent or unsent != connection.unsent[0]:
        connection.unsent = (unsent, now)
    return now - connection.unsent[1] > idle_s


def _address(host: str) -> str:
    """The name under which connections from `host` are counted: an IPv4 address, or the /64 network of an
    IPv6 address, since one customer has all of it.

    It is "" for this machine, whose connections are not limited by address: a proxy in front brings
    everybody's.
    """
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    mapped = getattr(address, "ipv4_mapped", None) or address
    if mapped.is_loopback:
        return ""
    return str(mapped) if mapped.version == 4 else str(ipaddress.ip_network((mapped, 64), strict=False))
