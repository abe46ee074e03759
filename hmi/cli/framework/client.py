"""A small client of the native HTTP API, built on urllib."""

from __future__ import annotations

import http.client
import json
import ssl
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from hmi.errors import HmiError, InvalidInput, Unavailable

T = TypeVar("T")
CHUNK = 1 << 18


class RemoteError(HmiError):
    """An error that the server answered. `remote_kind` is the error's kind."""

    def __init__(
        self,
        message: str,
        *,
        remote_kind: str,
        status: int,
        retry_after: float = 0.0,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.details = dict(details or {})
        self.remote_kind = remote_kind
        self.status = status
        self.retry_after = retry_after


class _EarlyAnswerHttp(http.client.HTTPConnection):
    """A connection that still reads the answer if the server refuses an upload early and closes."""

    def request(self, *args: Any, **kwargs: Any) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):
            super().request(*args, **kwargs)


class _EarlyAnswerHttps(_EarlyAnswerHttp, http.client.HTTPSConnection):
    pass


class _Http(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_EarlyAnswerHttp, req)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__(context=context)
        self._tls = context

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_EarlyAnswerHttps, req, context=self._tls)


@cache
def _opener(secure: bool, ca: Path | None, certificate: Path | None) -> urllib.request.OpenerDirector:
    """secure: whether the server has an https address. Raises InvalidInput for files that cannot be used."""
    if not secure:
        return urllib.request.build_opener(_Http)
    return urllib.request.build_opener(_Http, _Https(_context(ca, certificate)))


def _context(ca: Path | None, certificate: Path | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca)
    except OSError as error:
        cure = "give a PEM file with certificates"
        raise InvalidInput(f"--ca {ca} cannot be used ({_reason(error)}): {cure}", field="ca") from error
    if certificate is not None:
        try:
            context.load_cert_chain(certificate, password=lambda: "")
        except OSError as error:
            cure = "give a PEM file with a certificate and its key, without a passphrase"
            raise InvalidInput(
                f"HMI_CLIENT_CERT={certificate} cannot be used ({_reason(error)}): {cure}"
            ) from error
    return context


def _reason(error: OSError) -> str:
    return str(getattr(error, "reason", None) or error.strerror or error)


@dataclass(frozen=True)
class HttpAnswer:
    """An answer of a server, whatever its status. The names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    text: str


@dataclass(frozen=True)
class HttpClient:
    """A client of one server.

    `patience_s` is how long a call is retried while the server is unreachable, busy or restarting.
    """

    url: str
    key: str | None = None
    ca: Path | None = None
    """A PEM file with the authorities that may sign the server's certificate; None: the machine's own."""
    certificate: Path | None = None
    """A PEM file with a certificate and its key, for servers that ask for one."""
    timeout_s: float = 60.0
    patience_s: float = 0.0

    def __post_init__(self) -> None:
        _check_address(self.url)
        if self.key is not None and not (self.key.isascii() and self.key.isprintable()):
            raise InvalidInput("--key holds characters that cannot be in a key: copy it again")

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        files: Mapping[str, Path] | None = None,
        query: Mapping[str, str] | None = None,
        once: str | None = None,
    ) -> Any:
        """Return the decoded JSON answer. `once` is an Idempotency-Key; a POST without one is not retried.

        Raises RemoteError with the server's message, Unavailable if no server answers.
        """
        give_up = time.monotonic() + self.patience_s
        safe = method in ("GET", "DELETE") or once is not None
        wait = 0.2
        while True:
            try:
                return self._send(method, path, body, files, query, once)
            except (RemoteError, Unavailable) as error:
                busy = isinstance(error, Unavailable) or _may_retry(error)
                if not (busy and safe) or time.monotonic() + wait > give_up:
                    raise
                time.sleep(max(wait, error.retry_after if isinstance(error, RemoteError) else 0.0))
                wait = min(wait * 2, 5.0)

    def _send(
        self,
        method: str,
        path: str,
        body: Any,
        files: Mapping[str, Path] | None,
        query: Mapping[str, str] | None,
        once: str | None,
    ) -> Any:
        request = self._request(method, path, f"?{urlencode(query)}" if query else "")
        if once:
            request.add_header("Idempotency-Key", once)
        if files:
            _attach(request, body, files)
        elif body is not None:
            request.add_header("Content-Type", "application/json")
            request.data = json.dumps(body).encode()
        return self._open(request)

    def text(self, path: str) -> str:
        """Return the answer of a GET as text. Raises as `request`, and never tries again."""
        request = self._request("GET", path)
        return self._open(request, lambda answer: str(answer.read().decode(errors="replace")))

    def answer(self, path: str) -> HttpAnswer:
        """Return the answer of a GET, whatever its status. Raises Unavailable, and InvalidInput for files and
        certificates."""
        request = self._request("GET", path)
        try:
            return self._open(request, lambda found: _answer(found.status, found))
        except RemoteError as error:
            cause = error.__cause__
            assert isinstance(cause, urllib.error.HTTPError)
            body = json.dumps({"error": {"kind": error.remote_kind, "message": error.message}})
            return HttpAnswer(error.status, _headers(cause), body)

    def _request(self, method: str, path: str, query: str = "") -> urllib.request.Request:
        url = self.url.rstrip("/") + quote(path, safe="/%") + query
        request = urllib.request.Request(url, method=method)
        if self.key:
            request.add_header("Authorization", f"Bearer {self.key}")
        return request

    def _open(self, request: urllib.request.Request, read: Callable[[Any], T] = json.load) -> T:
        try:
            opener = _opener(self.url.lower().startswith("https:"), self.ca, self.certificate)
            with opener.open(request, timeout=self.timeout_s) as answer:
                return read(answer)
        except urllib.error.HTTPError as error:
            raise _remote(error) from error
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            if isinstance(reason, ssl.SSLCertVerificationError):
                cure = "give its authority's certificate with --ca FILE, or HMI_CA"
                why = f"the certificate of {self.url} cannot be trusted ({reason.verify_message})"
                raise InvalidInput(f"{why}: {cure}") from error
            raise Unavailable(
                f"no answer from {self.url} ({reason}): is 'hmi serve' running there?"
            ) from error
        except ValueError as error:
            raise InvalidInput(f"{self.url} does not answer like HMI ({error}): check --url") from error


def _answer(status: int, found: Any) -> HttpAnswer:
    return HttpAnswer(status, _headers(found), found.read().decode(errors="replace"))


def _headers(found: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in found.headers.items()}


def _check_address(url: str) -> None:
    """Raises InvalidInput unless `url` is an http or https address; urllib would open files as well."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
        sound = parts.scheme in ("http", "https") and bool(host) and not (parts.query or parts.fragment)
        (host or "").encode("idna")
    except ValueError:
        sound = False
    if not sound or not url.isprintable() or " " in url:
        raise InvalidInput(f"--url {url!r} is no address: give one like http://host:8080")


