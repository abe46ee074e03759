"""The hook of one batch: asks ramps, lets texts leave, and records those that run to the end."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from hmi.execution.base import Hook, Output
from hmi.execution.batch import Left, Rows
from hmi.stages.base import Batch, Text
from hmi.stages.early_exit.answers import agrees, kind_of, short, uncertainty
from hmi.stages.early_exit.control import Begun
from hmi.stages.early_exit.costs import Measured
from hmi.stages.early_exit.rule import NEVER
from hmi.stages.early_exit.state import ModelState


@dataclass(eq=False)
class Asked:
    """A text of the batch whose ramps are asked."""

    index: int
    """In the batch."""
    text: Text
    state: ModelState
    begun: Begun
    outputs: dict[int, Tensor] = field(default_factory=dict)
    """Of a recorded text: the merged output of each ramp, by the ramp's index."""

    @property
    def sites(self) -> list[int]:
        """The layers before which it asks a ramp."""
        pairs = zip(self.state.sites, self.begun.thresholds, strict=True)
        return [site for site, threshold in pairs if self.begun.recorded or threshold > 0.0]

    def ramp(self, site: int) -> int:
        """The index of the ramp at a site."""
        return self.state.sites.index(site)


class ExitHook(Hook):
    """Early exits of one batch. `close` gives back the texts that got no answer."""

    def __init__(self, batch: Batch, asked: Sequence[Asked], measured: Measured) -> None:
        self._batch, self._measured = batch, measured
        self._open = {one.index: one for one in asked}
        """The texts under way."""
        self._at: defaultdict[int, set[int]] = defaultdict(set)
        """The texts that ask a ramp, by layer."""
        for one in asked:
            for site in one.sites:
                self._at[site].add(one.index)
        self._left: Counter[int] = Counter()
        """The texts that left, by layer."""
        self._spans: list[tuple[int, int, float, int]] = []
        self._ramps: dict[int, tuple[float, int]] = {}
        self._since = 0, 0.0, 0
        """The layer of the last call, when it ended, and the number of texts that went on."""

    @property
    def at(self) -> frozenset[int]:
        return frozenset({0, *self._at})

    def __call__(self, layer: int, rows: Rows) -> tuple[Rows, Left | None]:
        begun = self._ran_to(layer, rows.x)
        here = [self._open[t] for t in rows.texts if t in self._at[layer] and t in self._open]
        left = None
        # Rows that another stage has merged are not those of any ramp's training: their texts stay.
        if here and rows.source is None:
            left = self._leaving(layer, rows, here)
            if left is not None:
                rows = without(rows, set(left.texts))
            self._ramps[layer] = self._now(rows.x) - begun, len(here)
        self._since = layer, self._now(rows.x), len(rows.texts)
        return rows, left

    def ended(self, texts: Sequence[int], outputs: list[Output]) -> list[Output]:
        if outputs:
            self._ran_to(self._batch.layers, next((o for o in outputs if isinstance(o, Tensor)), None))
        kinds: defaultdict[Hashable, list[tuple[Asked, Tensor]]] = defaultdict(list)
        for index, output in zip(texts, outputs, strict=True):
            one = self._open.get(index)
            if one is not None and isinstance(output, Tensor):
                kinds[kind_of(one.text.task)].append((one, one.text.merged(output)))
        for group in kinds.values():
            answers = short(group[0][0].text.task, [output for _, output in group])
            self._record([(one, final) for (one, _), final in zip(group, answers, strict=True)])
        return outputs

    def close(self) -> None:
        self._measured.took(self._spans, self._ramps)
        self._measured.passed(len(self._batch.texts), self._left)
        for one in self._open.values():
            one.state.abandon(one.begun)
        self._open.clear()

    def _leaving(self, layer: int, rows: Rows, here: Sequence[Asked]) -> Left | None:
        """Ask the ramps of these texts; returns those that leave."""
        outputs = self._batch.ramp(layer, rows, [one.index for one in here])
        kinds: defaultdict[Hashable, list[tuple[Asked, Tensor, Tensor]]] = defaultdict(list)
        for one, output in zip(here, outputs, strict=True):
            if output is None:
                continue
            merged = one.text.merged(output)
            if one.begun.recorded:
                one.outputs[one.ramp(layer)] = merged
            else:
                kinds[kind_of(one.text.task)].append((one, output, merged))
        found = {}
        for group in kinds.values():
            task = group[0][0].text.task
            sure = uncertainty(task, [merged for _, _, merged in group]).tolist()
            gone = [
                (one, output[: task.outputs] if task.name == "regression" else output, merged, u)
                for (one, output, merged), u in zip(group, sure, strict=True)
                if u < one.begun.thresholds[one.ramp(layer)]
            ]
            answers = short(task, [merged for _, _, merged, _ in gone]) if gone else []
            for (one, output, _, u), answer in zip(gone, answers, strict=True):
                found[one.index] = output, 1.0 - u
                one.state.left(one.begun, one.ramp(layer), one.text.id, answer)
                del self._open[one.index]
        if not found:
            return None
        self._left[layer] += len(found)
        texts = sorted(found)
        outs, sure = [found[t][0] for t in texts], [found[t][1] for t in texts]
        nothing = rows.x[:0]
        return Left(texts, nothing, nothing, [0] * (len(texts) + 1), layer, "exit", outs, sure)

    def _record(self, group: Sequence[tuple[Asked, int]]) -> None:
        """Take note of texts of one kind that ran to the end, with their answers."""
        task = group[0][0].text.task
        every = [(one, ramp, o) for one, _ in group for ramp, o in one.outputs.items()]
        outputs = [output for _, _, output in every]
        sure = uncertainty(task, outputs).tolist() if outputs else []
        shorts = short(task, outputs) if outputs else []
        found: defaultdict[int, dict[int, tuple[float, int]]] = defaultdict(dict)
        for (one, ramp, _), u, answer in zip(every, sure, shorts, strict=True):
            found[one.index][ramp] = u, answer
        for one, final in group:
            del self._open[one.index]
            if not one.begun.recorded:
                one.state.stayed(one.begun, one.text.id, final)
                continue
            u, right = np.full(len(one.state.sites), NEVER), np.zeros(len(one.state.sites), np.bool_)
            for ramp, (value, answer) in found[one.index].items():
                u[ramp], right[ramp] = value, agrees(one.text.task, answer, final)
            one.state.record(one.begun, np.nan_to_num(u, nan=NEVER), right, one.text.id, final)

    def _ran_to(self, layer: int, x: Tensor | None) -> float:
        """Take the time of the layers since the last call; returns the present one."""
        now, (since, then, texts) = self._now(x), self._since
        if texts and layer > since:
            self._spans.append((since, layer, now - then, texts))
        return now

    @staticmethod
    def _now(x: Tensor | None) -> float:
        """Seconds of the thread; of the clock if the rows are on a device, for which the thread waits."""
        return time.perf_counter() if x is not None and x.is_cuda else time.thread_time()


def without(rows: Rows, texts: Mapping[int, object] | set[int]) -> Rows:
    """The rows of the other texts, copied once."""
    return rows.taken([(at, None) for at, text in enumerate(rows.texts) if text not in texts])
