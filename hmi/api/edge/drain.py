"""Closes all connections at shutdown, after every client that sent a request has its answer."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import socket
import struct
import sys
from collections.abc import Awaitable, Callable

from aiohttp import web

from hmi.api.edge.connection import Connection

log = logging.getLogger("hmi.api")
LINGER_S = 1.0
"""How long an idle connection stays open for a request, which then gets a 503."""
GRACE_S = 1.0
"""The least time that a client has to read an answer, however late the answer was ready."""
CUT_S = 0.5
"""At the very end, aiohttp waits at most twice this long for the handlers of connections that are cut."""
POLL_S = 0.02
"""Interval at which the connections are checked."""


async def leave(
    server: web.Server, listener: socket.socket, stop_accepting: Callable[[], Awaitable[None]], until: float
) -> None:
    """Accept no more connections, and wait until the open ones are closed.

    The wait ends at the loop's time `until`, but not before LINGER_S + GRACE_S have passed.
    `stop_accepting` closes the listener. The caller must cut the connections that are left: their
    clients do not read their answers.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    refuse_new(listener)
    await _wait_until_closed(server, loop.time() + LINGER_S)
    await stop_accepting()
    server.pre_shutdown()  # busy connections close after their request, idle ones at once
    while not await _wait_until_closed(server, loop.time() + POLL_S):
        for connection in server.connections:
            if _is_idle(connection):
                _close(connection)
        if loop.time() > max(until, began + LINGER_S + GRACE_S):
            log.warning(
                "stopping with %d connections cut: their answers are read too slowly", len(server.connections)
            )
            return


async def _wait_until_closed(server: web.Server, until: float) -> bool:
    """Wait until all connections are closed, at most until `until`; return whether they are.

    A closed connection has handed its answer to the kernel.
    """
    loop = asyncio.get_running_loop()
    while server.connections and loop.time() < until:
        await asyncio.sleep(POLL_S)
    return not server.connections


def _close(connection: web.RequestHandler) -> None:
    """Close an idle connection. Under TLS its client would have to agree, and idle clients do not read."""
    if isinstance(connection, Connection) and connection.encrypted and not connection.unsent_bytes():
        connection.abort()
    else:
        connection.force_close()


def _is_idle(connection: web.RequestHandler) -> bool:
    """Return whether the connection has no request under way.

    After pre_shutdown, aiohttp ends the task of such a connection but does not close the connection.
    """
    task = connection._task_handler
    return task is not None and task.done()


class _Program(ctypes.Structure):
    """struct sock_fprog of <linux/filter.h>."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


_SO_ATTACH_FILTER = 26
# A BPF program. It loads the flags of the TCP header, drops a packet with SYN, and keeps any other whole.
_NO_SYN = struct.pack("HBBI" * 4, 0x30, 0, 0, 13, 0x45, 0, 1, 0x02, 0x06, 0, 0, 0, 0x06, 0, 0, 0xFFFFFFFF)


def refuse_new(listener: socket.socket) -> None:
    """Have the kernel drop new connections, so that the queue of the listening socket runs empty.

    Closing a listening socket resets the connections in its queue, although their requests may have been
    sent in full. Only Linux can do this: elsewhere a few connections may be reset.
    """
    if not sys.platform.startswith("linux"):
        return
    code = ctypes.create_string_buffer(_NO_SYN, len(_NO_SYN))
    program = _Program(len(_NO_SYN) // 8, ctypes.addressof(code))
    try:
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, bytes(program))
    except OSError as error:
        log.debug("cannot keep new connections out while the server stops: %s", error)
