"""Control of iolog.so from a job: what to record, and which operations fail."""

from __future__ import annotations

import ctypes
import os
from typing import Final

ACTIONS: Final = {"fail": 1, "short": 2, "kill_before": 3, "kill_after": 4}
FOR_EVER: Final = 1 << 40


class Recorder:
    """Until `stop`, count the changes below `folder`, and record them if there is a log."""

    def __init__(self, folder: str, log: str | None = None) -> None:
        self._lib = ctypes.CDLL(None)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        self._lib.iolog_start(folder.encode(), -1 if log is None else os.open(log, flags))

    def plan(self, first: int, last: int, action: str, code: int = 0, kinds: str = "") -> None:
        """Operations first to last of these kinds, counted from now on, fail."""
        self._lib.iolog_plan(ctypes.c_long(first), ctypes.c_long(last), ACTIONS[action], code, kinds.encode())

    def count(self) -> int:
        self._lib.iolog_count.restype = ctypes.c_long
        return int(self._lib.iolog_count())

    def mark(self, text: str) -> None:
        self._lib.iolog_mark(text.encode())

    def stop(self) -> None:
        self._lib.iolog_stop()
