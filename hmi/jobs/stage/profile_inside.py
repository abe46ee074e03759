"""The profile of a cascade inside one root: which ramp of a model answers first, and by which dispatchers.

One run of a text gives the answers of all ramps and of the full model, and the time up to each. Words are
pruned in further runs, at the site that was chosen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
from numpy.typing import NDArray

from hmi.core import Cascade, Offer, now
from hmi.engine.admit.bundles import Bundle, TaskPart
from hmi.engine.run.running import Held, Runner
from hmi.engine.texts.item import Item, Piece
from hmi.engine.texts.request import TextRequest, TextResult
from hmi.engine.texts.sink import UnreadSink
from hmi.errors import InvalidInput
from hmi.execution import BatchKey, Hook, Left, Rows
from hmi.execution.base import Output
from hmi.execution.machine import fingerprint
from hmi.model.tenant.calibration import Floats, fit_labels, probabilities
from hmi.model.text.batching import Encoded
from hmi.model.text.windows import encode_texts
from hmi.stages.base import OFF, Effect, Setting, Shape, StageBatch
from hmi.stages.cascade.hook import shortened
from hmi.stages.cascade.profiling import Profiled, offered, pruning_scale, select
from hmi.stages.planner import Candidate, Plan
from hmi.training.data.rows import Row

RUNS = 3
"""The number of runs of a row. Its time is their median."""
AGREEMENT = 0.99
"""Sites are compared by their fastest offer of this agreement, or by the one that agrees most."""
ON = Setting("on")
Report = Callable[[int, int], None]
"""Is called with (steps done, steps in all)."""


@dataclass
class RampReader:
    """A hook, and a stage, that reads every ramp of one text, and takes the time."""

    sites: Sequence[int]
    prune_at: int | None = None
    scale: float = 0.0
    batch: StageBatch | None = None
    outputs: dict[int, Floats] = field(default_factory=dict)
    """The ramp's output, by site."""
    entered: dict[int, float] = field(default_factory=dict)
    """The thread's CPU time when the text came to a site, by site."""
    left: dict[int, float] = field(default_factory=dict)
    """The same when the ramp had answered, and words were dropped."""
    name: str = "watch"

    def settings(self, key: BatchKey) -> Sequence[Setting]:
        return (OFF, ON)

    def effect(self, setting: Setting, shape: Shape) -> Effect:
        return Effect((1.0,) * shape.layers)

    def hooks(self, setting: Setting, batch: StageBatch) -> Sequence[Hook]:
        self.batch = batch
        return [self]

    @property
    def at(self) -> frozenset[int]:
        return frozenset(self.sites)

    @property
    def concerns(self) -> None:
        return None

    def __call__(self, layer: int, rows: Rows) -> tuple[Rows, Left | None]:
        assert self.batch is not None
        self.entered[layer] = time.thread_time()
        (output,) = self.batch.ramp(layer, rows, [0])
        if output is not None:
            self.outputs[layer] = output.double().numpy()
        if layer == self.prune_at:
            (seen,) = self.batch.attention(layer, rows, [0])
            rows = rows.taken([(0, shortened(self.batch.texts[0], seen, self.scale))])
        self.left[layer] = time.thread_time()
        return rows, None

    def close(self) -> None: ...

    def ended(self, texts: Sequence[int], outputs: list[Output]) -> list[Output]:
        return outputs


@dataclass(frozen=True)
class Seen:
    """The outputs of the ramps and of the full model for rows, and their times in CPU seconds."""

    ramps: Floats
    """[sites, rows, labels]: outputs."""
    full: Floats
    """[rows, labels]: probabilities, not calibrated."""
    before_s: Floats
    """[sites, rows]: from the text to the site, without other ramps."""
    ramp_s: Floats
    """[sites, rows]"""
    after_s: Floats
    """[sites, rows]: from the site to the answer, without other ramps."""

    @property
    def alone_s(self) -> Floats:
        """[rows]: the full model without ramps."""
        out: Floats = self.before_s[0] + self.after_s[0]
        return out


def seen_by(
    bundle: Bundle,
    part: TaskPart,
    rows: Sequence[Row],
    sites: Sequence[int],
    *,
    prune_at: int | None = None,
    scale: float = 0.0,
    runs: int = RUNS,
    report: Report = lambda done, total: None,
) -> Seen:
    """Let the model answer each row `runs` times, alone, as the server would."""
    labels = bundle.version.labels
    ramps, full = np.zeros((len(sites), len(rows), len(labels))), np.zeros((len(rows), len(labels)))
    seconds = np.zeros((3, runs, len(sites), len(rows)))
    _answer(bundle, part, rows[0], RampReader(sites))  # the first run prepares memory
    for i, row in enumerate(rows):
        report(i, len(rows))
        for r in range(runs):
            watch = RampReader(sites, prune_at, scale)
            begun = time.thread_time()
            answer = _answer(bundle, part, row, watch)
            ended, ramp_s = time.thread_time(), [watch.left[s] - watch.entered[s] for s in sites]
            for n, site in enumerate(sites):
                seconds[0, r, n, i] = watch.entered[site] - begun - sum(ramp_s[:n])
                seconds[1, r, n, i] = ramp_s[n]
                seconds[2, r, n, i] = ended - watch.left[site] - sum(ramp_s[n + 1 :])
        assert answer.scores is not None
        full[i] = [answer.scores[label] for label in labels]
        ramps[:, i] = [watch.outputs[site] for site in sites]
    return Seen(ramps, full, *np.median(seconds, axis=1))


