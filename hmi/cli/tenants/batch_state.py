"""The record of a batch, by which an interrupted one continues: outcomes, and the tenants' keys.

Both are files of one JSON object a line, to which each outcome or key is appended and synced. So a record of
thousands costs no more to extend than an empty one, and a kill loses at most the line that it cuts off.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from hmi.errors import InvalidInput
from hmi.training.tasks.headline import LOWER_IS_BETTER


@dataclass(frozen=True)
class Outcome:
    """The end of one entry."""

    id: str
    state: str
    """succeeded | failed"""
    reason: str = ""
    job: str = ""
    seconds: float = 0.0
    figures: dict[str, str] = field(default_factory=dict)
    """Figures of the job's result, by table heading."""
    metric: str = ""
    """The name of the headline metric."""
    score: float | None = None
    """The headline metric on held-out rows; None if there is none."""
    rows: int | None = None
    """The number of these rows."""
    unchanged: bool = False
    """True if it existed before this run, which then changed nothing."""

    @property
    def done(self) -> bool:
        return self.state == "succeeded"

    @property
    def quality(self) -> float:
        """By which outcomes are ordered, the worst first: the score, or of a perplexity its inverse, which is
        a token's mean probability and so lies between 0 and 1 like other scores. 0 if there is no score."""
        score = self.score or 0.0
        return 1 / max(score, 1.0) if self.metric in LOWER_IS_BETTER else score


class State:
    """The outcomes and keys of a batch. Thread-safe."""

    def __init__(self, path: Path, keys: Path | None = None) -> None:
        """keys: the file of the tenants' keys, which only its owner may read. Raises InvalidInput."""
        self._lock = threading.Lock()
        self._outcomes, self._keys = _Lines(path, 0o644), None if keys is None else _Lines(keys, 0o600)
        self._done = {line["id"]: line for line in self._outcomes.read("id")}
        known = () if self._keys is None else self._keys.read("tenant")
        self._key_of = {line["tenant"]: line["key"] for line in known}

    def key_of(self, tenant: str) -> str | None:
        with self._lock:
            return self._key_of.get(tenant)

    def keep_key(self, tenant: str, key: str) -> None:
        assert self._keys is not None
        with self._lock:
            self._key_of[tenant] = key
            self._keys.append({"tenant": tenant, "key": key})

    def of(self, name: str) -> Outcome | None:
        with self._lock:
            kept = self._done.get(name)
        if kept is None:
            return None
        known = {each.name for each in fields(Outcome)}
        return Outcome(**{name: value for name, value in kept.items() if name in known})

    def keep(self, outcome: Outcome) -> None:
        with self._lock:
            self._done[outcome.id] = asdict(outcome)
            self._outcomes.append(asdict(outcome))


class _Lines:
    """A file of JSON objects, one a line."""

    def __init__(self, path: Path, mode: int) -> None:
        self._path, self._mode = path, mode

    def read(self, needed: str) -> Iterator[dict[str, Any]]:
        """The objects, without a last line that a kill cut off, which is removed from the file."""
        if not self._path.exists():
            return
        raw = self._path.read_bytes()
        whole = raw.rfind(b"\n") + 1
        if whole < len(raw):
            os.truncate(self._path, whole)
        for line in raw[:whole].splitlines():
            try:
                value = json.loads(line)
                value[needed]
            except (ValueError, KeyError, TypeError) as error:
                raise InvalidInput(
                    f"{self._path} was not written by this command: move it away, or name another file"
                ) from error
            yield value

    def append(self, value: dict[str, Any]) -> None:
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, self._mode)
        try:
            os.fchmod(fd, self._mode)
            os.write(fd, json.dumps(value, ensure_ascii=False).encode() + b"\n")
            os.fsync(fd)
        finally:
            os.close(fd)
