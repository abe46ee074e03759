"""The server's log lines, as text or as JSON, with the request that they belong to.

Whatever a message holds, it stays on its line: control characters are escaped, so nobody can forge a line.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from typing import Any, TextIO

from hmi.telemetry.context import CURRENT

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_CONTEXT = ("request_id", "trace_id", "tenant", "model")
MAX_CHARACTERS = 16_384
"""Longer messages and tracebacks are cut: a caller may have caused their length."""


def configure(form: str = "text", level: str = "info") -> None:
    """Write log lines of `level` and above to stderr: as `text`, or as `json`. Replaces an earlier call's."""
    root = logging.getLogger()
    for handler in [h for h in root.handlers if isinstance(h, _Stderr)]:
        root.removeHandler(handler)
    handler = _Stderr()
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    root.addHandler(handler)
    root.setLevel(level.upper())


class TextFormatter(logging.Formatter):
    """One line for people; the lines of a traceback follow, each after a bar."""

    def format(self, record: logging.LogRecord) -> str:
        context = " ".join(f"{name}={value}" for name, value in _context().items())
        line = f"{self.formatTime(record)} {record.levelname} {escaped(record.getMessage())}"
        if context:
            line += f" [{escaped(context)}]"
        trace = _traceback(self, record)
        return line if trace is None else "\n".join([line, *(f"  | {escaped(t)}" for t in trace.split("\n"))])


class JsonFormatter(logging.Formatter):
    """One JSON object a line, in ASCII."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{at}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage()[:MAX_CHARACTERS],
            **_context(),
            **getattr(record, "fields", {}),
        }
        trace = _traceback(self, record)
        if trace is not None:
            line["exception"] = trace
        return json.dumps(line, default=str)


def escaped(text: str) -> str:
    """Return text on one line, its control characters as \\n, \\x1b and so on."""
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text[:MAX_CHARACTERS])


def _context() -> dict[str, str]:
    current = CURRENT.get()
    if current is None:
        return {}
    return {name: value for name in _CONTEXT if (value := getattr(current, name))}


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str | None:
    return formatter.formatException(record.exc_info)[-MAX_CHARACTERS:] if record.exc_info else None


class _Stderr(logging.StreamHandler[TextIO]):
    """Writes to what `sys.stderr` is at the time of each line."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]  # an attribute there
        return sys.stderr
