"""The γ that a model may use, by its profile, the audits of its traffic, and its tenant's objective."""

from __future__ import annotations

from collections.abc import Mapping

from hmi.core import Cascade, ModelVersion, Objective, TokenPoint
from hmi.stages.early_exit.evidence import Audits, upper_bound
from hmi.stages.token_adaptation.settings import MERGES, PROMPTS

KNOWN = frozenset((*MERGES, *PROMPTS))
ERROR = 0.05
"""The probability with which a bound of a rate may be wrong."""


def tolerated(version: ModelVersion, objective: Objective, cascade: Cascade | None) -> float | None:
    """Return the rate at which merging may change answers; None: the tenant has not set
    `Objective.agreement_under_load`.

    Early exits and cascades may change answers too. What they are granted is not merging's.
    """
    if objective.agreement_under_load is None:
        return None
    others = 0.0
    if objective.agreement is not None and (version.ramps or cascade is not None):
        others = 1.0 - objective.agreement
    return 1.0 - objective.agreement_under_load - others


def allowed(
    version: ModelVersion,
    objective: Objective,
    cascade: Cascade | None = None,
    audits: Mapping[int, Audits] | None = None,
) -> tuple[int, ...]:
    """Return the γ other than 0 that a model's texts may use, ascending, so the boldest merging first.

    A γ below 0 may be used if it surely changes at most the tolerated part of answers, by the rows of the
    profile and the audits together, and if audits alone do not surely say otherwise. A γ above 0 may be used
    if it scored at least as well as γ = 0. One that is no setting any more is not used. audits: by γ.
    """
    limit = tolerated(version, objective, cascade)
    if limit is None:
        return ()
    plain = next((point.score for point in version.tokens if point.gamma == 0), None)
    found = []
    for point in version.tokens:
        if point.gamma not in KNOWN:
            continue
        own = (audits or {}).get(point.gamma, Audits())
        if point.gamma < 0 and _holds(point, own, limit):
            found.append(point.gamma)
        if point.gamma > 0 and plain is not None and point.score >= plain:
            found.append(point.gamma)
    return tuple(sorted(found))


def boldest(gammas: tuple[int, ...], level: int) -> int:
    """Return the boldest of these γ that is not beyond a level of the same sign; 0 if there is none."""
    if level < 0:
        return min((gamma for gamma in gammas if level <= gamma < 0), default=0)
    return max((gamma for gamma in gammas if 0 < gamma <= level), default=0)


def _holds(point: TokenPoint, own: Audits, limit: float) -> bool:
    """True if merging may be used at this point of the profile. own: the audits of the model's traffic."""
    disagreed = round((1.0 - point.agreement) * point.rows)
    both = Audits(point.rows + own.seen, disagreed + own.disagreed)
    agreed = Audits(own.seen, own.seen - own.disagreed)
    surely_above = own.seen > 0 and 1.0 - upper_bound(agreed, ERROR) > limit
    return upper_bound(both, ERROR) <= limit and not surely_above
