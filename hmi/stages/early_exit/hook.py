"""The hook of one batch: asks ramps, lets texts leave, and records those that are audited.

The rows of a text that leaves are dropped, unless it is audited: then it has its answer, and its rows run on.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from hmi.execution.base import Hook, Output
from hmi.execution.batch import Left, Rows
from hmi.stages.base import StageBatch, Text
from hmi.stages.early_exit.answers import agreeing, short_forms, uncertainty
from hmi.stages.early_exit.control import Begun
from hmi.stages.early_exit.costs import ExitCosts, Fixed
from hmi.stages.early_exit.rule import NEVER
from hmi.stages.early_exit.state import AnsweredText, ModelState
from hmi.stages.owed import Owed


@dataclass(eq=False, slots=True)
class AskedText:
    """A text of the batch whose ramps are asked."""

    index: int
    """In the batch."""
    text: Text
    state: ModelState
    begun: Begun
    outputs: dict[int, Tensor] = field(default_factory=dict)
    """Of a recorded text: the merged output of each ramp, by the ramp's index."""
    again: bool = False
    """True if its batch has failed before, after it had left: it only runs on to be compared."""

    @property
    def answered(self) -> bool:
        """True if it has left, and its rows run on for the audit."""
        return self.begun.left_at is not None

    @property
    def sites(self) -> Sequence[int]:
        """The layers before which it asks a ramp."""
        if self.begun.recorded:
            return self.state.sites
        pairs = zip(self.state.sites, self.begun.thresholds, strict=True)
        return [site for site, threshold in pairs if threshold > 0.0]

    def ramp(self, site: int) -> int:
        """The index of the ramp at a site."""
        return self.state.sites.index(site)

    def merged(self, output: Tensor) -> Tensor:
        """The output as answers are made of it. A single window's is not changed, except in tagging."""
        return self.text.merged(output) if self.text.task.name == "tagging" else output