def _may_retry(error: RemoteError) -> bool:
    """Return whether another try may succeed. A 429 without Retry-After says that time does not help."""
    return error.status == 503 or (error.status == 429 and error.retry_after > 0)


def _remote(error: urllib.error.HTTPError) -> RemoteError:
    retry_after = error.headers.get("Retry-After", "0")
    try:
        answer = json.load(error)["error"]
        message, details = str(answer["message"]), dict(answer.get("details") or {})
        kind = str(answer["kind"] if "kind" in answer else answer["code"])
    except (ValueError, KeyError, TypeError):
        message, kind, details = f"the server answered {error.code} {error.reason}", "unknown", {}
    seconds = float(retry_after) if retry_after.isdigit() else 0.0
    return RemoteError(message, remote_kind=kind, status=error.code, retry_after=seconds, details=details)


def _attach(request: urllib.request.Request, spec: Any, files: Mapping[str, Path]) -> None:
    """Make `request` a multipart upload that streams its files from disk."""
    boundary = uuid.uuid4().hex
    heads = [(_head(boundary, name), path) for name, path in files.items()]
    first = _head(boundary, "spec", "application/json") + json.dumps(spec or {}).encode() + b"\r\n"
    last = f"--{boundary}--\r\n".encode()
    try:
        size = len(first) + len(last) + sum(len(h) + p.stat().st_size + 2 for h, p in heads)
    except OSError as error:
        raise InvalidInput(f"{error.filename} cannot be read: {error.strerror}", field="data") from error
    request.data = _stream(first, heads, last)
    request.add_header("Content-Type", f"multipart/form-data; boundary={boundary}")
    request.add_header("Content-Length", str(size))  # setting the data removes this header, so it comes after


def _head(boundary: str, name: str, kind: str = "application/octet-stream") -> bytes:
    disposition = f'form-data; name="{name}"' + ("" if name == "spec" else f'; filename="{name}"')
    return f"--{boundary}\r\nContent-Disposition: {disposition}\r\nContent-Type: {kind}\r\n\r\n".encode()


def _stream(first: bytes, heads: list[tuple[bytes, Path]], last: bytes) -> Iterator[bytes]:
    yield first
    for head, path in heads:
        yield head
        with path.open("rb") as file:
            yield from iter(lambda: file.read(CHUNK), b"")
        yield b"\r\n"
    yield last
