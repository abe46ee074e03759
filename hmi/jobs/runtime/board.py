"""A background job's process and the server that paces it tell each other their states in a few numbers.

They stand in a small file that both map into memory.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

from hmi.core import Pacing

HOLDING, RAN_US, PAUSED_US, STARVED = range(4)
_NUMBERS = struct.Struct("=4q")


class Board:
    """The numbers, as `jobs/<job>/.pacing` holds them. The job's process writes whether it holds a lock; the
    server writes the rest."""

    def __init__(self, path: Path) -> None:
        """Map the file. Raises OSError."""
        with path.open("r+b") as file:
            self._numbers = memoryview(mmap.mmap(file.fileno(), _NUMBERS.size)).cast("q")

    @classmethod
    def new(cls, path: Path) -> Board:
        """Make the file anew, with zeros, and map it. Raises OSError."""
        aside = path.with_suffix(".tmp")
        aside.write_bytes(bytes(_NUMBERS.size))
        aside.replace(path)  # a process that still maps the last one keeps it
        return cls(path)

    @property
    def holding(self) -> bool:
        """True if the job's process holds a lock that others may wait for. It must not be paused then."""
        return bool(self._numbers[HOLDING])

    def set_holding(self, value: bool) -> None:
        self._numbers[HOLDING] = value

    def set_times(self, ran_s: float, paused_s: float, starved: bool) -> None:
        """Write how long the process may have run and was paused, in seconds, and whether it is starved."""
        self._numbers[RAN_US], self._numbers[PAUSED_US] = int(ran_s * 1e6), int(paused_s * 1e6)
        self._numbers[STARVED] = starved


def read_pacing(path: Path) -> Pacing | None:
    """Read a board's times; None if there is no board."""
    try:
        found = _NUMBERS.unpack(path.read_bytes())
    except (OSError, struct.error):
        return None
    ran, paused, starved = found[RAN_US:]
    return Pacing(running_ms=ran // 1000, paused_ms=paused // 1000, starved=bool(starved))
