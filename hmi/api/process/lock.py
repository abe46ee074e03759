"""Ownership of a data folder: a lock that the kernel frees when its server dies, and a note to find that
server."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hmi.core import now
from hmi.errors import Conflict
from hmi.stores.layout import Layout


@dataclass(frozen=True)
class LiveServer:
    """A server that runs. Its URL is "" and its process 0 if its note cannot be read."""

    url: str
    pid: int


def url_of(host: str, port: int, *, tls: bool = False) -> str:
    """The server's URL; `host` may be an IPv6 address."""
    scheme = "https" if tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


@contextmanager
def owning(data: Path) -> Iterator[None]:
    """Context manager: own the data folder. Raises Conflict, which names the server that owns it already."""
    data.mkdir(parents=True, exist_ok=True)
    fd = os.open(Layout(data).server_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(_in_use_message(data)) from None
        yield
    finally:
        os.close(fd)


@contextmanager
def announced(data: Path, url: str) -> Iterator[None]:
    """Context manager: write the note by which the command line finds this server, and remove it at the
    end."""
    note = Layout(data).server_note
    aside = note.with_suffix(".json.tmp")
    aside.write_text(json.dumps({"url": url, "pid": os.getpid(), "started": now()}) + "\n", encoding="utf-8")
    aside.replace(note)
    try:
        yield
    finally:
        note.unlink(missing_ok=True)


def live_server(data: Path) -> LiveServer | None:
    """The server that owns the data folder now, or None. A note without a held lock is from a dead server."""
    try:
        fd = os.open(Layout(data).server_lock, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read(data) or LiveServer("", 0)
    finally:
        os.close(fd)
    return None


def _read(data: Path) -> LiveServer | None:
    try:
        note = json.loads(Layout(data).server_note.read_text(encoding="utf-8"))
        return LiveServer(str(note["url"]), int(note["pid"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _in_use_message(data: Path) -> str:
    server = _read(data)
    where = f" ({server.url}, process {server.pid})" if server else ""
    return f"another server{where} serves {data}: stop it first, or give another --data"
