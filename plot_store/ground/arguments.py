"""Checking a caller's numbers and paths: each error names the argument and the cure."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from plot_store.ground.errors import Invalid

_WHOLE = (int, np.integer)
_ANY = (int, float, np.integer, np.floating)


def check_number(
    name: str, value: Any, cure: str, *, least: float, most: float = math.inf, whole: bool = False
) -> None:
    """Raises Invalid unless the value is a number (a whole one) of least..most; NaN and booleans are none."""
    known = isinstance(value, _WHOLE if whole else _ANY) and not isinstance(value, bool)
    if not known or not least <= value <= most:
        raise Invalid(f"{name} = {value!r}: {cure}")


def check_path(name: str, value: Any) -> Path:
    """The path as one. Raises Invalid for what the operating system cannot take for a path."""
    try:
        path = Path(value)
    except TypeError:
        path = Path("\0")
    if "\0" in str(path):
        raise Invalid(f"{name} = {value!r} is no path: pass a str or Path without NUL characters")
    return path
