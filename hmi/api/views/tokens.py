"""A model's token adaptation as its tenant sees it: the profile, and what it lets the planner do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hmi.api.schemas.tokens import PromptsView, TokenPointView, TokensBrief, TokensView
from hmi.core import HEADLESS, ModelRecord, TokenPoint, gamma_name

if TYPE_CHECKING:
    from hmi.stages.early_exit.evidence import Audits


Audited = Mapping[int, "Audits"]
"""The audits of a model's merged texts since the server started, by γ."""


def tokens_brief(record: ModelRecord, audits: Audited | None = None) -> TokensBrief:
    """Return what token adaptation may do to the texts of the version that answers, by its profile, and by
    these audits if they are given."""
    name, live, asked = f"{record.tenant}.{record.name}", record.live, record.objective.agreement_under_load
    if not live.tokens:
        cure = "" if live.task in HEADLESS else f": hmi model tokens {name} DATA makes one"
        return TokensBrief(state="not profiled", says=f"no profile of token adaptation{cure}", allowed=[])
    if asked is None:
        says = (
            "no agreement under load is set, so tokens are not adapted: hmi model objective "
            f"{name} --agreement-under-load 0.97 sets one"
        )
        return TokensBrief(state="no objective", says=says, allowed=[])
    found = _allowed(record, audits)
    if not found:
        says = f"no setting surely keeps {100 * asked:.4g}% of answers: hmi model tokens {name} tells why"
        return TokensBrief(state="nothing allowed", says=says, allowed=[])
    names = ", ".join(gamma_name(gamma) for gamma in found)
    return TokensBrief(state="allowed", says=f"allowed under load: {names}", allowed=found)


def tokens_view(record: ModelRecord, audits: Audited | None = None) -> TokensView:
    """Return the whole profile of the version that answers, and what audits have left of it."""
    live, brief = record.live, tokens_brief(record, audits)
    told: dict[str, Any] = live.metrics.get("tokens") or {}
    return TokensView(
        model=f"{record.tenant}.{record.name}",
        version=record.current,
        objective=record.objective,
        tokens=brief,
        metric=told.get("metric"),
        labelled=told.get("labelled", 0),
        unseen=told.get("unseen", True),
        points=[_point(record, point, brief, told.get("saved", {}), audits or {}) for point in live.tokens],
        prompts=[PromptsView(**each) for each in told.get("prompts", ())],
    )


def _allowed(record: ModelRecord, audits: Audited | None) -> list[int]:
    from hmi.stages.token_adaptation.allowed import allowed  # which loads torch

    return list(allowed(record.live, record.objective, record.cascade, audits))


def _point(
    record: ModelRecord, point: TokenPoint, brief: TokensBrief, saved: dict[str, float], audits: Audited
) -> TokenPointView:
    from hmi.stages.early_exit.evidence import Audits, upper_bound  # which loads torch

    disagreed = round((1.0 - point.agreement) * point.rows)
    least = 1.0 if point.gamma == 0 else 1.0 - upper_bound(Audits(point.rows, disagreed), 0.05)
    may = point.gamma == 0 or point.gamma in brief.allowed
    return TokenPointView(
        gamma=point.gamma,
        setting=gamma_name(point.gamma),
        score=point.score,
        agreement=point.agreement,
        agreement_at_least=least,
        rows=point.rows,
        saved=saved.get(str(point.gamma)),
        allowed=may,
        why=None if may else _why(record, point, least, audits.get(point.gamma)),
    )


def _why(record: ModelRecord, point: TokenPoint, least: float, own: Audits | None) -> str:
    """Return the reason for which the planner may not choose a γ other than 0."""
    asked = record.objective.agreement_under_load
    if asked is None:
        return "no agreement under load is set"
    if point.gamma > 0:
        return "it scores less than without prompts"
    exits = record.objective.agreement
    early = "" if exits is None else f", of which early exits and cascades may take {100 * (1 - exits):.4g}%"
    if own is not None and own.disagreed:
        return (
            f"{own.disagreed} of {own.seen} merged texts that also ran unmerged were answered otherwise, and "
            f"{100 * (1 - asked):.4g}% may be{early}: its traffic differs from the profile's texts"
        )
    return (
        f"{100 * least:.4g}% of answers surely agree, and {100 * (1 - asked):.4g}% may differ{early}: more "
        "texts in the profile may show more"
    )
