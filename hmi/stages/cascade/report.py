"""What is known of a model's cascade: whether its profile still holds, and what it did to the traffic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hmi.core import Cascade, ModelVersion

State = Literal["no objective", "no offer", "testing", "earning", "in use"]


@dataclass(frozen=True)
class CascadeReport:
    """What a cascade did since the server started, or since its profile or its tenant's objective changed."""

    state: State
    """no objective: the tenant insists on no agreement, so the large level answers. no offer: no dispatcher
    of the profile reaches the objective, or all that do have failed. testing: audits of the tenant's traffic
    do not yet suffice. earning: they do, but the stream may not yet disagree once more. in use: the small
    level answers first."""
    cut_off: float | None
    """The dispatcher that is tested or used; None if none is."""
    slope: float | None
    texts: int
    """All texts of the stream."""
    returned: int
    """The texts that the small level answered."""
    gone_on: int
    """The texts that obeyed the dispatcher and went on to the large level."""
    audited: int
    """The texts on which the dispatcher's answer was compared with the large level's."""
    disagreed: int
    """The audits whose answers differed."""
    gate_audits: int
    """The audits that have opened the gate, or count for it so far."""
    gate_disagreed: int
    gate_bound: float | None
    """Clopper–Pearson's upper bound of their rate of disagreements."""
    alarms: int
    share: float | None
    """The share of texts that is audited."""


NO_OBJECTIVE = CascadeReport("no objective", None, None, 0, 0, 0, 0, 0, 0, 0, None, 0, None)
"""The report of a model whose objective has no agreement."""


def why_stale(cascade: Cascade, live: ModelVersion, small: ModelVersion | None) -> str | None:
    """Why a profile does not hold for the versions that answer; None if it does.

    small: the version of the small level that answers; None if that model is gone, or is a ramp.
    """
    if cascade.version != live.version:
        return f"it is of version {cascade.version} of the model, but version {live.version} answers"
    if cascade.small is None:
        return None
    if small is None:
        return f"its small level {cascade.small} does not exist any more"
    if (small.version, small.artefact) != (cascade.small_version, cascade.small_artefact):
        return (
            f"it is of version {cascade.small_version} of its small level {cascade.small}, but version "
            f"{small.version} answers"
        )
    return None


CURE = "profile it again: POST …/cascade, or hmi profile cascade"
"""What to do about a stale cascade."""
