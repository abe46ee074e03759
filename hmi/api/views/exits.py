"""A model's early exits as its tenant sees them, and the check of labels that come later."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from hmi.api.protocols.asks import text_id
from hmi.api.schemas.cascades import CascadeBrief
from hmi.api.schemas.exits import ExitReportView, ExitState, ExitsView, LabelledView, LateLabel, SiteView
from hmi.core import HEADLESS, Cascade, ModelId, ModelRecord
from hmi.errors import InvalidInput

if TYPE_CHECKING:
    from hmi.stages.early_exit.report import ExitReport, Exits, Label, LabelAgreement

FORMS = {
    "classification": ("a label, as a text", str),
    "pair": ("a label, as a text", str),
    "multilabel": ("a list of labels, [] if none applies", list),
    "regression": ("a number", float),
    "tagging": ("a list with one tag for each word", list),
}
"""The form of a label in words, and its type, by task."""


def exits_view(record: ModelRecord, exits: Exits | None, *, held: bool) -> ExitsView:
    """Return a model's objective and the state of its exits. exits: the running engine's; None: there is
    none in this process. held: whether the model has a cascade that holds, so that its exits rest."""
    model = ModelId(record.tenant, record.name)
    report = None if exits is None else exits.report(record.live.artefact, model)
    state, says = _state(record, report, held=held, served=exits is not None)
    return ExitsView(
        model=f"{record.tenant}.{record.name}",
        version=record.current,
        objective=record.objective,
        state=state,
        says=says,
        report=None if report is None else _report_view(report),
    )


def cascade_brief(cascade: Cascade | None) -> CascadeBrief | None:
    if cascade is None:
        return None
    return CascadeBrief(
        small=cascade.small,
        site=cascade.site,
        version=cascade.version,
        small_version=cascade.small_version,
        rows=cascade.rows,
        offers=len(cascade.offers),
    )


def checked_labels(record: ModelRecord, items: Sequence[LateLabel]) -> list[tuple[str, Label]]:
    """Return each item's text and label. Raises InvalidInput, naming the field, if one does not fit the
    model's task and labels or names the same answer as another."""
    task = record.live.task
    if task in HEADLESS:
        what = "an embedding" if task == "embedding" else "a model that writes"
        raise InvalidInput(f"items: {what} has no labels: name a model of another task", field="items")
    words, kind = FORMS[task]
    known = {label for version in record.versions for label in version.labels}
    first: dict[str, int] = {}
    found: list[tuple[str, Label]] = []
    for i, item in enumerate(items):
        field = f"items[{i}].label"
        if not isinstance(item.label, kind):
            raise InvalidInput(f"{field} is not what the task {task} answers: give {words}", field=field)
        wrong = next((label for label in _names(item.label) if label not in known), None)
        if wrong is not None:
            raise InvalidInput(
                f"{field}: {wrong[:80]!r} is no label of {record.tenant}.{record.name}: use "
                f"{_listed(sorted(known))}, or leave the item out",
                field=field,
            )
        text = text_id(item.id, item.index)
        if first.setdefault(text, i) != i:
            raise InvalidInput(
                f"items[{i}] names the same answer as items[{first[text]}]: send one of them",
                field=f"items[{i}]",
            )
        found.append((text, item.label))
    return found


def _names(label: str | float | list[str]) -> Iterator[str]:
    if isinstance(label, str):
        yield label
    elif isinstance(label, list):
        yield from label


def _listed(labels: Sequence[str], shown: int = 10) -> str:
    more = f" or one of {len(labels) - shown} more" if len(labels) > shown else ""
    return ", ".join(repr(label[:40]) for label in labels[:shown]) + more


def _state(
    record: ModelRecord, report: ExitReport | None, *, held: bool, served: bool
) -> tuple[ExitState, str]:
    name, live = f"{record.tenant}.{record.name}", record.live
    if record.objective.agreement is None:
        cure = "" if live.task in HEADLESS else f": hmi model objective {name} --agreement 0.99 sets one"
        return "no objective", f"no agreement is set, so every text goes through the full model{cure}"
    if not live.ramps and not held:
        return "no ramps", f"no ramps: run hmi model ramps {name}"
    if not served:
        return "waiting", f"hmi model exits {name} asks the running server, which knows"
    if held:
        return "cascade", (
            "no text leaves early while the model has a cascade for its live version; hmi model cascade show "
            f"{name} tells what the cascade does"
        )
    if report is None:
        return "waiting", (
            "no text has come since the server started or this version was published. Counts from before a "
            "restart come back with the next text"
        )
    if report.agreement != record.objective.agreement:
        return "waiting", "no text has come since the agreement was changed; the counts are of the former one"
    return report.state, f"{report.state}: {_words(report)}"


def _words(report: ExitReport) -> str:
    if report.state == "collecting":
        others = f", {report.borrowed} of them of other models on this root" if report.borrowed else ""
        return (
            f"{report.counted} of the {report.needed} texts from which thresholds are tuned{others}. None "
            "leaves early yet"
        )
    if report.state == "testing":
        return (
            f"thresholds are tuned, and {report.counted} of about {report.needed} further texts have tested "
            "them. None leaves early yet"
        )
    if report.state == "open":
        return f"{_percent(_left_share(report))} of {report.texts} texts left early"
    if report.state == "paused":
        return (
            "no text leaves at present: one more answer that disagrees might exceed what the agreement "
            "allows. Texts leave again after more texts have come"
        )
    return (
        "at this agreement early exits would cost more time than they save, or hardly save any. Every text "
        "goes through the full model; another try follows after many more texts"
    )


def _report_view(report: ExitReport) -> ExitReportView:
    used = dict(zip(report.sites, report.thresholds, strict=True))
    return ExitReportView(
        texts=report.texts,
        left={str(site): count for site, count in report.left.items()},
        left_share=_left_share(report),
        checked={str(site): count for site, count in report.checked.items()},
        sooner=report.sooner,
        skipped=report.skipped,
        avoided=report.avoided,
        cost=report.avoided - report.saved,
        saved=report.saved,
        layers_ms=report.layers_ms,
        sites=[
            SiteView(site=site, threshold=used.get(site, 0.0), avoids=report.avoids.get(site, 0.0))
            for site in sorted({*used, *report.left})
        ],
        audit_share=report.share,
        audits=report.audits,
        disagreed=report.disagreed,
        agreement_at_least=report.agreement_at_least,
        counted=report.counted,
        needed=report.needed,
        borrowed=report.borrowed,
        policies=report.policies,
        alarms=report.alarms,
        early=_labelled(report.early),
        full=_labelled(report.full),
    )


def _labelled(labelled: LabelAgreement) -> LabelledView:
    return LabelledView(**vars(labelled))


def _left_share(report: ExitReport) -> float:
    return sum(report.left.values()) / report.texts if report.texts else 0.0


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%"
