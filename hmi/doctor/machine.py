"""Checks of the machine: whether settings fit it, memory, disk, files, clock, certificate."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from hmi.config import Settings
from hmi.doctor.finding import Finding, findings_of, ok, problem, warning
from hmi.errors import InvalidInput
from hmi.model.memory import usable_memory
from hmi.sizes import size

DAY_S: Final = 86400.0
SOON_DAYS: Final = 21
"""A certificate or key that expires within this time is a warning."""
LITTLE_BYTES: Final = 1 << 30
"""Less free disk space than this is a warning."""
EARLIEST: Final = 1_700_000_000
"""A clock before this Unix time (November 2023) is wrong."""
REMOTE: Final = (
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "9p",
    "ceph",
    "glusterfs",
    "lustre",
    "afs",
    "virtiofs",
)
"""File systems on which locks and memory maps of several machines do not agree."""


def settings_findings(settings: Settings, *, serving: bool = False) -> Iterator[Finding]:
    """Check whether this machine can run a server with these settings.

    serving: a server that runs on the data folder already may use the port.
    """
    yield _data(settings)
    yield from findings_of("port", lambda: [_port(settings, serving)])
    yield from findings_of("tls_cert", lambda: _certificate(settings))
    yield from _memory(settings)
    yield from findings_of("max_connections", lambda: [_files(settings)])
    yield from findings_of("trace", lambda: _trace(settings))


def machine_findings(settings: Settings) -> Iterator[Finding]:
    """Check what settings do not name: the disk and its file system, and the clock."""
    folder = _existing(settings.data)
    free = shutil.disk_usage(folder).free
    told = f"{size(free)} free at {folder}"
    if free < settings.plot_min_free_bytes:
        cure = "free some space, or lower plot_min_free_bytes"
        yield problem(
            "disk", f"{told}, less than plot_min_free_bytes ({size(settings.plot_min_free_bytes)}): {cure}"
        )
    elif free < LITTLE_BYTES:
        yield warning("disk", f"{told}: free some space before the next build or fine-tuning")
    else:
        yield ok("disk", told)
    kind = _file_system(folder)
    if kind in REMOTE or kind.startswith("fuse"):
        yield problem("file system", f"{folder} lies on {kind}: move the data folder to a local file system")
    else:
        yield ok("file system", f"{folder} lies on {kind or 'an unknown file system'}")
    now = time.time()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
    if now < EARLIEST:
        yield problem("clock", f"the clock shows {stamp}: set it, for keys and certificates expire by it")
    else:
        yield ok("clock", stamp)


def expires_at(certificate: Path) -> float:
    """Return the Unix time at which the first certificate of a PEM file expires. Raises ssl.SSLError."""
    # The only reader of a certificate in the standard library that asks no server for it.
    decode: Any = getattr(ssl, "_ssl")._test_decode_cert  # noqa: B009  # a private module without types
    return float(ssl.cert_time_to_seconds(decode(str(certificate))["notAfter"]))


def _data(settings: Settings) -> Finding:
    folder = _existing(settings.data)
    if settings.data.exists() and not settings.data.is_dir():
        return problem("data", f"{settings.data} is no folder: name another with --data")
    if not os.access(folder, os.W_OK | os.X_OK):
        who = f"this user ({os.getuid()})"
        return problem(
            "data", f"{folder} cannot be written to by {who}: change its owner, or name another folder"
        )
    return ok("data", f"{settings.data} can be written to")


def _port(settings: Settings, serving: bool) -> Finding:
    from hmi.api.process.lock import live_server

    own = live_server(settings.data)
    where = f"{settings.host} port {settings.port}"
    if own is not None and serving:
        return ok("port", f"a server (process {own.pid}) runs on this data folder")
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0]
        with socket.socket(*found[:3]) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(found[4])
    except OSError as error:
        owner = f"; the server of this data folder (process {own.pid}) runs" if own is not None else ""
        why = f"{error.strerror or error}{owner}"
        return problem(
            "port", f"cannot listen on {where} ({why}): stop what listens there, or set host or port"
        )
    return ok("port", f"{where} is free")


def _certificate(settings: Settings) -> Iterator[Finding]:
    if settings.tls_cert is None:
        return
    from hmi.api.edge.tls import context_of

    try:
        context_of(settings)
    except InvalidInput as error:
        yield problem(error.details.get("field", "tls_cert"), error.message)
        return
    days = (expires_at(settings.tls_cert) - time.time()) / DAY_S
    if days < 0:
        yield problem("tls_cert", f"{settings.tls_cert} expired {-days:.0f} days ago: renew it")
    elif days < SOON_DAYS:
        yield warning(
            "tls_cert", f"{settings.tls_cert} expires in {days:.0f} days: renew it; no restart is needed"
        )
    else:
        yield ok("tls_cert", f"{settings.tls_cert} fits its key, and expires in {days:.0f} days")


def _memory(settings: Settings) -> Iterator[Finding]:
    usable = usable_memory()
    pool = settings.pool_bytes or usable // 4
    wanted = {"pool_bytes": pool, "root_bytes": settings.root_bytes, "body_bytes": settings.body_bytes}
    total = sum(wanted.values())
    told = ", ".join(f"{name} {size(value)}" for name, value in wanted.items() if value)
    text = f"{told}; the process may use {size(usable)}"
    if total > usable:
        yield problem("memory", f"{text}, which is less: lower them, or raise the limit of the container")
    elif total > 0.8 * usable:
        yield warning("memory", f"{text}, which leaves little for roots, PLOTs and jobs: lower them")
    else:
        yield ok("memory", text)


def _files(settings: Settings) -> Finding:
    from hmi.api.edge.capacity import MOST_CONNECTIONS, most_connections

    most = most_connections(settings)
    if most < MOST_CONNECTIONS // 4 and not settings.max_connections:
        return warning(
            "open files", f"the limit of open files allows {most} connections: raise it (ulimit -n)"
        )
    return ok("open files", f"the limit of open files allows {most} connections")


def _trace(settings: Settings) -> Iterator[Finding]:
    from importlib.util import find_spec

    if settings.trace != "off" and find_spec("opentelemetry") is None:
        yield problem(
            "trace", "OpenTelemetry is not installed: run pip install 'hmi-server[otel]', or set trace to off"
        )


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def _file_system(folder: Path) -> str:
    """The kind of the file system that `folder` lies on; "" if it is unknown."""
    best, kind = -1, ""
    with suppress(OSError):
        for line in Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines():
            _, mount, found, *_ = line.split(" ")
            mount = mount.replace("\\040", " ")
            if folder.resolve().is_relative_to(mount) and len(mount) > best:
                best, kind = len(mount), found
    return kind
