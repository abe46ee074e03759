"""A small real HTTP server whose answers a test writes down beforehand, and which keeps what it was sent."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Sent:
    """A request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Said:
    """An answer. `cut` closes the connection in the middle of the body; None as status closes it at once."""

    status: int | None = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False


def error(status: int, kind: str, retry_after: str | None = None, **details: Any) -> Said:
    shape = {"kind": kind, "message": f"it is {kind}", "details": details, "request_id": "r-1"}
    return Said(status, {"error": shape}, {"Retry-After": retry_after} if retry_after else {})


Script = Callable[[Sent, int], Said]


@dataclass
class Scripted:
    url: str
    sent: list[Sent] = field(default_factory=list)


class Handler(BaseHTTPRequestHandler):
    """Answers by the script of its server."""

    protocol_version = "HTTP/1.1"
    server: ScriptedServer

    def handle(self) -> None:
        try:
            super().handle()
        except (ConnectionError, ValueError, ssl.SSLError):
            self.close_connection = True  # the client is gone, or was cut off in a chunk

    def _answer(self) -> None:
        headers = {k.lower(): v for k, v in self.headers.items()}
        said = self.server.said(Sent(self.command, self.path, headers, self._body()))
        if said.status is None:
            self.close_connection = True
            return
        raw = said.body if isinstance(said.body, bytes) else json.dumps(said.body).encode()
        self.send_response(said.status)
        self.send_header("Content-Length", str(len(raw) + (1000 if said.cut else 0)))
        for name, value in said.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(raw)
        self.close_connection = self.close_connection or said.cut

    do_GET = do_POST = do_PATCH = do_DELETE = _answer  # noqa: N815 (names of http.server)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        pieces = []
        while size := int(self.rfile.readline() or b"cut", 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(pieces)

    def log_message(self, *values: Any) -> None:
        pass


class ScriptedServer(ThreadingHTTPServer):
    """A server on a free port of loopback that keeps what it was sent."""

    daemon_threads = True

    def __init__(self, script: Script, tls: ssl.SSLContext | None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        if tls is not None:  # the handshake is done in the handler's thread
            self.socket = tls.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        self.seen = Scripted(f"http{'s' if tls else ''}://127.0.0.1:{self.server_port}")
        self._script, self._lock = script, threading.Lock()

    def said(self, request: Sent) -> Said:
        """Return the script's answer to a request, which is kept."""
        with self._lock:
            at = len(self.seen.sent)
            self.seen.sent.append(request)
        return self._script(request, at)


@contextmanager
def scripted(script: Script, tls: ssl.SSLContext | None = None) -> Iterator[Scripted]:
    """Run a server that answers the n-th request (from 0) with script(request, n)."""
    server = ScriptedServer(script, tls)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
