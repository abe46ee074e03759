"""The report of a cascade's traffic."""

from __future__ import annotations

from dataclasses import dataclass

from hmi.core import CascadeState


@dataclass(frozen=True)
class CascadeReport:
    """A cascade's traffic under the present agreement, since the server started or its profile changed."""

    state: CascadeState
    cut_off: float | None
    """The dispatcher that is tested or used; None if none is."""
    slope: float | None
    weight: float | None
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
    gate_needed: int
    """The audits after which it opens if no further one disagrees."""
    gate_disagreed: int
    gate_bound: float | None
    """Clopper–Pearson's upper bound of their rate of disagreements."""
    alarms: int
    share: float | None
    """The share of texts that is audited."""
