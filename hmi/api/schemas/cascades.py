"""Requests and answers about a model's cascade."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from hmi.api.schemas.shared import READING, Answer, LevelName, PathRef, Request
from hmi.core import Cascade, CascadeState
from hmi.jobs.options import Reading


class ProfileCascade(Request):
    data: PathRef | None = Field(
        default=None, description="Labelled rows that neither level was trained on, at least 200."
    )
    small: LevelName | None = Field(
        default=None,
        description="The model that is asked first: of the same tenant, task and labels, usually on another "
        "root. `TENANT.MODEL@VERSION` is an earlier version of the model itself, which becomes a model "
        "`MODEL-vVERSION`. Without it, a ramp of the model itself answers first.",
    )
    skip_bad_rows: int = Field(default=0, ge=0, description="Leave out up to this many bad rows.")
    options: Reading = READING


class CascadeBrief(Answer):
    """A model's profiled cascade, in short."""

    small: str | None = Field(
        description="The model that is asked first; null if a ramp of the same model answers first."
    )
    site: int | None = Field(description="That ramp; null if the levels are two models.")
    version: int = Field(description="The version of the model that the profile holds for.")
    small_version: int | None
    rows: int = Field(description="The labelled rows of the profile.")
    offers: int = Field(description="The number of dispatchers to choose from.")


class CascadeTraffic(Answer):
    """A cascade's traffic under the present agreement, since the server started or its profile changed."""

    state: CascadeState = Field(
        description="`no objective`: the tenant insists on no agreement, so the large level answers. "
        "`no offer`: no dispatcher reaches the objective, or all that do have failed. `testing`: the audits "
        "do not yet suffice. `paused`: they do, but one more answer that disagrees might exceed what is "
        "tolerated, so the large level answers until more texts have come. `in use`: the small level answers "
        "first."
    )
    cut_off: float | None = Field(
        default=None, description="The dispatcher that is tested or used: c of Tabi's equation (4)."
    )
    slope: float | None = Field(default=None, description="Its k.")
    weight: float | None = Field(default=None, description="Of the large level in its ensemble.")
    texts: int = 0
    returned: int = Field(default=0, description="Texts that the small level answered.")
    gone_on: int = Field(default=0, description="Texts that the dispatcher sent on to the large level.")
    audited: int = Field(default=0, description="Texts on which both levels were compared.")
    disagreed: int = Field(default=0, description="Audits on which the dispatcher's answer differed.")
    gate_audits: int = Field(default=0, description="Audits that opened the gate, or count for it so far.")
    gate_needed: int = Field(
        default=0, description="The audits after which it opens if no further one disagrees."
    )
    gate_disagreed: int = 0
    gate_bound: float | None = Field(
        default=None,
        description="Clopper-Pearson's upper bound of their rate of disagreements, wrong with 5%.",
    )
    alarms: int = 0
    share: float | None = Field(default=None, description="The share of texts that is audited.")


class CascadeView(Answer):
    """A model's cascade."""

    model: str
    state: Literal["ready", "stale"]
    stale: str | None = Field(description="Why it does not hold any more, and the cure.")
    says: str = Field(description="What it does at present, in words, with what to do next if anything.")
    cascade: Cascade
    fits: list[int] = Field(
        description="The offers that reach the model's objective, by their index in `cascade.offers`. Empty "
        "without an agreement, and of a stale cascade."
    )
    chosen: int | None = Field(
        description="The index of the offer that is tested or used, or will be tested first; null: none."
    )
    traffic: CascadeTraffic | None = Field(
        description="Null if none of its texts came since the server started, or without a server."
    )
