"""The measurement of a stage's settings on a root's executor on this machine, and the costs fitted to it.

Random rows do: how long a setting takes depends on the number of rows, not on what they say.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle, islice, product

import torch
from torch import Tensor

from hmi.core import ModelId, ModelVersion, Objective, TokenPoint, now
from hmi.execution.batch import BatchKey, Rows, offsets_of
from hmi.execution.choose import Chosen
from hmi.execution.machine import fingerprint
from hmi.model.network.shape import EncoderShape
from hmi.model.tasks import task_of_version
from hmi.model.tenant.modules import TenantModule, new_module
from hmi.modulespec import ModuleSpec
from hmi.stages.base import OFF, Setting, Shape, Stage, StageBatch, Text
from hmi.stages.planning.cost import Cost, Sample, fit
from hmi.stores.profiles import Reads, StageCost, StageProfile, StageProfiles, StageSample

BATCHES: dict[str, tuple[int, ...]] = {
    "1 × 16": (16,),
    "1 × 64": (64,),
    "1 × 128": (128,),
    "6 × 24": (24,) * 6,
    "mixed": (12, 96, 20, 64, 32, 64),
}
"""The measured batches, and the tokens of their texts. The texts have one module."""
SEVERAL = "6 × 24"
"""The batch that is also measured with a module for each text."""
ROUNDS = 3
"""A batch is timed this many times under each setting in turn. The fastest run counts."""
READS: tuple[Reads, ...] = ("cls", "rows")
Progress = Callable[[str, int, int], None]
"""Called before each step of a measurement with its name, the number of steps done, and of all steps."""


class MeasurementEnded(Exception):
    """The measurement was asked to end."""


def cost_of(profile: StageProfile, reads: Reads) -> Cost | None:
    """Return the fitted cost of batches that read these rows; None if they were not measured."""
    found = profile.costs.get(reads)
    return None if found is None else Cost(**found.model_dump())


def measurable(stage: Stage, key: BatchKey) -> list[Setting]:
    """The stage's settings that take the same time for all models. Prompts are part of a model."""
    return [setting for setting in stage.settings(key) if getattr(setting, "gamma", 0) <= 0]


