"""What a user may set on a job; validated at the edge and again by the job."""

from __future__ import annotations

from pydantic import Field

from hmi.core import ModuleSpec, Record


class FineTuneOptions(Record):
    """Fine-tuning of a tenant's module and head. None = chosen from the data's size."""

    module: ModuleSpec = ModuleSpec()
    lr: float = Field(default=2e-3, gt=0, le=0.1)
    epochs: int | None = Field(default=None, ge=1, le=200)
    batch: int = Field(default=16, ge=1, le=256)
    max_length: int = Field(default=256, ge=8, le=512)
    seed: int = Field(default=0, ge=0, lt=2**31)
    dropout: float = Field(default=0.1, ge=0, lt=1)


class BuildPlotOptions(Record):
    """Building of a PLOT version."""

    min_count: int = Field(default=1, ge=1)
    pretrain_steps: int = Field(default=200, ge=1, le=100_000)
    seed: int = Field(default=0, ge=0, lt=2**31)


class ImportRootOptions(Record):
    """Import of a root. `distil`: train locality even where weights for this source are shipped."""

    distil: bool = False
    steps: int = Field(default=700, ge=1, le=100_000)
    upper_steps: int = Field(default=450, ge=0, le=100_000)
    seed: int = Field(default=0, ge=0, lt=2**31)
