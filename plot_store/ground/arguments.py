"""Checks of a caller's numbers and paths. Each error names the argument and the cure."""

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
    """Check that a number lies in least..most; `whole` also requires an integer.

    Raises Invalid. NaN and booleans are not numbers here. `cure` ends the message.
    """
    known = isinstance(value, _WHOLE if whole else _ANY) and not isinstance(value, bool)
    if not known or not least <= value <= most:
        raise Invalid(f"{name} = {value!r}: {cure}")


def check_path(name: str, value: Any) -> Path:
    """Return the value as a Path. Raises Invalid for a value of another type or with NUL characters."""
    try:
        path = Path(value)
    except TypeError:
        path = Path("\0")
    if "\0" in str(path):
        raise Invalid(f"{name} = {value!r} is not a path: pass a str or Path without NUL characters")
    return path
