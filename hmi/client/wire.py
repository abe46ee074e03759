"""The link between calls and httpx: settings, time limits, and which failures may have reached the server."""

from __future__ import annotations

import ssl
from typing import Any

import httpx

import hmi
from hmi.client.calls import Call
from hmi.client.config import Config
from hmi.client.errors import InvalidInput, Unreachable
from hmi.client.uploads import Multipart
from hmi.sizes import counted

CONNECT_S = 10.0
SILENCE_S = 60.0
"""A stream of a job's events sends at least a comment in this many seconds."""
NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)


def connection_settings(config: Config) -> dict[str, Any]:
    """Return the arguments of httpx's clients. Raises InvalidInput if the certificates cannot be used."""
    headers = {"User-Agent": f"hmi-client/{hmi.__version__}", "Accept": "application/json"}
    if config.key:
        headers["Authorization"] = f"Bearer {config.key}"
    # Reading certificates takes tens of milliseconds, which an address without TLS need not spend.
    verify: ssl.SSLContext | bool = _trust(config) if config.secure else False
    limits = httpx.Limits(max_connections=100, max_keepalive_connections=32, keepalive_expiry=30.0)
    settings = {"headers": headers, "verify": verify, "limits": limits, "follow_redirects": False}
    # No proxy of the environment reaches this machine's own loopback address.
    return {**settings, "trust_env": not config.on_loopback}


def _trust(config: Config) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=config.ca)
        if config.certificate:
            # A passphrase would be asked for at the terminal; an empty one makes an encrypted key an error.
            context.load_cert_chain(config.certificate, password=lambda: "")
    except OSError as error:  # ssl's errors are of this kind, too
        raise InvalidInput(f"ca or certificate cannot be used ({error}); give files in PEM") from error
    return context


def budget_s(config: Config, call: Call) -> float:
    """Return the longest time of a call, with its repetitions and the waits between them."""
    if call.writes:
        return config.writing_timeout_s
    return config.upload_timeout_s if call.uploads else config.timeout_s


def timeouts(left_s: float) -> httpx.Timeout:
    return httpx.Timeout(left_s, connect=min(left_s, CONNECT_S))


def stream_timeouts(config: Config, call: Call) -> httpx.Timeout:
    silence_s = config.writing_timeout_s if call.writes else SILENCE_S
    return httpx.Timeout(silence_s, connect=CONNECT_S)


def request_parts(config: Config, call: Call, elapsed_s: float) -> tuple[dict[str, Any], Multipart | None]:
    """Return (the arguments of httpx's request, the multipart body if there is one)."""
    headers = dict(call.headers)
    given: dict[str, Any] = {"method": call.method, "url": config.url + call.path, "headers": headers}
    if call.query:
        given["params"] = dict(call.query)
    if call.uploads:
        multipart = Multipart(call.body, call.uploads, call.form)
        headers |= multipart.headers
        return given, multipart
    content = call.payload(elapsed_s)
    if content is not None:
        headers["Content-Type"] = "application/json"
        given["content"] = content
    return given, None


def broken_off(config: Config, pieces: int, why: str) -> Unreachable:
    """Return the error for a stream that ended in the middle. pieces: the events that came before."""
    when = f"after {counted(pieces, 'piece')}" if pieces else "before its first piece"
    return Unreachable(f"the stream of {config.url} broke off {when} ({why}): ask again", sent=True)


def why_failed(error: httpx.HTTPError | httpx.InvalidURL) -> str:
    """Return the reason that an error gives, or the name of its kind."""
    return str(error) or type(error).__name__


def unreachable(config: Config, error: httpx.HTTPError | httpx.InvalidURL) -> Unreachable:
    """Return the error for a call without an answer."""
    sent = not isinstance(error, NOT_SENT)
    if isinstance(error, httpx.TimeoutException) and sent:
        return Unreachable(f"{config.url} did not answer in time; the call may have been done", sent=True)
    why = why_failed(error)
    if isinstance(error.__cause__, ssl.SSLCertVerificationError) or "CERTIFICATE_VERIFY_FAILED" in why:
        why = f"its certificate cannot be trusted: give its authority's with ca, or HMI_CA; {why}"
        return Unreachable(f"no answer from {config.url} ({why})", sent=False)
    return Unreachable(f"no answer from {config.url} ({why}): is 'hmi serve' running there?", sent=sent)