class ExitHook(Hook):
    """Early exits of one batch. `close` gives back the texts that got no answer."""

    def __init__(
        self,
        batch: StageBatch,
        asked: Sequence[AskedText],
        measured: ExitCosts,
        took_s: float = 0.0,
        owed: Owed[AskedText] | None = None,
    ) -> None:
        """took_s: seconds that it took to begin with the texts. owed: receives the audits of texts that have
        left if the batch fails; None: these are lost."""
        self._batch, self._measured, self._owed = batch, measured, owed
        self._open = {one.index: one for one in asked}
        """The texts under way."""
        self._concerned = frozenset(self._open)
        self._at: defaultdict[int, set[int]] = defaultdict(set)
        """The texts that ask a ramp, by layer."""
        for one in asked:
            for site in one.sites:
                self._at[site].add(one.index)
        self._sites = frozenset({0, *self._at})
        self._spans: list[tuple[int, int, float, int]] = []
        self._ramps: dict[int, tuple[float, int]] = {}
        self._fixed: dict[Fixed, tuple[float, int]] = {"begin": (took_s, len(asked))}
        self._clock = time.thread_time
        """One clock for the whole batch."""
        self._since = 0, 0.0, 0
        """The layer of the last call, when it ended, and the number of texts that went on."""

    @property
    def at(self) -> frozenset[int]:
        return self._sites

    @property
    def concerns(self) -> frozenset[int]:
        return self._concerned

    def __call__(self, layer: int, rows: Rows) -> tuple[Rows, Left | None]:
        if rows.x.is_cuda:  # the thread waits for a device
            self._clock = time.perf_counter
        begun = self._ran_to(layer)
        self._leave_alone(rows.texts)
        at = self._at.get(layer, ())
        here = [self._open[t] for t in dict.fromkeys(rows.texts) if t in at and t in self._open]
        left = None
        if here:
            left = self._leaving(layer, rows, here)
            gone = {text for text in left.texts if text not in self._open} if left is not None else ()
            if gone:
                rows = rows.taken([(i, None) for i, text in enumerate(rows.texts) if text not in gone])
            self._ramps[layer] = self._clock() - begun, len(here)
        self._since = layer, self._clock(), len(rows.texts)
        return rows, left

    def ended(self, texts: Sequence[int], outputs: list[Output]) -> list[Output]:
        if outputs:
            self._ran_to(self._batch.layers)
        found: defaultdict[tuple[ModelState, bool], list[tuple[AskedText, Tensor]]] = defaultdict(list)
        first = dict(zip(reversed(texts), reversed(outputs), strict=True))
        for index in dict.fromkeys(texts):
            one, output = self._open.get(index), first[index]
            if one is not None and isinstance(output, Tensor):
                found[one.state, one.begun.recorded].append((one, one.merged(output)))
        for (state, recorded), group in found.items():
            begun = time.thread_time()
            what: Fixed = "record" if recorded else "stay"
            self._end(state, [one for one, _ in group], [output for _, output in group], recorded)
            spent, count = self._fixed.get(what, (0.0, 0))
            self._fixed[what] = spent + time.thread_time() - begun, count + len(group)
        return outputs

    def failed(self) -> None:
        for one in list(self._open.values()):
            if self._owed is not None and one.answered and not one.again:
                del self._open[one.index]
                self._owed.put(one.text.nonce, one)

    def close(self) -> None:
        self._measured.took(self._spans, self._ramps, self._fixed)
        for one in self._open.values():
            one.state.abandon(one.begun)
        self._open.clear()

    def _leave_alone(self, texts: Sequence[int]) -> None:
        """Give texts back that another stage runs twice, for an audit of its own: both run to the end. One
        that has its answer stays an audit here, too, with the first of its outputs."""
        if len(texts) == len(set(texts)):
            return
        for text, times in Counter(texts).items():
            one = self._open.get(text)
            if times > 1 and one is not None and not one.answered:
                del self._open[text]
                one.state.abandon(one.begun)

    def _leaving(self, layer: int, rows: Rows, here: Sequence[AskedText]) -> Left | None:
        """Ask the ramps of these texts; returns those that leave."""
        outputs = self._batch.ramp(layer, rows, [one.index for one in here])
        models: defaultdict[ModelState, list[tuple[AskedText, Tensor]]] = defaultdict(list)
        for one, output in zip(here, outputs, strict=True):
            if output is None:
                continue
            if one.begun.recorded:
                one.outputs[one.ramp(layer)] = one.merged(output)
            if not one.answered and one.begun.thresholds[one.ramp(layer)] > 0.0:
                models[one.state].append((one, output))
        found = {}
        for state, group in models.items():
            task, ramp = group[0][0].text.task, group[0][0].ramp(layer)
            merged = [one.merged(output) for one, output in group]
            sure = uncertainty(task, merged).tolist()
            wanted = [i for i, u in enumerate(sure) if u < group[i][0].begun.thresholds[ramp]]
            if not wanted:
                continue
            for i, answer in zip(wanted, short_forms(task, [merged[i] for i in wanted]), strict=True):
                one, output = group[i]
                if not state.leave(AnsweredText(one.begun, one.text.id, answer), ramp):
                    continue
                found[one.index] = output[: task.outputs] if task.name == "regression" else output, sure[i]
                if not one.begun.recorded:
                    del self._open[one.index]
        if not found:
            return None
        texts = sorted(found)
        outs, confidences = [found[t][0] for t in texts], [1.0 - found[t][1] for t in texts]
        nothing = rows.x[:0]
        return Left(texts, nothing, nothing, [0] * (len(texts) + 1), layer, "exit", outs, confidences)

    def _end(self, state: ModelState, group: list[AskedText], finals: list[Tensor], recorded: bool) -> None:
        """Take note of one model's texts that ran to the end, with their outputs."""
        task = group[0].text.task
        answers = short_forms(task, finals)
        ended = [
            AnsweredText(one.begun, one.text.id, answer) for one, answer in zip(group, answers, strict=True)
        ]
        if not recorded:
            self._settle(group)
            state.stayed(ended)
            return
        shape = len(group), len(state.sites)
        u, right = np.full(shape, NEVER), np.zeros(shape, np.bool_)
        every = [(i, ramp, output) for i, one in enumerate(group) for ramp, output in one.outputs.items()]
        if every:
            of, ramps = [i for i, _, _ in every], [ramp for _, ramp, _ in every]
            outputs = [output for _, _, output in every]
            u[of, ramps] = uncertainty(task, outputs)
            right[of, ramps] = agreeing(task, short_forms(task, outputs), [answers[i] for i in of])
            u[np.isnan(u)] = NEVER
        self._settle(group)
        state.record(ended, u, right)

    def _settle(self, group: Sequence[AskedText]) -> None:
        """The state answers for these texts from here on."""
        for one in group:
            del self._open[one.index]

    def _ran_to(self, layer: int) -> float:
        """Take the time of the layers since the last call; returns the present one."""
        now, (since, then, texts) = self._clock(), self._since
        if texts and layer > since:
            self._spans.append((since, layer, now - then, texts))
        return now
