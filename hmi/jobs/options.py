"""What a user may set on a job; validated at the edge and again by the job."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from hmi.core import ModuleSpec, Record

Publish = Literal["if-better", "always", "never"]
"""Whether an update becomes the version that answers: where it is not worse than the one that does (see
`hmi.jobs.comparing`), whatever it is, or not before it is published by hand."""


class FineTuneOptions(Record):
    """Fine-tuning of a tenant's module and head. None = chosen from task and data."""

    module: ModuleSpec | None = Field(
        default=None,
        description="None: what an update, a start or an import goes on from; else bottlenecks after the FFN "
        "(sequential) for pairs of texts, LoRA for all else. Without a kind, LoRA (an update: the live version's).",
    )
    lr: float | None = Field(
        default=None, gt=0, le=0.1, description="None: by task, module and rows (hmi.model.usual)."
    )
    epochs: int | None = Field(default=None, ge=1, le=200)
    batch: int = Field(default=16, ge=1, le=256)
    max_length: int = Field(default=256, ge=8, le=512)
    seed: int = Field(default=0, ge=0, lt=2**31)
    dropout: float = Field(default=0.1, ge=0, lt=1)
    class_weights: Literal["off", "balanced", "auto"] = Field(
        default="off",
        description="balanced: rare labels weigh more in the loss, at most 10 times; auto: so where the commonest "
        "label has 10 times the rows of the rarest.",
    )
    long_texts: Literal["windows", "cut"] | None = Field(
        default=None,
        description="A text longer than max_length is cut, or read in up to 8 overlapping windows. None: windows for "
        "tagging, else cut.",
    )
    start: str | None = Field(
        default=None,
        max_length=130,
        description="Another model of the same tenant, tenant.model, on the same root: a new model starts from its "
        "module, and from its head where the labels are the same, instead of from nothing.",
    )
    lexical: bool | None = Field(
        default=None,
        description="Train hashed features of words and tokens beside the module (hmi.model.lexical). None: for "
        "tagging and pairs.",
    )
    skip_bad_rows: int = Field(
        default=0,
        ge=0,
        le=1_000_000,
        description="Up to so many rows of a file that are not usable are left out and named in the report; more fail.",
    )
    variants: int = Field(
        default=0,
        ge=0,
        le=20,
        description="Up to so many changed copies of each row are labelled by a teacher and trained on, too (at most "
        "20,000 texts in all): often better, and slower to train. 3 is a good number.",
    )
    transitions: bool | None = Field(
        default=None,
        description="Tagging: learn which tag follows which, too (hmi.model.transitions). None: for up to 200 tags, "
        "without class weights.",
    )


class BuildPlotOptions(Record):
    """Building of a PLOT version. A job's `alpha` and `budget_bytes` exclude each other."""

    budget_bytes: int | None = Field(
        default=None,
        ge=1,
        le=2**60,
        description="The most bytes that the version's own entries may take on the disk: the most frequent n-grams "
        "that fit are stored. In place of alpha.",
    )
    min_difference: float | None = Field(
        default=None,
        ge=0,
        le=10,
        description="An entry that is nearer than this (distance over length) to what a look-up gives without it is "
        "not stored; 0 stores all. None: 0.15 with further pretraining, else 0.",
    )
    min_count: int = Field(default=1, ge=1)
    pretrain_steps: int = Field(default=200, ge=1, le=100_000)
    seed: int = Field(default=0, ge=0, lt=2**31)


class ImportRootOptions(Record):
    """Import of a root. `distil`: train locality even where weights for this source are shipped. `n`: tokens of the
    longest n-grams. 0 steps leave distillation, or co-training of the upper layers, out."""

    n: int = Field(default=3, ge=2, le=5)
    distil: bool = False
    steps: int = Field(default=700, ge=0, le=100_000)
    upper_steps: int = Field(default=450, ge=0, le=100_000)
    seed: int = Field(default=0, ge=0, lt=2**31)
