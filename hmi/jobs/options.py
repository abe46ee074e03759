"""Options of jobs, checked by the call that starts the job and again by the job."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from hmi.core import ModuleSpec, Record
from hmi.training.recipe import RECIPE, ClassWeights, LongTexts, Recipe

Publish = Literal["if-better", "always", "never"]
"""When an update becomes the version that answers: if it is not worse than the live version (see
`hmi.jobs.comparing`), always, or only when it is published by hand."""


class FineTuneOptions(Record):
    """Fine-tuning of a tenant's module and head. None = chosen from task and data."""

    module: ModuleSpec | None = Field(
        default=None,
        description="None: the module that an update, a start or an import begins with; a new model "
        "gets bottlenecks after the FFN (sequential) for pairs of texts, else LoRA. `kind` left out: "
        "LoRA (an update: the live kind).",
    )
    lr: float | None = Field(
        default=None, gt=0, le=0.1, description="None: chosen by task, module and number of rows."
    )
    epochs: int | None = Field(default=None, ge=1, le=200)
    batch: int = Field(default=RECIPE.batch, ge=1, le=256)
    max_length: int = Field(default=RECIPE.max_length, ge=8, le=512)
    seed: int = Field(default=RECIPE.seed, ge=0, lt=2**31)
    dropout: float = Field(default=RECIPE.dropout, ge=0, lt=1)
    class_weights: ClassWeights = Field(
        default=RECIPE.class_weights,
        description="balanced: rare labels weigh more in the loss, at most 10 times; auto: balanced if "
        "the commonest label has 10 times the rows of the rarest, else off.",
    )
    long_texts: LongTexts | None = Field(
        default=None,
        description="A text longer than max_length is cut, or read in up to 8 overlapping windows. "
        "None: windows for tagging, cut for the other tasks.",
    )
    start: str | None = Field(
        default=None,
        max_length=130,
        description="Another model of the same tenant, tenant.model, on the same root: a new model "
        "starts from its module, and from its head if the labels are the same.",
    )
    lexical: bool | None = Field(
        default=None,
        description="Train hashed features of words and tokens beside the module. None: yes for "
        "tagging and pairs.",
    )
    skip_bad_rows: int = Field(
        default=0,
        ge=0,
        le=1_000_000,
        description="The job leaves out up to this many bad rows of a file and lists them in the "
        "report; more fail it.",
    )
    variants: int = Field(
        default=RECIPE.variants,
        ge=0,
        le=20,
        description="A teacher labels up to this many changed copies of each row, and the model is trained "
        "on them too (at most 20,000 texts in all): often better, slower to train. 3 is a good number.",
    )
    transitions: bool | None = Field(
        default=None,
        description="Tagging: also learn which tag follows which. None: yes, up to 200 tags and "
        "without class weights.",
    )

    def recipe(self) -> Recipe:
        """The recipe of a training with these options."""
        return Recipe(
            **{name: getattr(self, name) for name in type(self).model_fields if name not in NOT_OF_A_RECIPE}
        )


NOT_OF_A_RECIPE = frozenset({"start", "skip_bad_rows"})
"""Options that say what to begin with and which rows to read, not how to train."""


class BuildPlotOptions(Record):
    """Building of a PLOT version. A job's `alpha` and `budget_bytes` exclude each other."""

    budget_bytes: int | None = Field(
        default=None,
        ge=1,
        le=2**60,
        description="Store the most frequent n-grams that fit into this many bytes on the disk. "
        "Excludes alpha.",
    )
    min_difference: float | None = Field(
        default=None,
        ge=0,
        le=10,
        description="Do not store an entry whose distance to its fallback (what a look-up gives without it), "
        "divided by its length, is below this; 0 stores all. None: 0.15 with further pretraining, else 0.",
    )
    min_count: int = Field(default=1, ge=1)
    pretrain_steps: int = Field(default=200, ge=1, le=100_000)
    seed: int = Field(default=0, ge=0, lt=2**31)


class ImportRootOptions(Record):
    """Import of a root. `distil`: train locality even if HMI ships weights for this source. `n`:
    tokens of the longest n-grams. `steps` of distillation and `upper_steps` of co-training of the
    upper layers; 0 leaves either out."""

    n: int = Field(default=3, ge=2, le=5)
    distil: bool = False
    steps: int = Field(default=700, ge=0, le=100_000)
    upper_steps: int = Field(default=450, ge=0, le=100_000)
    seed: int = Field(default=0, ge=0, lt=2**31)
