"""Profiles: the times of a root's executors, measured once on each machine and kept in the data folder.

Each version of a root has one file, `profiles/<root>/<version>.json`. A profile only decides which executor
runs, so a lost or damaged one is measured again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError, model_validator

from hmi.core import Record
from hmi.model.files import write_json
from hmi.stores.layout import Layout, read_json

log = logging.getLogger("hmi.stores")
MOST_MACHINES = 8
"""The most machines, or states of one machine's software, in a file. The oldest leave first."""


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
        found = self._read(root, version)
        return next((profile for profile in found if profile.machine == machine), None)

    def put(self, root: str, version: str, profile: Profile) -> None:
        """Keep a profile in place of this machine's earlier one, unless the root was deleted meanwhile.

        Raises StorageFull, OSError.
        """
        if not self._layout.root(root, version).is_dir():
            return
        others = [other for other in self._read(root, version) if other.machine != profile.machine]
        kept = [p.model_dump(mode="json") for p in [profile, *others][:MOST_MACHINES]]
        path = self._layout.profile(root, version)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"sha256": _check_of(kept), "machines": kept})

    def drop(self, root: str) -> None:
        """Remove the profiles of all versions of a root, if there are any."""
        shutil.rmtree(self._layout.profiles / root, ignore_errors=True)

    def _read(self, root: str, version: str) -> list[Profile]:
        path = self._layout.profile(root, version)
        if not path.exists():
            return []
        try:
            held: Any = read_json(path)
            kept = held["machines"]
            if held["sha256"] != _check_of(kept):
                raise ValueError("its checksum is wrong")
            return [Profile.model_validate(one) for one in kept]
        except (OSError, ValidationError, ValueError, KeyError, TypeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is damaged"
            log.warning("the profile of root %s is ignored (%s): it has to be measured again", root, why)
            return []


def _check_of(kept: Sequence[Any]) -> str:
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()
