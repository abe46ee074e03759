"""Requests and answers about models. What they say of exits, cascades and tokens has files of its own."""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from hmi.api.schemas.cascades import CascadeBrief
from hmi.api.schemas.exits import ExitsView
from hmi.api.schemas.second_version import ImprovingView
from hmi.api.schemas.shared import (
    LONGEST_MS,
    NEXT,
    Answer,
    DomainName,
    ModelName,
    Name,
    PathRef,
    Query,
    Request,
)
from hmi.api.schemas.tokens import TokensBrief
from hmi.core import (
    MAX_AGREEMENT,
    MAX_KNOWN_SHARE,
    MIN_AGREEMENT,
    MIN_KNOWN_SHARE,
    Depth,
    ModelVersion,
    Objective,
    Task,
)
from hmi.jobs.options import FineTuneOptions, Publish
from hmi.modulespec import DEPTH

MIN_MEAN_MS = 0.1
"""The least mean time that an objective may ask for. The fastest answer takes several times as long."""


_UNLABELLED = Field(
    default=None,
    description="Texts of the same kind without labels. A teacher, a whole copy of the source model, is "
    "fine-tuned on the rows and labels the texts; the model is trained on both.",
)


class CreateModel(Request):
    model: ModelName
    domain: DomainName
    task: Task
    data: PathRef | None = Field(
        default=None, description="The rows, unless they are sent as a multipart part."
    )
    dev: PathRef | None = None
    unlabelled: PathRef | None = _UNLABELLED
    options: FineTuneOptions = FineTuneOptions()


class UpdateModel(Request):
    data: PathRef | None = None
    dev: PathRef | None = None
    unlabelled: PathRef | None = _UNLABELLED
    options: FineTuneOptions = FineTuneOptions()
    publish: Publish = Field(
        default="if-better",
        description="When the new version answers: if it is not worse than the live one on the same "
        "held-out rows (a tie included), always, or never. A version that is held back is kept; `rollback` "
        "with its number lets it answer.",
    )


class ImportModule(Request):
    model: ModelName
    domain: DomainName
    task: Task = Field(
        default="classification", description="The task of the rows in `data`; without rows, the head's."
    )
    adapter_config: PathRef | None = Field(default=None, description="adapter_config.json of adapters 1.x.")
    adapter: PathRef | None = Field(default=None, description="adapter.safetensors.")
    head_config: PathRef | None = Field(default=None, description="head_config.json.")
    head: PathRef | None = Field(default=None, description="model_head.safetensors.")
    data: PathRef | None = Field(default=None, description="Rows to train on; required without a head.")
    dev: PathRef | None = None
    options: FineTuneOptions = FineTuneOptions()


class RollbackModel(Request):
    version: int = Field(ge=1, le=2**31)


def _changes_something(body: BaseModel) -> None:
    if not body.model_fields_set:
        raise ValueError(f"changes nothing: give one or more of {', '.join(type(body).model_fields)}")


class ChangeObjective(Request):
    """Bounds for a model's answers. A field that is left out does not change; null removes the bound."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    agreement: float | None = Field(
        default=None,
        ge=MIN_AGREEMENT,
        le=MAX_AGREEMENT,
        description="The fraction of answers that must equal the full model's (with a cascade: the large "
        "level's), such as 0.99. Without it every text goes through the full model.",
    )
    deadline_ms: float | None = Field(
        default=None,
        ge=MIN_MEAN_MS,
        le=LONGEST_MS,
        description="The mean time that an answer may take, for the choice among a cascade's dispatchers.",
    )

    agreement_under_load: float | None = Field(
        default=None,
        ge=MIN_AGREEMENT,
        le=MAX_AGREEMENT,
        description="The fraction of answers that must equal the full model's while the server is loaded, "
        "such as 0.97. Without it no text loses tokens. It counts what early exits are allowed, too.",
    )

    @field_validator("deadline_ms", mode="before")
    @classmethod
    def _can_be_met(cls, value: Any) -> Any:
        if isinstance(value, int | float) and value < MIN_MEAN_MS:
            raise ValueError(
                f"is {value:g}, and no answer takes less than {MIN_MEAN_MS:g} ms: give the mean time in "
                "milliseconds, such as 20, or null for no bound"
            )
        return value

    @model_validator(mode="after")
    def _check(self) -> Self:
        _changes_something(self)
        return self


class ChangeModel(Request):
    """Changes to a model (RFC 7396): a field that is left out does not change; null removes the value."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    objective: ChangeObjective | None = Field(default=None, description="Null removes all bounds.")
    known_share: float | None = Field(
        default=None,
        ge=MIN_KNOWN_SHARE,
        le=MAX_KNOWN_SHARE,
        description="The share of its own texts that the model is to know, such as 0.97. Of others, and of "
        "foreign texts, it says that it does not know (`known` in answers). Null: it never says so.",
    )

    depth: Depth = Field(default="auto", description=DEPTH)

    @model_validator(mode="after")
    def _check(self) -> Self:
        _changes_something(self)
        return self

    def changed(self, old: Objective) -> dict[str, Any]:
        """The fields of the new objective."""
        if "objective" not in self.model_fields_set:
            return dict(old)
        return (
            {} if self.objective is None else {**dict(old), **self.objective.model_dump(exclude_unset=True)}
        )


class ModelQuery(Query):
    tenant: Name | None = None
    domain: DomainName | None = None
    task: Task | None = None
    after: ModelName | None = None
    limit: int = Field(default=100, ge=1, le=1000)


class ModelView(Answer):
    """A model. The fields `domain` to `bytes` are those of the version that answers."""

    model: str
    current: int
    domain: str
    task: Task
    labels: list[str]
    ramps: list[int] = Field(
        description="The upper layers before which it has a ramp, where a text may leave early."
    )
    temperature: float | None = Field(description="Its calibration temperature; null: it was not fitted.")
    metrics: dict[str, Any]
    bytes: int
    objective: Objective
    known_share: float | None = Field(
        description="The share of its own texts that it is to know; null: it never says that it does not."
    )
    known_threshold: float | None = Field(
        description="The similarity to its own texts from which on it knows a text; null: it has none."
    )
    depth: Depth = Field(description=DEPTH)
    root: str = Field(description="The root that the version which answers stands on.")
    cascade: CascadeBrief | None
    exits: ExitsView | None = Field(
        description="The state of its early exits; null in lists, and if no agreement is set."
    )
    tokens: TokensBrief
    improving: ImprovingView | None = Field(
        description="The background job that tries what makes it better; null in lists, and if it had none."
    )
    versions: list[ModelVersion]


class ModelList(Answer):
    models: list[ModelView]
    next: str | None = Field(description=NEXT)


class ModuleExport(Answer):
    """A model's module in the format of the library `adapters`, that of one that writes in that of `peft`."""

    model: str
    version: int
    format: str = Field(description="The library and the version whose files these are.")
    files: dict[str, str] = Field(description="Base64 of each file, by its name.")
    left_out: list[str] = Field(description="Parts of the model that the library cannot represent, and why.")
