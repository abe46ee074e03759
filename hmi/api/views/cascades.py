"""A model's cascade as its tenant sees it: which dispatchers reach the objective, and what they do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hmi.api.schemas.cascades import CascadeTraffic, CascadeView
from hmi.core import Offer
from hmi.jobs.model.cascade_levels import CURE
from hmi.manager.cascades import CascadeInfo

if TYPE_CHECKING:
    from hmi.stages.cascade.report import CascadeReport


def cascade_view(info: CascadeInfo, report: CascadeReport | None) -> CascadeView:
    """Return a model's cascade. report: of its traffic under the present agreement; None if there is none."""
    fits = _fits(info)
    chosen = _index_in_use(info, report, fits)
    insists = info.model.objective.agreement is not None
    return CascadeView(
        model=f"{info.model.tenant}.{info.model.name}",
        state="ready" if info.stale is None else "stale",
        stale=None if info.stale is None else f"{info.stale}: {CURE}",
        says=_cascade_sentence(info, report if insists else None, fits),
        cascade=info.cascade,
        fits=fits,
        chosen=chosen,
        traffic=CascadeTraffic(state="no objective") if not insists else _traffic(report),
    )


def _traffic(report: CascadeReport | None) -> CascadeTraffic | None:
    return None if report is None else CascadeTraffic(**vars(report))


def _fits(info: CascadeInfo) -> list[int]:
    agreement, deadline_ms = info.model.objective.agreement, info.model.objective.deadline_ms
    if agreement is None or info.stale is not None:
        return []
    from hmi.stages.cascade.profiling import keeps, select  # imports torch, which takes seconds

    most, accuracy = float("inf") if deadline_ms is None else deadline_ms, info.cascade.large_accuracy
    offers = enumerate(info.cascade.offers)
    return [i for i, offer in offers if select([offer], agreement, most) and keeps(offer, accuracy)]


def _index_in_use(info: CascadeInfo, report: CascadeReport | None, fits: list[int]) -> int | None:
    offers, agreement = info.cascade.offers, info.model.objective.agreement
    if agreement is None or not fits:
        return None
    if report is not None:
        wanted = report.cut_off, report.slope, report.weight
        return next((i for i in fits if _offer_key(offers[i]) == wanted), None)
    from hmi.stages.cascade.profiling import ladder

    first = ladder([offers[i] for i in fits], agreement)
    return offers.index(first[0]) if first else None


def _offer_key(offer: Offer) -> tuple[float, float, float]:
    return offer.cut_off, offer.slope, offer.weight


def _cascade_sentence(info: CascadeInfo, report: CascadeReport | None, fits: list[int]) -> str:
    name, offers = f"{info.model.tenant}.{info.model.name}", info.cascade.offers
    alone = "the large level answers every text"
    if info.stale is not None:
        return f"stale: {info.stale}, so {alone}: {CURE}"
    if not offers:
        return f"no dispatcher is faster than the large level, so {alone}"
    if info.model.objective.agreement is None:
        cure = f"hmi model objective {name} --agreement 0.99 sets one"
        return f"no agreement is set, so {alone}: {cure}"
    if not fits:
        return f"no dispatcher reaches the objective, so {alone}: {_nearest(info)}"
    count = f"{len(fits)} of {len(offers)} dispatchers reach the objective"
    if report is None:
        return f"ready: {count}; no text has come under this agreement since the server started, if one runs"
    if report.state == "no offer":
        return f"no offer: {count}, but the audits of your texts did not, so {alone}"
    if report.state == "testing":
        return (
            f"testing: {report.gate_audits} of about {report.gate_needed} audits; until then {alone}. {count}"
        )
    if report.state == "paused":
        return (
            f"paused: {alone} at present, since one more answer that disagrees might exceed what the "
            f"agreement allows. The small level answers again after more texts. {count}"
        )
    return f"in use: the small level answered {report.returned} of {report.texts} texts. {count}"


def _nearest(info: CascadeInfo) -> str:
    """Describe the offers that come nearest to an objective that none reaches."""
    objective, offers = info.model.objective, info.cascade.offers
    closest = max(offers, key=lambda offer: offer.agreement)
    told = f"the highest agreement is {100 * closest.agreement:.4g}%, at {closest.mean_ms:.3g} ms in the mean"
    if objective.deadline_ms is not None:
        fastest = min(offers, key=lambda offer: offer.mean_ms)
        told += f"; the fastest takes {fastest.mean_ms:.3g} ms, with {100 * fastest.agreement:.4g}%"
    told += (
        f". None may lose more than a point of the large level's accuracy, {info.cascade.large_accuracy:.4g}"
    )
    return told + ". Set an objective that one of them reaches, or profile on more rows"