@dataclass(frozen=True)
class Lab:
    """The measurement of a stage's settings on one root's executor."""

    stage: Stage
    executor: Chosen
    root: tuple[str, str]
    """Name and version."""
    shape: EncoderShape
    longest: int
    """The most tokens of a text."""

    def known(self, kept: StageProfiles) -> StageProfile | None:
        """Return the profile that is kept of this executor and these settings; None if there is none."""
        found = kept.get(*self.root, fingerprint())
        names = tuple(setting.name for setting in self._all("cls"))
        wanted = self.executor.name, names
        return None if found is None or (found.executor, found.settings) != wanted else found

    def measure(
        self, progress: Progress = lambda step, done, of: None, ended: threading.Event | None = None
    ) -> StageProfile:
        """Time every setting on every batch, and fit the costs. Raises Ended soon after `ended` is set."""
        batches = {name: tuple(min(n, self.longest) for n in lengths) for name, lengths in BATCHES.items()}
        modules = [self._module() for _ in range(len(batches[SEVERAL]))]
        counts = [*((name, 1) for name in batches), (SEVERAL, len(modules))]
        samples, layers = list[StageSample](), self.executor.layers
        for step, (reads, (name, count)) in enumerate(product(READS, counts)):
            progress(f"{name}, {reads}", step, len(READS) * len(counts))
            samples += self._timed(reads, name, batches[name], modules[:count], ended)
        rows = {each.name: self._rows(each, layers) for each in self._all("cls")}
        costs = {reads: _fitted(samples, reads, rows, batches) for reads in READS}
        return StageProfile(
            machine=fingerprint(),
            measured_at=now(),
            executor=self.executor.name,
            settings=tuple(rows),
            batches=batches,
            samples=tuple(samples),
            costs=costs,
        )

    def _all(self, reads: Reads) -> Sequence[Setting]:
        return measurable(self.stage, self._key(reads))

    def _key(self, reads: Reads) -> BatchKey:
        return BatchKey(self.root, reads, exact=False)

    def _rows(self, setting: Setting, layers: int) -> tuple[float, ...]:
        if setting == OFF:
            return (1.0,) * layers
        return self.stage.effect(setting, Shape(self._key("cls"), layers)).rows

    def _module(self) -> TenantModule:
        module = new_module(ModuleSpec(), self.shape, self.executor.layers).eval().requires_grad_(False)
        self.executor.prepare(module)
        return module

    def _timed(
        self,
        reads: Reads,
        name: str,
        lengths: Sequence[int],
        modules: Sequence[TenantModule],
        ended: threading.Event | None,
    ) -> Iterator[StageSample]:
        settings = self._all(reads)
        texts = list(islice(cycle(modules), len(lengths)))
        x = torch.randn(sum(lengths), self.shape.dim, generator=torch.Generator().manual_seed(0))
        best = dict.fromkeys((setting.name for setting in settings), float("inf"))
        for _ in range(ROUNDS):
            for setting in settings:
                if ended is not None and ended.is_set():
                    raise MeasurementEnded
                seconds = self._run(reads, setting, x, lengths, texts)
                best[setting.name] = min(best[setting.name], seconds)
        for told, least in best.items():
            seconds = max(least, 1e-9)
            yield StageSample(reads=reads, setting=told, batch=name, modules=len(modules), seconds=seconds)

    @torch.inference_mode()
    def _run(
        self,
        reads: Reads,
        setting: Setting,
        x: Tensor,
        lengths: Sequence[int],
        modules: Sequence[TenantModule],
    ) -> float:
        """Return the processor time of a batch, its hooks included."""
        key, rows = self._key(reads), Rows.packed(x.clone(), offsets_of(lengths))
        begun = time.thread_time()
        waited = 0.0
        hooks = [] if setting == OFF else self.stage.hooks(setting, self._batch(key, lengths))
        for left in self.executor.run(key, rows, modules, hooks):
            waited += left.waited_s
        seconds = time.thread_time() - begun + waited
        for hook in hooks:
            hook.close()
        return seconds

    def _batch(self, key: BatchKey, lengths: Sequence[int]) -> StageBatch:
        """Return a batch of texts whose model may use every setting, and none of which is an audit."""
        settings = [getattr(setting, "gamma", 0) for setting in self._all(key.reads)]
        points = tuple(TokenPoint(gamma=g, score=1.0, agreement=1.0, rows=1 << 20) for g in settings)
        version = _version(self.root, points)
        objective = Objective(agreement_under_load=0.6)
        return StageBatch(
            key,
            self.executor.layers,
            [_text(version, objective, n) for n in lengths],
            lambda site, rows, texts: [None] * len(texts),
            [objective] * len(lengths),
            versions=[(ModelId("profile", "profile"), version, None)] * len(lengths),
            tokens=lengths,
            stretches=lambda text: [(1, lengths[text] - 2)],
        )


def _version(root: tuple[str, str], points: tuple[TokenPoint, ...]) -> ModelVersion:
    return ModelVersion(
        version=1,
        artefact="",
        domain=root[0],
        plot_version="",
        root=root[0],
        root_version=root[1],
        task="classification",
        labels=("a", "b"),
        module=None,
        max_length=512,
        tokens=points,
        metrics={},
        bytes=0,
        created="",
        job="",
    )


def _text(version: ModelVersion, objective: Objective, tokens: int) -> Text:
    model, task = ModelId("profile", "profile"), task_of_version(version)
    # This nonce is no audit's, and a text of several windows would not be merged: a test checks both.
    return Text(model, version, objective, None, task, "", "", tokens, True, lambda output: output)


def _fitted(
    samples: Sequence[StageSample],
    reads: Reads,
    rows: dict[str, tuple[float, ...]],
    batches: dict[str, tuple[int, ...]],
) -> StageCost:
    mine = [
        Sample(each.setting, rows[each.setting], batches[each.batch], each.modules, each.seconds)
        for each in samples
        if each.reads == reads
    ]
    return StageCost(**asdict(fit(mine)))
