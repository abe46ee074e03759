"""Options that set a tenant's limits, and their values in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

from hmi.cli.framework.options import Bytes, Number, Whole
from hmi.cli.framework.output import size
from hmi.tenancy import MAX_BYTES, MAX_MODELS, MAX_REQUESTS_PER_S, MAX_TOKENS_PER_S

DEFAULT = "default"
KEPT = " 0: no limit; default: the server's."


class OrDefault(click.ParamType):  # type: ignore[type-arg]  # click 8.1 has no argument there
    """A value of another type, or the word `default`, which stands for the server's default."""

    def __init__(self, inner: click.ParamType) -> None:  # type: ignore[type-arg]
        self._inner, self.name = inner, inner.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if value == DEFAULT else self._inner.convert(value, param, ctx)


class BytesOrZero(Bytes):
    """A size in bytes, or 0."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = 0 if value == "0" else super().convert(value, param, ctx)
        if found > MAX_BYTES:
            self.fail(f"{value!r} is too large: give at most {MAX_BYTES}", param, ctx)
        return found


OPTIONS = (
    ("--requests-per-s", Number(0, MAX_REQUESTS_PER_S), "Calls to infer a second that it may make."),
    ("--tokens-per-s", Number(0, MAX_TOKENS_PER_S), "Tokens of texts a second that it may send."),
    ("--models", Whole(0, MAX_MODELS), "Models that it may have."),
    ("--bytes", BytesOrZero(), "Bytes that it may store, such as 500M."),
)


def limit_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add an option for each limit."""
    for name, kind, about in reversed(OPTIONS):
        function = click.option(name, type=OrDefault(kind), metavar="LIMIT", help=about + KEPT)(function)
    return function


def given_limits(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the limits among a command's options, as a request has them; those that were not given are
    left out."""
    given = {name: value for name, value in options.items() if value is not None}
    return {name: None if value == DEFAULT else value for name, value in given.items()}


def in_words(limits: Mapping[str, Any]) -> str:
    """Return a tenant's own limits on one line."""
    words = [_words(name, value) for name, value in limits.items() if value is not None]
    return ", ".join(words) or "the server's defaults"


def quota_fields(quota: Mapping[str, Any]) -> dict[str, str]:
    """Return a line for each limit that holds, with what is left of it."""
    found = {}
    for name, state in quota.items():
        if state is None:
            continue
        if "limit" in state:
            show = size if name == "bytes" else str
            found[name] = f"{show(state['used'])} of {show(state['limit'])} used"
        else:
            found[name] = f"{state['per_s']:g}, {state['left']:g} left of {state['burst']:g} at once"
    return found or {"in force": "no limits"}


def _words(name: str, value: float) -> str:
    what = name.replace("_per_s", " a second")
    if not value:
        return f"no limit on {what}"
    if name == "bytes":
        return f"{size(value)} stored"
    return f"{value:g} {what}"
