"""The background job that tries what makes a published version of a tenant's model better.

It reads the rows of the job that published the version, splits them alike, trains a candidate with more texts
(`improving.trying`), compares the two on the same held-out rows (`improving.deciding`) and publishes the
candidate if it is better with confidence or, for a new model of few rows with one label each, unless it is
worse. The model's record keeps what was tried.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

from hmi.core import Improvement, ModelRecord, ModelVersion, RootRecord, Tried, now
from hmi.errors import Conflict, Damaged, InvalidData, JobCancelled, NotFound, QuotaExceeded
from hmi.jobs.improving.deciding import decide, rows_to_decide, too_few
from hmi.jobs.improving.deepening import VersionCandidate, deeper_root, trained_deeper
from hmi.jobs.improving.folding import decide_by_folds
from hmi.jobs.improving.handing_over import may_improve
from hmi.jobs.improving.ledger import Ledger
from hmi.jobs.improving.teaching import Trial
from hmi.jobs.improving.trying import NAME, NothingNewError, name_of, rows_before, starts_afresh, ways_of
from hmi.jobs.model.comparing import answers_of
from hmi.jobs.model.publishing import stored_version
from hmi.jobs.model.training_data import Data, read_data
from hmi.jobs.runtime.context import JobContext
from hmi.jobs.specs import ImproveSpec
from hmi.model.memory import keep_freed_memory
from hmi.model.sources.root import load_root
from hmi.model.tasks import task_of_version
from hmi.sizes import counted
from hmi.training.fit.early_stopping import StopTraining
from hmi.training.second.choosing import Rule, VersionComparison, least_rows, rule_of


def held_back(ctx: JobContext, spec: ImproveSpec) -> str | None:
    """Return why a better version is not to answer until its tenant says so, or None if it may.

    A cascade holds for the versions that it was profiled with. The tenant would find it switched off without
    having done anything.
    """
    for model in ctx.registry.models(spec.model_id.tenant, tolerant=True):
        name, cascade = f"{model.tenant}.{model.name}", model.cascade
        if cascade is not None and spec.model in (name, cascade.small):
            return (
                f"the cascade of {name} was profiled with version {spec.version}: publish this version, and "
                "profile the cascade again"
            )
    return None


CUT_SHORT = "; the budget ended its training early"
UNJUDGED = ", and so few rows do not judge that"
UNTRAINED = "the budget was spent before it was trained on all rows, so nothing was published"


def run(ctx: JobContext) -> dict[str, Any]:
    """Run the job. Raises JobCancelled, also if the version was superseded."""
    keep_freed_memory()
    spec = ImproveSpec.of(ctx.job)
    ctx.check()
    ledger = Ledger(ctx, budget_of(ctx))
    try:
        why = _reason_not_to_try(ctx, spec) or _try_and_publish(ctx, spec, ledger)
        return _note_ending(ctx, spec, ledger, why)
    finally:
        ledger.save()


def budget_of(ctx: JobContext) -> float:
    """The most CPU seconds of the job: the server's, or fewer if the model's options say so."""
    most = ctx.settings.improve_cpu_s
    return float(min(most, ImproveSpec.of(ctx.job).options.improve_cpu_s or most))


def _reason_not_to_try(ctx: JobContext, spec: ImproveSpec) -> str | None:
    """Return a sentence that says why nothing is tried, or None if something is."""
    if not may_improve(ctx, spec):
        return "improving was switched off since"
    try:
        ctx.registry.rooms.check_job(ctx.job)
    except QuotaExceeded as error:
        return error.message
    return None


def _try_and_publish(ctx: JobContext, spec: ImproveSpec, ledger: Ledger) -> str:
    """Try, decide and publish. Returns why it stopped."""
    model = ctx.registry.model(spec.model_id)
    if _version_of_job(ctx, model) is not None:
        return ledger.tried[-1].why if ledger.tried else "better"  # it was killed after it had published
    base = next((v for v in model.versions if v.version == spec.version), None)
    if base is None or model.current != spec.version:
        raise JobCancelled(f"version {model.current} answers since: there is nothing to improve")
    data = read_data(ctx.input, base.task, spec.options)
    which = rows_to_decide(ctx, base, data)
    task, rows = task_of_version(base), len(data.train) + len(data.dev)
    rule = rule_of(task, rows, len(which), afresh=starts_afresh(spec))
    if (why := too_few(which, data, rule)) is not None:
        return why
    try:
        return _compare_trials(ctx, spec, model, base, data, which, rule, ledger)
    except StopTraining:
        why = f"its budget of {ledger.budget_s:g} CPU seconds was spent before there was anything to compare"
    except NothingNewError as error:
        why = str(error)
    except (Conflict, InvalidData) as error:  # the source is gone, or the training diverged
        why = error.message
    ledger.note(Tried(name=NAME, cpu_s=round(ledger.spent_s, 1), why=why))
    return why


def _compare_trials(
    ctx: JobContext,
    spec: ImproveSpec,
    model: ModelRecord,
    base: ModelVersion,
    data: Data,
    which: list[int],
    rule: Rule,
    ledger: Ledger,
) -> str:
    root = load_root(ctx.roots.folder(base.root, base.root_version))
    domain = ctx.plots.version(base.plot_version)
    if domain.ref != base.domain:  # the version stands on another root than its domain's
        domain = ctx.plots.version(base.domain)
    trial = Trial(ctx, root, domain, ledger, len(data.train))
    deeper = None if rule == "by_folds" else deeper_root(ctx, model, base, spec)
    winner, tried = None, list[Tried]()
    if deeper is None or model.depth != "full":
        try:
            winner, told = _second(trial, spec, base, data, which, rule)
        except NothingNewError as error:
            if deeper is None:
                raise
            told = Tried(name=NAME, cpu_s=round(ledger.spent_s, 1), why=str(error))
        tried.append(told)
    if deeper is not None and not ledger.cut:
        # All layers take twice the time, so they must be better, unless the tenant wants them.
        winner, told = _deeper(
            trial, spec, base, data, which, rule if model.depth == "full" else "better", winner, deeper
        )
        tried.append(told)
    for told in tried:
        ledger.note(told)
    if winner is not None:
        made = replace(winner.made, metrics={**winner.made.metrics, "improved": _report(ledger, base)})
        version = stored_version(
            *(ctx, spec, winner.root, winner.plot, winner.data, made, rows_before(ctx, spec, base)),
            held_back=held_back(ctx, spec),
        )
        try:
            ctx.registry.publish_model(spec.model_id, version)
        except QuotaExceeded as error:  # the tenant has filled its room since the job began
            return error.message
    return "; all layers: ".join(told.why for told in tried)


def _second(
    trial: Trial, spec: ImproveSpec, base: ModelVersion, data: Data, which: list[int], rule: Rule
) -> tuple[VersionCandidate | None, Tried]:
    """Train a candidate like the version, on more texts. Returns it if it is to be published."""
    ctx, root, ledger = trial.ctx, trial.root, trial.ledger
    ways, made, ending = ways_of(trial, spec, base), None, ""
    if rule == "by_folds":
        rows = [*data.train, *(data.dev[i] for i in which)]
        found = decide_by_folds(trial, base, data, rows, ways)
        if ledger.cut:
            raise StopTraining
        if found.better:
            with suppress(StopTraining):
                made = ways.final(data, ctx.folder)
            made = None if ledger.cut else made  # nobody has judged a training that was cut short
            ending = f"; {UNTRAINED}" if made is None else ""
    else:
        with ledger.share(1):
            made = ways.final(data, ctx.folder)
        ctx.progress(0, 1, phase="comparing")
        found = decide(data, which, answers_of(ctx, root, base, data.dev), made, base)
        ctx.progress(1, 1, phase="comparing")
        if ledger.cut:  # what was cut short is not trusted, only judged
            rule, ending = "better", CUT_SHORT
            if found.rows < least_rows(rule):
                made, ending = None, CUT_SHORT + UNJUDGED
    name = NAME if made is None else name_of(made)
    told = _tried_record(found, name, _comparison_sentence(found, rule, ending), ledger.spent_s)
    if made is None or not found.passes(rule):
        return None, told
    return VersionCandidate(root, base.plot_version, data, made), told


def _deeper(
    trial: Trial,
    spec: ImproveSpec,
    base: ModelVersion,
    data: Data,
    which: list[int],
    rule: Rule,
    winner: VersionCandidate | None,
    record: RootRecord,
) -> tuple[VersionCandidate | None, Tried]:
    """Train a candidate in all layers, and compare it with `winner`, or with the version if there is none.

    Returns the better one; None: the version.
    """
    ctx, ledger = trial.ctx, trial.ledger
    spent_s, name = ledger.spent_s, f"a module in each layer, on root {record.name}"
    if (few := len(which)) < least_rows("better"):
        return winner, Tried(
            name=name,
            cpu_s=0.0,
            why=f"{counted(few, 'held-out row is', 'held-out rows are')} too few to tell",
        )
    try:
        found = trained_deeper(trial, spec, base, data, record)
    except (StopTraining, Conflict, Damaged, InvalidData, NotFound) as error:
        why = UNTRAINED if isinstance(error, StopTraining) else error.message
        return winner, Tried(name=name, cpu_s=round(ledger.spent_s - spent_s, 1), why=why)
    old = answers_of(ctx, trial.root, base, data.dev) if winner is None else winner.made.answers
    compared = decide(data, which, old, found.made, base)
    rule = "better" if ledger.cut else rule
    why = _comparison_sentence(compared, rule, CUT_SHORT if ledger.cut else "")
    told = _tried_record(compared, name, why, ledger.spent_s - spent_s)
    return (found if compared.passes(rule) else winner), told


def _tried_record(found: VersionComparison, name: str, why: str, cpu_s: float) -> Tried:
    return Tried(
        name=name,
        before=round(found.before, 6),
        after=round(found.after, 6),
        rows=found.rows,
        sure=found.sure,
        cpu_s=round(cpu_s, 1),
        why=why,
    )


def _comparison_sentence(found: VersionComparison, rule: Rule, ending: str) -> str:
    rows = f"on {counted(found.rows, 'held-out row')}: {found.after:.3f} after {found.before:.3f}"
    if rule == "not_worse":
        return f"worse {rows}" if found.worse else f"not worse {rows}; so few rows cannot show more"
    verdict = "better" if found.better else "not better with confidence"
    return f"{verdict} {rows}, sure to {found.sure:.0%}{ending}"


def _report(ledger: Ledger, base: ModelVersion) -> dict[str, Any]:
    """Return the part of the new version's held-out report that tells of its origin."""
    return {"version": base.version, "tried": [tried.model_dump(mode="json") for tried in ledger.tried]}


