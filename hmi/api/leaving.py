"""Closing all connections at shutdown, after every client that sent a request has its answer."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import socket
import struct
import sys
from collections.abc import Awaitable, Callable

from aiohttp import web

log = logging.getLogger("hmi.api")
LINGER_S = 1.0
"""How long an idle connection stays open for a request, which then gets a 503."""
GRACE_S = 1.0
"""The least time that a client has to read an answer, however late the answer was ready."""
CUT_S = 0.5
"""aiohttp waits twice so long for the handlers of connections that are cut."""
POLL_S = 0.02


async def leave(
    server: web.Server, listener: socket.socket, stop_accepting: Callable[[], Awaitable[None]], until: float
) -> None:
    """Take no more connections and wait for the ends of those there are, until `until` (of the loop's clock).

    `stop_accepting` closes the listener. What is left in the end, since its answer is never read, is to be
    cut.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    refuse_new(listener)
    await _ended(server, loop.time() + LINGER_S)
    await stop_accepting()
    server.pre_shutdown()  # those that are at work end with this request, the others wait for none
    while not await _ended(server, loop.time() + POLL_S):
        for connection in server.connections:
            if _waits(connection):
                connection.force_close()
        if loop.time() > max(until, began + LINGER_S + GRACE_S):
            log.warning(
                "stopping with %d connections cut: their answers are read too slowly", len(server.connections)
            )
            return


async def _ended(server: web.Server, until: float) -> bool:
    """Whether every connection was closed, and its answer with the kernel, before `until`."""
    loop = asyncio.get_running_loop()
    while server.connections and loop.time() < until:
        await asyncio.sleep(POLL_S)
    return not server.connections


def _waits(connection: web.RequestHandler) -> bool:
    """Whether it has no request at work. aiohttp ends its task then, and forgets to close it."""
    task = connection._task_handler
    return task is not None and task.done()


class _Program(ctypes.Structure):
    """struct sock_fprog of <linux/filter.h>."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


_SO_ATTACH_FILTER = 26
# Load the flags of the TCP header; with SYN among them drop the packet, else keep it whole.
_NO_SYN = struct.pack("HBBI" * 4, 0x30, 0, 0, 13, 0x45, 0, 1, 0x02, 0x06, 0, 0, 0, 0x06, 0, 0, 0xFFFFFFFF)


def refuse_new(listener: socket.socket) -> None:
    """Have the kernel ignore whoever wants to connect from now on, while the loop accepts those that have.

    Closing a socket that listens resets the connections in its queue, whose requests may have been sent in
    full. So the queue must run empty first. On Linux only: elsewhere there is no way, and a few may be reset.
    """
    if not sys.platform.startswith("linux"):
        return
    code = ctypes.create_string_buffer(_NO_SYN, len(_NO_SYN))
    program = _Program(len(_NO_SYN) // 8, ctypes.addressof(code))
    try:
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, bytes(program))
    except OSError as error:
        log.debug("new connections cannot be kept out before the end: %s", error)
