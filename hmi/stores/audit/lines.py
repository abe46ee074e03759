"""The form of the audit log's lines and files.

A line is a JSON object whose last field is `hash`, the SHA-256 of the hash of the line before it and of the
line itself without that field. So a line cannot be changed, removed or inserted without changing the hashes
of all lines after it. The first line of each file names the hash that it follows.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FIRST_HASH = "0" * 64
"""The hash that the log's very first line follows."""
OPENED, DROPPED = "opened", "dropped"
"""The events of a file's first line, and of the removal of old files."""
LONGEST = 200
"""Characters that a line keeps of a value."""
_FILE = re.compile(r"\d{8}-\d{4,}\.jsonl")
_TAIL = re.compile(rb',"hash":"([0-9a-f]{64})"}')
_TAIL_BYTES = len(',"hash":""}') + 64


def encoded(fields: Mapping[str, Any], before: str) -> tuple[bytes, str]:
    """Return a line with its line break, and its hash. Fields that are None are left out.

    before: the hash of the line before it.
    """
    shown = {name: _clipped(value) for name, value in fields.items() if value is not None}
    body = json.dumps(shown, separators=(",", ":")).encode()
    found = _hash(before, body)
    return body[:-1] + b',"hash":"' + found.encode() + b'"}\n', found


def decoded(line: bytes) -> dict[str, Any] | None:
    """Return a line's fields, with its hash as it says; None if it is not a whole line."""
    if _TAIL.fullmatch(line[-_TAIL_BYTES:]) is None:
        return None
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and isinstance(found.get("n"), int) else None


def follows(line: bytes, before: str) -> bool:
    """Return whether the hash of a whole line is right, given that of the line before it."""
    body = line[:-_TAIL_BYTES] + b"}"
    return line[-66:-2].decode() == _hash(before, body)


def files(folder: Path) -> list[Path]:
    """The log's files, oldest first."""
    try:
        names = [path.name for path in folder.iterdir() if _FILE.fullmatch(path.name)]
    except FileNotFoundError:
        return []
    return [folder / name for name in sorted(names)]


def next_name(last: str | None, today: str) -> str:
    """The name of the next file. Names sort by age, even if the clock was set back.

    last: the newest file's name. today: as YYYYMMDD.
    """
    if last is None or last[:8] < today:
        return f"{today}-0001.jsonl"
    return f"{last[:8]}-{int(last[9:-6]) + 1:04d}.jsonl"


def _hash(before: str, body: bytes) -> str:
    return hashlib.sha256(before.encode() + body).hexdigest()


def _clipped(value: Any) -> Any:
    if isinstance(value, str):
        return value[:LONGEST]
    if isinstance(value, Mapping):
        return {str(name)[:LONGEST]: _clipped(v) for name, v in list(value.items())[:16] if v is not None}
    return value
