"""One finding of a check, and how checks that fail are reported."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from hmi.errors import HmiError

Level = Literal["ok", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """The finding of one check."""

    check: str
    """The name of what was checked."""
    level: Level
    """`problem`: it does not work, or will not for long. `warning`: it works, and may surprise."""
    text: str
    """A description of the state, and for warnings and problems the cure."""


def ok(check: str, text: str) -> Finding:
    return Finding(check, "ok", text)


def warning(check: str, text: str) -> Finding:
    return Finding(check, "warning", text)


def problem(check: str, text: str) -> Finding:
    return Finding(check, "problem", text)


def findings_of(check: str, part: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """Yield what `part` finds. An error of its own becomes a problem."""
    try:
        yield from part()
    except HmiError as error:
        yield problem(check, error.message)
    except Exception as error:  # whatever is broken, the report must come to its end
        yield problem(check, f"the check itself failed ({type(error).__name__}: {error})")
