"""Records the answers of every ramp to every text, by a stage that lets no text leave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from bench.cases.stages.lab import EngineLab, Switched, requests_of
from hmi.core import ModelId
from hmi.execution.base import Hook, Output
from hmi.execution.batch import Left, Rows
from hmi.model.tenant.calibration import Floats
from hmi.stages.base import Setting, StageBatch
from hmi.stages.early_exit.rule import exit_index, of_labels
from hmi.stages.early_exit.thresholds import Window, allowed_errors, tune
from hmi.stages.planner import RoundRobin


@dataclass(frozen=True)
class RampRecords:
    """The records of one model's texts, in their order."""

    sites: tuple[int, ...]
    layers: int
    """The number of upper layers."""
    uncertainty: Floats
    """[texts, sites]"""
    agrees: NDArray[np.bool_]
    """[texts, sites]: whether the ramp's label is the full model's."""
    labels: list[str]
    """[texts]: the full model's."""

    def misled(self, seen: int, loss: float) -> NDArray[np.bool_]:
        """[texts]: whether thresholds that were tuned once would let a text leave with another answer than
        the full model's.

        seen: the first texts, by which they are tuned, with at most this loss of agreement. An exit saves the
        later layers.
        """
        saved = self.layers - np.array(self.sites, np.float64)
        window = Window(self.uncertainty[:seen], self.agrees[:seen], saved)
        left_at = exit_index(self.uncertainty, tune(window, allowed_errors(seen, loss)).thresholds)
        full = np.ones((len(left_at), 1), np.bool_)
        right: NDArray[np.bool_] = np.concatenate([self.agrees, full], 1)[np.arange(len(left_at)), left_at]
        return ~right


async def recorded(lab: EngineLab, model: ModelId, texts: Sequence[str]) -> RampRecords:
    """Ask a model all texts, as fast as it answers, and record them."""
    stage = Recording()
    async with lab.engine(RoundRobin([stage])) as engine:
        asked = await lab.closed(engine, requests_of(model, texts, "record"))
    sites = lab.record(model).live.ramps
    rows = [stage.found[f"record-{i}"] for i in range(len(texts))]
    uncertainty = np.array([row.uncertainty for row in rows]).reshape(len(texts), len(sites))
    agrees = np.array([row.agrees for row in rows], np.bool_).reshape(len(texts), len(sites))
    return RampRecords(
        sites, lab.depth(model), uncertainty, agrees, [answer.label for answer in asked.answers]
    )


@dataclass
class RampRecord:
    """One text's outputs at its ramps, and whether they agree with the last layer's."""

    outputs: list[Tensor] = field(default_factory=list)
    """The sites, ascending."""
    uncertainty: list[float] = field(default_factory=list)
    agrees: list[bool] = field(default_factory=list)


class Recording(Switched):
    """The stage. `found` has a record for each request's id."""

    def __init__(self) -> None:
        super().__init__("record")
        self.found: dict[str, RampRecord] = {}

    def hooks(self, setting: Setting, batch: StageBatch) -> Sequence[Hook]:
        return [_Recorder(batch, self.found)]


@dataclass(frozen=True)
class _Recorder(Hook):
    batch: StageBatch
    found: dict[str, RampRecord]
    mine: dict[int, RampRecord] = field(default_factory=dict)

    @property
    def at(self) -> frozenset[int]:
        return frozenset(site for text in self.batch.texts for site in text.version.ramps)

    def __call__(self, layer: int, rows: Rows) -> tuple[Rows, Left | None]:
        for text, output in zip(rows.texts, self.batch.ramp(layer, rows, rows.texts), strict=True):
            if output is not None:
                self.mine.setdefault(text, RampRecord()).outputs.append(output)
        return rows, None

    def ended(self, texts: Sequence[int], outputs: list[Output]) -> list[Output]:
        for text, output in zip(texts, outputs, strict=True):
            record = self.mine.setdefault(text, RampRecord())
            if isinstance(output, Tensor):
                record.uncertainty = [float(of_labels(ramp.numpy())) for ramp in record.outputs]
                record.agrees = [bool(ramp.argmax() == output.argmax()) for ramp in record.outputs]
            self.found[self.batch.texts[text].id] = record
        return outputs

    def close(self) -> None:
        """Nothing is held but records of texts that failed, which end with the hook."""
