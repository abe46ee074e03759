"""Profiles: the times of a root's executors and of stages, measured once on each machine and kept in the data
folder.

`profiles/<root>/<version>/` has a file for each machine, named by a hash of its fingerprint, and so has its
folder `stages/`. So machines and processes that share a data folder never write each other's profiles. A
profile only decides which executor runs and which setting a planner prefers, so a lost or damaged one is
measured again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, Self, TypeVar

from pydantic import Field, ValidationError, model_validator

from hmi.core import Record
from hmi.model.files import write_json
from hmi.stores.layout import Layout, read_json

log = logging.getLogger("hmi.stores")
MOST_MACHINES = 8
"""The most machines, or states of one machine's software, of a root's version. The oldest leave first."""


class Measured(Record):
    """One executor on one machine."""

    name: str = Field(pattern="^(packed fp32|fused (fp32|bf16|int16|int8))$")
    us_per_token: dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]]
    """Microseconds of processor time a token, by the name of the measured batch."""
    cosine: float = Field(allow_inf_nan=False)
    """The least cosine of a row to the same row of packed torch in fp32."""

    def __str__(self) -> str:
        return f"{self.name} {'/'.join(f'{t:.0f}' for t in self.us_per_token.values())}"


class OfMachine(Record):
    """Measurements of one version of a root on one machine."""

    machine: dict[str, str]
    """The processor and software that the times hold for (`hmi.execution.machine.fingerprint`)."""
    measured_at: str
    """RFC 3339 in UTC."""


class Profile(OfMachine):
    """The times of a root's executors."""

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


Reads = Literal["cls", "rows"]
"""The rows of the last layer that a batch's heads read, as `hmi.execution.batch.BatchKey` has it."""
_Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class StageSample(Record):
    """One measured batch under one setting of a stage."""

    reads: Reads
    setting: str
    batch: str
    modules: int
    seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    """Processor time of the upper layers."""


class StageCost(Record):
    """A fitted cost, as `hmi.stages.planning.cost.Cost` has it. All are seconds but the margin."""

    batch: _Seconds
    text: _Seconds
    row: _Seconds
    square: _Seconds
    module: _Seconds
    stalls: dict[str, tuple[_Seconds, _Seconds]]
    margin: Annotated[float, Field(ge=1, allow_inf_nan=False)]


class StageProfile(OfMachine):
    """The times of the settings of token adaptation on a root's executor, and the costs fitted to them."""

    executor: str
    """The executor that ran the batches. The times hold for no other."""
    settings: tuple[str, ...]
    """The names of the measured settings. The first is "off"."""
    batches: dict[str, tuple[int, ...]]
    """The tokens of each text of the measured batches, by the batch's name."""
    samples: tuple[StageSample, ...] = Field(min_length=1)
    costs: dict[Reads, StageCost]
    """The fitted costs of batches, by the rows that heads read."""


R = TypeVar("R", bound=OfMachine)


class _Kept(Generic[R]):
    """The records of one kind in a data folder. Thread-safe, also between processes: files change by a
    rename."""

    def __init__(self, layout: Layout, kind: type[R], folder: str = "") -> None:
        """folder: of the files, within that of the root's version."""
        self._layout, self._kind, self._folder = layout, kind, folder

    def get(self, root: str, version: str, machine: Mapping[str, str]) -> R | None:
        """Return the profile of this machine; None if there is none, or the file is damaged."""
        path = self._path(root, version, machine)
        if not path.exists():
            return None
        try:
            held: Any = read_json(path)
            kept = held["profile"]
            if held["sha256"] != _hash_of(kept):
                raise ValueError("its checksum is wrong")
            found = self._kind.model_validate(kept)
            if found.machine != machine:
                raise ValueError("it is another machine's")
        except (OSError, ValidationError, ValueError, KeyError, TypeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is damaged"
            log.warning("the profile of root %s is ignored (%s): it has to be measured again", root, why)
            return None
        return found

    def put(self, root: str, version: str, profile: R) -> None:
        """Keep a profile in place of this machine's earlier one, unless the root was deleted meanwhile.

        Raises StorageFull, OSError.
        """
        if not self._layout.root(root, version).is_dir():
            return
        kept, path = profile.model_dump(mode="json"), self._path(root, version, profile.machine)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"sha256": _hash_of(kept), "profile": kept})
        others = sorted((other for other in path.parent.glob("*.json") if other != path), key=_modified_at)
        for oldest in others[: -MOST_MACHINES + 1]:
            oldest.unlink(missing_ok=True)

    def drop(self, root: str) -> None:
        """Remove the profiles of all versions of a root, of every kind, if there are any."""
        shutil.rmtree(self._layout.profiles / root, ignore_errors=True)

    def _path(self, root: str, version: str, machine: Mapping[str, str]) -> Path:
        folder = self._layout.profiles_of(root, version) / self._folder
        return folder / f"{_hash_of(dict(machine))[:16]}.json"


class Profiles(_Kept[Profile]):
    """The profiles of executors."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout, Profile)


class StageProfiles(_Kept[StageProfile]):
    """The profiles of stages."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout, StageProfile, "stages")


def _modified_at(path: Path) -> int:
    """When a file was written; 0 if another process has just removed it."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _hash_of(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
