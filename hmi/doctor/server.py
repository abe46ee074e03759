"""Checks of a running server: whether it is reachable and ready, its release, and its clock."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Final, Protocol

import hmi
from hmi.config import Settings
from hmi.doctor.finding import Finding, ok, problem, warning
from hmi.errors import HmiError

SKEW_S: Final = 5.0
"""A larger difference of two clocks is a warning."""


class ServerAnswer(Protocol):
    """An answer of a server, whatever its status. The names of headers are in lower case."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def text(self) -> str: ...


Ask = Callable[[str], ServerAnswer]
"""Makes a GET of a path. Raises HmiError if no server answers."""


def own_server_findings(settings: Settings, ask_of: Callable[[str], Ask]) -> Iterator[Finding]:
    """Check the server that runs on the data folder, if one does. ask_of: makes calls of a URL."""
    from hmi.api.process.lock import live_server

    found = live_server(settings.data)
    if found is None:
        yield ok("server", "no server runs on this data folder")
    elif not found.url:
        yield warning(
            "server", "a server owns the data folder, but its note server.json cannot be read: restart it"
        )
    else:
        yield from server_findings(found.url, ask_of(found.url))


def server_findings(url: str, ask: Ask) -> Iterator[Finding]:
    """Check the server at `url`."""
    begun = time.time()
    try:
        answer = ask("/readyz")
    except HmiError as error:
        yield problem("server", error.message)
        return
    took_ms = (time.time() - begun) * 1e3
    if answer.status == 200:
        yield ok("server", f"{url} is ready, and answered in {took_ms:.0f} ms")
    else:
        yield problem("server", f"{url} answers, but is not ready: {_message(answer)}")
    yield from _skew(answer, begun)
    yield from _release(ask)


def _message(answer: ServerAnswer) -> str:
    """The message of an error, or the beginning of another answer."""
    try:
        return str(json.loads(answer.text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"status {answer.status}: {answer.text[:200]!r}"


def _skew(answer: ServerAnswer, begun: float) -> Iterator[Finding]:
    date = answer.headers.get("date")
    if date is None:
        return
    now = (begun + time.time()) / 2
    skew = parsedate_to_datetime(date).timestamp() + 0.5 - now  # the header has whole seconds
    if abs(skew) > SKEW_S:
        cure = "set both clocks, for keys and deadlines depend on them"
        yield warning("time", f"the server's clock is {skew:+.0f} s from this machine's: {cure}")
    else:
        yield ok("time", "the server's clock and this machine's agree")


def _release(ask: Ask) -> Iterator[Finding]:
    """Compare the server's release with this one."""
    try:
        answer = ask("/metrics")
    except HmiError:
        return
    found = re.search(r'^hmi_info\{version="([^"]+)"\} 1', answer.text, re.MULTILINE)
    if found is None:
        return
    if found[1] == hmi.__version__:
        yield ok("release", f"the server runs hmi {found[1]}, as this command does")
    else:
        cure = "restart it after an upgrade"
        yield warning("release", f"the server runs hmi {found[1]}, this command is {hmi.__version__}: {cure}")
