"""Answers about a model's token adaptation."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from hmi.api.schemas.shared import READING, Answer, PathRef, Request
from hmi.core import Objective
from hmi.jobs.options import Reading

TokenState = Literal["not profiled", "no objective", "nothing allowed", "allowed"]


class TokensBrief(Answer):
    """The settings of token adaptation that a model's texts may get while the server is loaded."""

    state: TokenState = Field(
        description="`not profiled`: the version has no profile. `no objective`: `agreement_under_load` is "
        "not set, so tokens are not adapted. `nothing allowed`: no setting keeps the objective. `allowed`: "
        "the planner may choose one of `allowed`."
    )
    says: str = Field(description="The same in words, with what to do next if anything.")
    allowed: list[int] = Field(
        description="Each γ that the planner may choose: below 0 the percentage of the "
        "layers' rows that merging saves, above 0 the number of prompts before each layer."
    )


class TokenPointView(Answer):
    """One setting of token adaptation, as profiled."""

    gamma: int
    setting: str = Field(description="Its name in provenance and metrics.")
    score: float = Field(description="The task's headline figure on the labelled rows.")
    agreement: float = Field(description="The fraction of answers that equal those without adaptation.")
    agreement_at_least: float = Field(description="Clopper-Pearson's lower bound of it, wrong with 5%.")
    rows: int = Field(description="The texts behind the agreement.")
    saved: float | None = Field(
        description="The fraction of the layers' rows that it saved on these texts; below 0 if it added rows."
    )
    allowed: bool
    why: str | None = Field(description="Why the planner may not choose it.")


class PromptsView(Answer):
    """A set of prompts that a job trained."""

    count: int
    score: float = Field(description="The headline figure on the held-out rows with these prompts.")
    before: float = Field(description="The same without prompts.")
    kept: bool = Field(description="Whether they helped, and are part of the version.")
    epoch: int
    epochs: int


class TokensView(Answer):
    """A model's profile of token adaptation."""

    model: str
    version: int
    objective: Objective
    tokens: TokensBrief
    metric: str | None = Field(description="The name of the headline figure.")
    labelled: int = Field(description="The rows behind the scores.")
    unseen: bool = Field(description="Whether the model was trained on none of these texts.")
    points: list[TokenPointView]
    prompts: list[PromptsView]


class ProfileTokens(Request):
    data: PathRef | None = Field(
        default=None,
        description="Labelled rows, required. Those that the model was not trained on make the profile; "
        "prompts are trained on the others.",
    )
    dev: PathRef | None = Field(
        default=None, description="Labelled rows that make the profile; prompts are then trained on all data."
    )
    unlabelled: PathRef | None = Field(
        default=None, description="Further texts, by which the agreement is known better."
    )
    prompts: bool = Field(
        default=True,
        description="Also train prompts, which takes most of the time. Else those of the version stay.",
    )
    skip_bad_rows: int = Field(
        default=0, ge=0, le=1_000_000, description="Leave out up to this many bad rows of each file."
    )
    options: Reading = READING
