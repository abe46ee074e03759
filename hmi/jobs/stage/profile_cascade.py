"""The job that profiles a cascade. Here for two models; `profile_inside` does it for a ramp of one model.

Both levels answer labelled rows as the server would, and are timed. All rows fit temperatures, choose
dispatchers and ensembles, and measure them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch

from hmi.core import Cascade, ModelId, ModelRecord, ModelVersion, Offer, now
from hmi.engine.admit.bundles import Bundle, Bundles
from hmi.engine.run.running import Held, Runner
from hmi.engine.texts.item import Item, Piece
from hmi.engine.texts.request import TextRequest, TextResult
from hmi.engine.texts.sink import UnreadSink
from hmi.errors import Conflict, InvalidData
from hmi.execution.machine import fingerprint
from hmi.jobs.model.cascade_levels import check_levels, small_level
from hmi.jobs.model.comparing import seen_by, unseen
from hmi.jobs.runtime.context import JobContext
from hmi.jobs.specs import ProfileCascadeSpec
from hmi.jobs.stage import profile_inside
from hmi.jobs.stage.profile_inside import Report
from hmi.model.tasks import task_of_version
from hmi.model.tenant.calibration import Floats, fit_labels
from hmi.model.text.windows import encode_texts
from hmi.stages.cascade.ensemble import calibrated
from hmi.stages.cascade.profiling import DispatcherCandidate as Dispatching
from hmi.stages.cascade.profiling import Profiled, offered
from hmi.stages.planner import Candidate, Plan
from hmi.training.data.rows import Row, read_labelled_file
from hmi.training.tasks.row_keys import key_of

MIN_ROWS = 200
"""The least number of rows that neither level was trained on."""
MOST_ROWS = 4000
"""Of more rows, those with the smallest keys are used: each is run RUNS times on both levels."""
RUNS = 3
"""The number of runs of a row. Its time is their median."""


def run(ctx: JobContext) -> dict[str, Any]:
    """Run the job. Raises InvalidInput, InvalidData, NotFound, Conflict (a level has a new version)."""
    spec = ProfileCascadeSpec.of(ctx.job)
    large = ctx.registry.model(spec.model_id)
    small = small_level(ctx.registry.model, large, spec.small)
    check_levels(large, small)
    rows, seen = _rows(ctx, large.live, None if small is None else small.live, spec)
    torch.set_num_threads(1)
    s = ctx.settings
    bundles = Bundles(s.data, ctx.registry, ctx.plots, ctx.adapters, ctx.lowers, s.precision, roots=ctx.roots)
    try:
        last = Level(bundles, large)
        if small is None:
            made = profile_inside.profiled(last.bundle, last.part, rows, report=_report(ctx))
        else:
            levels = [Level(bundles, small), last]
            made = profiled(large, small, rows, _answer(_report(ctx), levels, rows))
    finally:
        bundles.close()

    def attach(record: ModelRecord) -> ModelRecord:
        if (record.live.version, record.live.artefact) != (large.live.version, large.live.artefact):
            raise Conflict(f"{spec.model} got another version meanwhile: profile its cascade again")
        return record.model_copy(update={"cascade": made})

    ctx.check()
    if small is not None and "@" in (spec.small or ""):
        name = ModelId(small.tenant, small.name)
        attach(ctx.registry.model(spec.model_id))  # raises before a model is made for nothing
        small_level(ctx.registry.model, large, spec.small)
        ctx.registry.publish_model(name, small.live, small.depth)  # does nothing if it is there already
    ctx.registry.change_model(spec.model_id, attach)
    return {
        "model": spec.model,
        "small": made.small,
        "site": made.site,
        "rows": made.rows,
        "judged": made.judged,
        "seen_rows": seen,
        "large_accuracy": made.large_accuracy,
        "small_accuracy": made.small_accuracy,
        "large_ms": made.large_ms,
        "small_ms": made.small_ms,
        "offers": len(made.offers),
    }


@dataclass(frozen=True)
class LevelAnswers:
    """The answers of one level to the rows."""

    chances: Floats
    """[rows, labels]: probabilities, not calibrated, by the large level's labels."""
    seconds: Floats
    """[rows]: processor time."""


class Level:
    """One level, which answers single texts on the calling thread as the server would."""

    def __init__(self, bundles: Bundles, record: ModelRecord) -> None:
        self.version = version = record.live
        upper = bundles.upper(version).load()
        upper.executor.settle()
        model, reader = ModelId(record.tenant, record.name), bundles.reader(version).load()
        self.bundle = Bundle(model, version, upper.root, upper.executor, reader, task_of_version(version))
        self.part = bundles.load_task_part(version.artefact)
        self.part.ready(upper.executor.prepare)
        self._runner = Runner([], None)
        self._plan = Plan(Candidate(0.0, 0.0, model.tenant, self.bundle.key, upper.executor.layers))

    def answer(self, row: Row) -> tuple[TextResult, float]:
        """Return the answer, and the seconds of processor time from text to answer."""
        begun, version, bundle = time.thread_time(), self.version, self.bundle
        length, windows = version.max_length, version.rules.windows
        (encoded,) = encode_texts(bundle.root.tokenizer, [row.text], length, windows=windows)
        item = Item(TextRequest(bundle.model, row.text, scores=True), bundle, encoded, UnreadSink())
        held = Held([Piece(item, i) for i in range(len(encoded))], {version.artefact: self.part}, [])
        ran = self._runner.run(held, self._plan)
        seconds = time.thread_time() - begun
        for _, error in ran.failed:
            raise error
        return ran.answers[0][1], seconds


