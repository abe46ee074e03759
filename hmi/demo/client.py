"""A small HTTP client for the demo: JSON and multipart calls. It raises the server's errors as HmiErrors."""

from __future__ import annotations

import http.client
import json
import select
import threading
import time
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hmi.errors import HmiError, Unavailable

_TRIES = 8
_TIMEOUT_S = 120


class DemoClient:
    """A client of one server. Thread-safe: each thread has its own connection.

    `call` raises the HmiError of the kind that the server names, or Unavailable if the server cannot be
    reached. Answers 429 and 503 are retried after the time that they give.
    """

    def __init__(self, host: str, port: int, key: str | None = None) -> None:
        self.host, self.port, self._key = host, port, key
        self._local = threading.local()

    @property
    def address(self) -> str:
        return f"http://{self.host}:{self.port}"

    def get(self, path: str) -> Any:
        return self.call("GET", path)

    def post(
        self, path: str, body: Any, *, files: Mapping[str, Path] | None = None, key: str | None = None
    ) -> Any:
        """POST JSON, or multipart with `body` as the part `spec` if there are files."""
        if files:
            content, kind = _multipart(body, files)
        else:
            content, kind = json.dumps(body, ensure_ascii=False).encode(), "application/json"
        return self.call("POST", path, content, {"Content-Type": kind}, key=key)

    def call(
        self,
        method: str,
        path: str,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        key: str | None = None,
    ) -> Any:
        key = key or self._key
        sent = {**(headers or {}), **({"Authorization": f"Bearer {key}"} if key else {})}
        for attempt in range(_TRIES):
            status, wait_s, raw = self._exchange(method, path, content, sent)
            if status not in (429, 503) or attempt == _TRIES - 1:
                break
            time.sleep(wait_s)
        return _answer(status, raw)

    def ready(self) -> bool:
        """Return whether the server is ready."""
        try:
            return self._exchange("GET", "/readyz", None, {})[0] == 200
        except Unavailable:
            return False

    def _exchange(
        self, method: str, path: str, content: bytes | None, headers: Mapping[str, str]
    ) -> tuple[int, float, bytes]:
        connection = self._connection()
        try:
            connection.request(method, path, content, dict(headers))
            response = connection.getresponse()
            return response.status, _retry_after(response), response.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise Unavailable(f"{self.address} does not answer ({error}): see the server's log") from error

    def _connection(self) -> http.client.HTTPConnection:
        found: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if found is None:
            found = http.client.HTTPConnection(self.host, self.port, timeout=_TIMEOUT_S)
            self._local.connection = found
        if found.sock is not None and select.select([found.sock], [], [], 0)[0]:
            found.close()  # the server has closed it, since it was idle: the next request opens it again
        return found


def _retry_after(response: http.client.HTTPResponse) -> float:
    try:
        return min(10.0, float(response.headers.get("Retry-After", "1")))
    except ValueError:
        return 1.0


def _answer(status: int, raw: bytes) -> Any:
    try:
        body = json.loads(raw) if raw else None
    except ValueError as error:
        raise Unavailable(f"the server answered {status} without JSON: {raw[:200]!r}") from error
    if status < 400:
        return body
    details = body.get("error", {}) if isinstance(body, dict) else {}
    kind = _KINDS.get(details.get("kind", ""), HmiError)
    raise kind(f"{details.get('message', f'the server answered {status}')}", status=status)


def _all_kinds(kind: type[HmiError]) -> Iterable[type[HmiError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _all_kinds(below)


_KINDS = {kind.kind: kind for kind in _all_kinds(HmiError)}


def _multipart(spec: Any, files: Mapping[str, Path]) -> tuple[bytes, str]:
    boundary = uuid.uuid4().hex
    parts = [('name="spec"\r\nContent-Type: application/json', json.dumps(spec, ensure_ascii=False).encode())]
    parts += [
        (
            f'name="{name}"; filename="{path.name}"\r\nContent-Type: application/octet-stream',
            path.read_bytes(),
        )
        for name, path in files.items()
    ]
    body = b"".join(
        f"--{boundary}\r\nContent-Disposition: form-data; {head}\r\n\r\n".encode() + content + b"\r\n"
        for head, content in parts
    )
    return body + f"--{boundary}--\r\n".encode(), f"multipart/form-data; boundary={boundary}"
