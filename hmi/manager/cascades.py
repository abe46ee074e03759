"""Cascades of models: a job profiles one; it is shown and removed at once."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hmi.core import Cascade, JobRecord, ModelId, ModelRecord
from hmi.errors import InvalidInput, NotFound
from hmi.jobs.checks import checked_files
from hmi.jobs.model.cascade_levels import check_levels, small_level, why_stale
from hmi.jobs.options import Reading
from hmi.jobs.specs import ProfileCascadeSpec
from hmi.manager.parts import Parts


@dataclass(frozen=True)
class CascadeInfo:
    """A model's cascade, and whether it holds."""

    model: ModelRecord
    cascade: Cascade
    stale: str | None
    """Why it does not hold for the versions that answer now; None if it does."""


class Cascades:
    """The operations on cascades."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def profile(
        self,
        model: str,
        small: str | None,
        data: Path | bytes | None,
        skip: int,
        reading: Reading,
        job_limit: int | None,
    ) -> JobRecord:
        wanted = ModelId.parse(model)
        large = self._parts.registry.model(wanted)
        check_levels(large, small_level(self._parts.registry.model, large, small))
        if data is None:
            raise InvalidInput(
                "data is missing: a cascade is profiled on labelled rows; name a file", field="data"
            )
        checked_files(large.live.task, {"data": data}, skip, reading)
        spec = ProfileCascadeSpec(model=str(wanted), small=small, skip_bad_rows=skip, reading=reading)
        return self._parts.runner.submit(
            "profile_cascade", spec.stored(), wanted.tenant, {"data": data}, tenant_limit=job_limit
        )

    def show(self, model: str) -> CascadeInfo:
        wanted = ModelId.parse(model)
        record = self._parts.registry.model(wanted)
        cascade = record.cascade
        if cascade is None:
            raise NotFound(f"model {wanted} has no cascade: profile one ('hmi profile cascade')")
        small = None
        if cascade.small is not None:
            with suppress(NotFound):
                small = self._parts.registry.model(ModelId.parse(cascade.small)).live
        return CascadeInfo(record, cascade, why_stale(cascade, record.live, small))

    def delete(self, model: str) -> None:
        self.show(model)  # raises NotFound if there is none
        self._parts.registry.change_model(
            ModelId.parse(model), lambda record: record.model_copy(update={"cascade": None})
        )