def profiled(
    large: ModelRecord, small: ModelRecord, rows: Sequence[Row], answered: Sequence[LevelAnswers]
) -> Cascade:
    """The cascade of these answers, the small level's first."""
    labels = list(large.live.labels)
    gold = np.array([labels.index(cast(str, row.label)) for row in rows])
    heat = [
        _temperature(record.live, one.chances, gold)
        for record, one in zip((small, large), answered, strict=True)
    ]
    first, last = (calibrated(one.chances, t) for one, t in zip(answered, heat, strict=True))
    small_s, large_s = (one.seconds for one in answered)
    rated = Profiled(first, last, gold, small_s, large_s, large_s)
    return Cascade(
        small=f"{small.tenant}.{small.name}",
        version=large.live.version,
        small_version=small.live.version,
        small_artefact=small.live.artefact,
        temperature=heat[0],
        large_temperature=heat[1],
        rows=len(rows),
        judged=len(rows),
        large_accuracy=float(rated.right(rated.large).mean()),
        small_accuracy=float(rated.right(rated.small).mean()),
        large_ms=1e3 * float(rated.alone_s.mean()),
        small_ms=1e3 * float(rated.small_s.mean()),
        offers=tuple(_offer(one) for one in offered(rated)),
        machine=fingerprint(),
        measured_at=now(),
    )


def _offer(one: Dispatching) -> Offer:
    return Offer(
        cut_off=one.dispatcher.cut_off,
        slope=one.dispatcher.slope,
        weight=one.weight,
        accuracy=one.accuracy,
        agreement=one.agreement,
        mean_ms=1e3 * one.seconds,
        returned=one.returned,
    )


def _temperature(version: ModelVersion, chances: Floats, gold: np.ndarray[Any, Any]) -> float:
    """The version's temperature; one fitted to these rows if it has none."""
    if version.temperature is not None:
        return version.temperature
    return fit_labels(np.log(np.maximum(chances, np.finfo(np.float32).tiny)), gold)


def _report(ctx: JobContext) -> Report:
    return lambda done, total: ctx.progress(done, total, phase="profiling")


def _rows(
    ctx: JobContext, large: ModelVersion, small: ModelVersion | None, spec: ProfileCascadeSpec
) -> tuple[list[Row], int]:
    """The rows that neither level was trained on, and how many were left out."""
    given = read_labelled_file(
        ctx.input / "data", large.task, skip=spec.skip_bad_rows, reading=spec.reading
    ).rows
    unknown = {str(row.label) for row in given} - {*large.labels}
    if unknown:
        raise InvalidData(
            f"data has the label {min(unknown)[:80]!r}, which the models do not know: give rows with labels "
            "of theirs",
            field="data",
        )
    rows = list(given)
    for version in [large, *([] if small is None else [small])]:
        rows = [rows[i] for i in unseen(rows, seen_by(ctx, version))]
    if len(rows) < MIN_ROWS:
        gone = len(given) - len(rows)
        trained = f" of {len(given)} (the models were trained on the other {gone})" if gone else ""
        raise InvalidData(
            f"{len(rows)} rows{trained} are left: give at least {MIN_ROWS} rows that neither level was "
            "trained on",
            field="data",
        )
    return sorted(rows, key=key_of)[:MOST_ROWS], len(given) - len(rows)


def _answer(report: Report, levels: Sequence[Level], rows: Sequence[Row]) -> list[LevelAnswers]:
    """Let each level answer each row RUNS times, in turns, so that a busy moment slows both."""
    labels = levels[-1].version.labels
    chances = np.zeros((len(levels), len(rows), len(labels)))
    seconds = np.zeros((len(levels), len(rows), RUNS))
    for level in levels:
        level.answer(rows[0])  # the first run of a level prepares memory
    for i, row in enumerate(rows):
        report(i, len(rows))
        for r in range(RUNS):
            for n, level in enumerate(levels):
                answer, seconds[n, i, r] = level.answer(row)
                assert answer.scores is not None
                chances[n, i] = [answer.scores[label] for label in labels]
    report(len(rows), len(rows))
    return [LevelAnswers(c, np.median(s, axis=1)) for c, s in zip(chances, seconds, strict=True)]
