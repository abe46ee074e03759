"""The record of finished runs, one JSON line each, so that an interrupted benchmark can continue."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from hmi.errors import Damaged

RunSpec = dict[str, Any]


class RunFile:
    """A file of lines {"spec": …, "result": …}.

    Of equal specs the last one counts. Only one process may write it.
    """

    def __init__(self, path: Path) -> None:
        """Read the file. A last line without its end was cut off by a crash: it is ignored and overwritten.

        Raises Damaged.
        """
        self._path = path
        self._found: dict[str, tuple[RunSpec, Any]] = {}
        whole = path.read_bytes() if path.is_file() else b""
        self._end = whole.rfind(b"\n") + 1
        for number, line in enumerate(whole[: self._end].splitlines(), 1):
            try:
                entry = json.loads(line)
                self._found[_key(entry["spec"])] = (entry["spec"], entry["result"])
            except (ValueError, KeyError, TypeError) as error:
                raise Damaged(f"line {number} of {path} is not a run ({error}): remove it") from error

    def get(self, spec: RunSpec) -> Any | None:
        """Return the result of a run, or None if it has not finished."""
        found = self._found.get(_key(spec))
        return None if found is None else found[1]

    def all(self) -> list[tuple[RunSpec, Any]]:
        return list(self._found.values())

    def put(self, spec: RunSpec, result: Any) -> None:
        """Store a result. It is on the disk when this returns."""
        line = json.dumps({"spec": spec, "result": result}, separators=(",", ":")).encode() + b"\n"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("r+b" if self._path.exists() else "wb") as file:
            file.truncate(self._end)
            file.seek(self._end)
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self._end += len(line)
        self._found[_key(spec)] = (spec, result)


def _key(spec: RunSpec) -> str:
    return json.dumps(spec, sort_keys=True)
