"""Runs the server process: from opening its socket to its shutdown on SIGTERM."""

from __future__ import annotations

import asyncio
import errno
import logging
import signal
import socket
import sys
import threading
import warnings
from contextlib import ExitStack
from typing import TYPE_CHECKING

from aiohttp import BadContentDispositionHeader, BadContentDispositionParam, web

from hmi.api.access.auth import check_binding
from hmi.api.edge.drain import CUT_S, leave
from hmi.api.edge.listener import Listener
from hmi.api.edge.tls import Certificates, certificates_of
from hmi.api.http.services import Services
from hmi.api.process import notify
from hmi.api.process.application import DRAIN_S, application, begin, drain
from hmi.api.process.building import build_services
from hmi.api.process.garbage import end_without_collections, short_collections
from hmi.api.process.lock import announced, owning, url_of
from hmi.config import Settings
from hmi.errors import Conflict, InvalidInput
from hmi.execution.compiling import compile_all
from hmi.manager.maintenance import probe_plots
from hmi.telemetry import logs

if TYPE_CHECKING:
    from hmi.api.rpc.server import RpcServer

log = logging.getLogger("hmi.api")
SWITCH_S = 0.0005
"""A thread that wants the interpreter's lock gets it from another after this many seconds. Python's default
is 5 ms. The event loop and the compute threads take the lock again every few hundred microseconds, and would
wait for 5 ms each time beside a thread that parses or tokenises."""


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or Ctrl-C. Blocks.

    Raises Conflict (the port or the data folder is in use), InvalidInput (a host that cannot be used, or
    that needs an administrator's key), Damaged, and Unavailable (the kernels cannot be compiled).
    """
    # Python remembers the text of each warning. These quote what clients send, so they would fill memory.
    for quoting in (BadContentDispositionHeader, BadContentDispositionParam):
        warnings.simplefilter("ignore", quoting)
    sys.setswitchinterval(SWITCH_S)
    end_without_collections()
    logs.configure(settings.log_format, settings.log_level)
    certificates = certificates_of(settings)
    with ExitStack() as stack:
        stack.enter_context(owning(settings.data))
        listener = stack.enter_context(_listen(settings.host, settings.port))
        probe_plots(settings.data)
        services = build_services(settings)
        check_binding(settings.host, services.manager.registry)
        url = url_of(settings.host, listener.getsockname()[1], tls=certificates is not None)
        stack.enter_context(announced(settings.data, url))
        asyncio.run(_serve(services, listener, url, certificates))


async def _serve(
    services: Services, listener: socket.socket, url: str, certificates: Certificates | None
) -> None:
    stop, stopping = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def end() -> None:
        stop.set()
        stopping.set()

    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, end)
    rpc = _rpc_server(services)
    if certificates is not None:
        certificates.on_reload.append(services.forwarder.renew)
    watching = _watch(certificates, loop)
    # handler_cancellation: when a client disconnects, its request is cancelled. dispatch
    # shields what must be finished.
    app = application(services, begun=False)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=CUT_S)
    services.lifecycle.phase = "compiling"
    await runner.setup()
    assert runner.server is not None
    door = Listener(listener, runner.server, services.settings, certificates)
    try:
        async with notify.watched(), short_collections(lambda: not services.lifecycle.in_flight.count):
            door.open()  # health calls are answered from here on
            if rpc is not None:
                await rpc.start()
            roots = services.manager.registry.roots(tolerant=True)
            generates = any(root.generates for root in roots)
            await asyncio.to_thread(compile_all, stopping, generates=generates)
            if not stopping.is_set():
                await begin(services, url)
                log.info("%s", greeting(services, url))
                notify.send_state("READY=1")
            await stop.wait()
            notify.send_state("STOPPING=1")
            log.info("stopping: new requests get 503, accepted ones are answered")
            until = loop.time() + DRAIN_S
            if rpc is not None:
                rpc.gate.stop()
            await drain(services)
            closing = [leave(runner.server, listener, door.stop, until)]
            await asyncio.gather(*closing, *([] if rpc is None else [rpc.stop()]))
            log.info("stopped: %d requests got 503 meanwhile", services.lifecycle.refused)
    finally:
        if watching is not None:
            watching.cancel()
        await door.stop()
        await runner.cleanup()


def _watch(certificates: Certificates | None, loop: asyncio.AbstractEventLoop) -> asyncio.Task[None] | None:
    """Reload the certificate on SIGHUP and when its files change. Without one, SIGHUP ends the process, but
    under systemd does nothing, since there it comes from `systemctl reload`."""
    if certificates is None:
        if notify.supervised():
            loop.add_signal_handler(signal.SIGHUP, lambda: None)
        return None
    loop.add_signal_handler(signal.SIGHUP, certificates.reload)
    return loop.create_task(certificates.watch())


def _rpc_server(services: Services) -> RpcServer | None:
    """The server of gRPC; None if it is off. Raises InvalidInput without the extra, and Conflict if the port
    is in use."""
    if not services.settings.grpc_port:
        return None
    try:
        from hmi.api.rpc.server import RpcServer
    except ImportError as error:
        raise InvalidInput(
            "grpc_port needs the extra grpc: pip install 'hmi-server[grpc]', or set it to 0",
            field="grpc_port",
        ) from error
    return RpcServer(services)


def greeting(services: Services, url: str) -> str:
    """The line of the log that tells the operator where the server listens, and whether it needs keys."""
    port = services.settings.grpc_port
    where = f"serving {services.settings.data} on {url}{f' and gRPC on port {port}' if port else ''}"
    where += " (Ctrl-C or SIGTERM stops it)"
    if services.access.auth.open():
        return (
            f"{where}, WITHOUT an administrator's key: loopback only, and every program on this machine "
            "may do everything. 'hmi key create --admin' makes one"
        )
    return f"{where}; every request needs a key"


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises Conflict for a port in use, and InvalidInput for a host or port that
    cannot be used."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise InvalidInput(f"host {host!r} is unknown ({error}): give an address", field="host") from error
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise _cannot_bind(error, host, port) from error
    return listener


def _cannot_bind(error: OSError, host: str, port: int) -> Exception:
    if error.errno == errno.EADDRINUSE:
        return Conflict(f"port {port} is in use: stop what listens there, or choose another with --port")
    if error.errno == errno.EACCES:
        return InvalidInput(f"port {port} needs a privilege: choose one above 1023 with --port", field="port")
    return InvalidInput(f"cannot listen on {host} port {port} ({error.strerror})", field="host")
