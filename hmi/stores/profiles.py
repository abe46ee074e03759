"""Profiles: the times of a root's executors, measured once on each machine and kept in the data folder.

`profiles/<root>/<version>/` has a file for each machine, named by a hash of its fingerprint. So machines and
processes that share a data folder never write each other's profiles. A profile only decides which executor
runs, so a lost or damaged one is measured again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError, model_validator

from hmi.core import Record
from hmi.model.files import write_json
from hmi.stores.layout import Layout, read_json

log = logging.getLogger("hmi.stores")
MOST_MACHINES = 8
"""The most machines, or states of one machine's software, of a root's version. The oldest leave first."""


class Measured(Record):
    """One executor on one machine."""

    name: str = Field(pattern="^(packed fp32|fused (fp32|bf16|int8))$")
    us_per_token: dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]]
    """Microseconds of processor time a token, by the name of the measured batch."""
    cosine: float = Field(allow_inf_nan=False)
    """The least cosine of a row to the same row of packed torch in fp32."""

    def __str__(self) -> str:
        return f"{self.name} {'/'.join(f'{t:.0f}' for t in self.us_per_token.values())}"


class Profile(Record):
    """The measurements of one version of a root on one machine."""

    machine: dict[str, str]
    """The processor and software that the times hold for (`hmi.execution.machine.fingerprint`)."""
    measured_at: str
    """RFC 3339 in UTC."""
    batches: dict[str, tuple[int, ...]]
    """The tokens of each text of the measured batches, by the batch's name."""
    measured: tuple[Measured, ...] = Field(min_length=1)
    """The reference, packed torch in fp32, is the first."""

    @model_validator(mode="after")
    def _times_compare(self) -> Self:
        """Check that each executor has a time for each batch, since the choice divides their times batch by
        batch."""
        if not self.batches or any(one.us_per_token.keys() != self.batches.keys() for one in self.measured):
            raise ValueError("an executor's times are not those of the measured batches")
        return self


class Profiles:
    """The profiles of one data folder. Thread-safe, also between processes: files change by a rename."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def get(self, root: str, version: str, machine: Mapping[str, str]) -> Profile | None:
        """Return the profile of this machine; None if there is none, or the file is damaged."""
        path = self._path(root, version, machine)
        if not path.exists():
            return None
        try:
            held: Any = read_json(path)
            kept = held["profile"]
            if held["sha256"] != _hash_of(kept):
                raise ValueError("its checksum is wrong")
            found = Profile.model_validate(kept)
            if found.machine != machine:
                raise ValueError("it is another machine's")
        except (OSError, ValidationError, ValueError, KeyError, TypeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is damaged"
            log.warning("the profile of root %s is ignored (%s): it has to be measured again", root, why)
            return None
        return found

    def put(self, root: str, version: str, profile: Profile) -> None:
        """Keep a profile in place of this machine's earlier one, unless the root was deleted meanwhile.

        Raises StorageFull, OSError.
        """
        if not self._layout.root(root, version).is_dir():
            return
        kept, path = profile.model_dump(mode="json"), self._path(root, version, profile.machine)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"sha256": _hash_of(kept), "profile": kept})
        others = sorted((other for other in path.parent.glob("*.json") if other != path), key=_written)
        for oldest in others[: -MOST_MACHINES + 1]:
            oldest.unlink(missing_ok=True)

    def drop(self, root: str) -> None:
        """Remove the profiles of all versions of a root, if there are any."""
        shutil.rmtree(self._layout.profiles / root, ignore_errors=True)

    def _path(self, root: str, version: str, machine: Mapping[str, str]) -> Path:
        return self._layout.profiles_of(root, version) / f"{_hash_of(dict(machine))[:16]}.json"


def _written(path: Path) -> int:
    """When a file was written; 0 if another process has just removed it."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _hash_of(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