def _version_of_job(ctx: JobContext, model: ModelRecord) -> ModelVersion | None:
    return next((v for v in model.versions if v.job == ctx.job.job), None)


def _note_ending(ctx: JobContext, spec: ImproveSpec, ledger: Ledger, why: str) -> dict[str, Any]:
    """Note in the model's record how the job ended, and return the job's result."""
    best = next((t for t in reversed(ledger.tried) if t.after is not None), None)
    outcome: dict[str, Any] = {"tried": ledger.tried, "cpu_s": round(ledger.spent_s, 1), "why": why}

    def note(model: ModelRecord) -> ModelRecord:
        made, old = _version_of_job(ctx, model), model.improvement
        if made is not None:
            gain = None if best is None else round((best.after or 0) - (best.before or 0), 6)
            outcome.update(published=made.version, gain=gain)
        if old is None or old.job != ctx.job.job:
            return model
        ended: Improvement = old.model_copy(update={**outcome, "ended": now()})
        return model.model_copy(update={"improvement": ended})

    with suppress(NotFound):  # the model was deleted: the job has nothing to tell
        ctx.registry.change_model(spec.model_id, note)
    return {
        "model": spec.model,
        "improves": spec.version,
        "version": outcome.get("published"),
        "gain": outcome.get("gain"),
        "tried": [tried.model_dump(mode="json") for tried in ledger.tried],
        "cpu_s": outcome["cpu_s"],
        "reason": why,
    }