def profiled(
    bundle: Bundle,
    part: TaskPart,
    rows: Sequence[Row],
    *,
    pruned: bool = False,
    report: Report = lambda done, total: None,
) -> Cascade:
    """The cascade of the model's best site, from labelled rows that it was not trained on.

    pruned: also look for a scale at which texts that go on lose words, which costs up to 17 further runs of
    all rows. Raises InvalidInput (no ramps).
    """
    version = bundle.version
    sites = [site for site in version.ramps if site in part.ramps]
    if not sites:
        raise InvalidInput("the model has no ramps: train them first", field="model")
    rows = [row for row in rows if _one_window(bundle, row)]
    seen = seen_by(bundle, part, rows, sites, report=report)
    about = _About(bundle, rows, sites, seen)
    found = [about.cascade(n) for n in range(len(sites))]
    best = max(range(len(sites)), key=lambda n: _worth(found[n]))
    if not pruned:
        return found[best]
    return about.pruned(best, found[best], part)


@dataclass(frozen=True)
class _About:
    """A model's answers to labelled rows, and the cascades that follow from them."""

    bundle: Bundle
    rows: Sequence[Row]
    sites: Sequence[int]
    seen: Seen

    @property
    def gold(self) -> NDArray[np.int64]:
        labels = self.bundle.version.labels
        return np.array([labels.index(cast(str, row.label)) for row in self.rows])

    def cascade(self, n: int, large: Seen | None = None, scale: float = 0.0) -> Cascade:
        """The cascade whose small level is the ramp sites[n].

        large: what the large level says of texts without the words that `scale` drops.
        """
        seen, gold, version = self.seen, self.gold, self.bundle.version
        heat = fit_labels(seen.ramps[n], gold)
        large_heat = version.temperature or fit_labels(_logits(seen.full), gold)
        first, last = probabilities(seen.ramps[n], heat), probabilities(_logits(seen.full), large_heat)
        on, on_s = last, seen.after_s[n]
        if large is not None:
            on, on_s = probabilities(_logits(large.full), large_heat), large.after_s[n]
            on_s = on_s + large.ramp_s[n] - seen.ramp_s[n]  # the choice of words
        small_s = seen.before_s[n] + seen.ramp_s[n]

        rated = Profiled(first, on, gold, small_s, on_s, seen.alone_s, last)
        return Cascade(
            site=self.sites[n],
            temperature=heat,
            version=version.version,
            large_temperature=large_heat,
            rows=len(self.rows),
            judged=len(self.rows),
            large_accuracy=float(rated.right(last).mean()),
            small_accuracy=float(rated.right(rated.small).mean()),
            large_ms=1e3 * float(rated.alone_s.mean()),
            small_ms=1e3 * float(rated.small_s.mean()),
            offers=tuple(
                Offer(
                    cut_off=one.dispatcher.cut_off,
                    slope=one.dispatcher.slope,
                    weight=one.weight,
                    pruning=scale,
                    accuracy=one.accuracy,
                    agreement=one.agreement,
                    mean_ms=1e3 * one.seconds,
                    returned=one.returned,
                )
                for one in offered(rated)
            ),
            machine=fingerprint(),
            measured_at=now(),
        )

    def pruned(self, n: int, plain: Cascade, part: TaskPart) -> Cascade:
        """The cascade with the offers that drop words besides the plain ones, if dropping them pays."""
        runs: dict[float, Seen] = {}
        gold = self.gold

        def accuracy_at(scale: float) -> float:
            if scale == 0.0:
                return float((self.seen.full.argmax(-1) == gold).mean())
            site = self.sites[n]
            runs[scale] = seen_by(
                self.bundle, part, self.rows, self.sites, prune_at=site, scale=scale, runs=1
            )
            return float((runs[scale].full.argmax(-1) == gold).mean())

        scale = pruning_scale(accuracy_at)
        if scale == 0.0:
            return plain
        further = self.cascade(n, runs[scale], scale)
        return plain.model_copy(update={"offers": (*plain.offers, *further.offers)})


def _logits(chances: Floats) -> Floats:
    out: Floats = np.log(np.maximum(chances, np.finfo(np.float32).tiny))
    return out


def _worth(cascade: Cascade) -> tuple[bool, float]:
    """The worth of a site: first whether it has an offer of AGREEMENT, then the share of the time that it
    saves."""
    chosen = select(cascade.offers, AGREEMENT)
    if chosen is None:
        return False, max((offer.agreement for offer in cascade.offers), default=0.0)
    return True, 1.0 - chosen.mean_ms / cascade.large_ms


def _one_window(bundle: Bundle, row: Row) -> bool:
    return len(_encoded(bundle, row)) == 1


def _encoded(bundle: Bundle, row: Row) -> list[Encoded]:
    version = bundle.version
    text, length, windows = row.text, version.max_length, version.rules.windows
    return encode_texts(bundle.root.tokenizer, [text], length, windows=windows)[0]


def _answer(bundle: Bundle, part: TaskPart, row: Row, watch: RampReader) -> TextResult:
    item = Item(TextRequest(bundle.model, row.text, scores=True), bundle, _encoded(bundle, row), UnreadSink())
    held = Held([Piece(item, i) for i in range(len(item.windows))], {bundle.version.artefact: part}, [])
    layers = bundle.executor.layers
    plan = Plan(Candidate(0.0, 0.0, bundle.model.tenant, bundle.key, layers), {watch.name: ON})
    ran = Runner([watch], None).run(held, plan)
    for _, error in ran.failed:
        raise error
    return ran.answers[0][1]
