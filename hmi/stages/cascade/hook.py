"""The hook of a cascade inside one root: at a site the ramp is the small level, the rest of the layers the
large one.

A text leaves with its ramp's output, or goes on. One that goes on may lose words, and gets the ensemble of
both levels. Both outputs are on the scale of the large level's own, so that dividing them by the version's
temperature calibrates them. While the cascade is under test, a text runs to the end as if there were no
cascade. An audited text gets the cascade's answer, but its rows run on if it leaves. In both cases what the
offers would have answered is compared with the full model's answer.

An audit must know both if words are dropped. So such a text goes on twice: whole and shortened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from hmi.core import Cascade, Offer
from hmi.execution.base import Hook, Output
from hmi.execution.batch import Left, Rows
from hmi.model.tenant.calibration import Floats, probabilities
from hmi.stages.base import StageBatch, Text
from hmi.stages.cascade.dispatch import Dispatcher, goes_on, share_large
from hmi.stages.cascade.ensemble import combined
from hmi.stages.cascade.pruning import kept_tokens
from hmi.stages.cascade.standing import TextDecision, VersionEvidence
from hmi.stages.owed import Owed

SMALLEST = float(np.finfo(np.float32).tiny)
"""Mixed probabilities are at least this, so that their logarithms are finite."""


@dataclass(frozen=True)
class Concern:
    """A text of the batch whose model has a cascade inside."""

    text: Text
    standing: VersionEvidence
    cascade: Cascade


@dataclass(frozen=True)
class Decided:
    """A text at its site."""

    concern: Concern
    begun: TextDecision
    ramp: Tensor
    """The ramp's output on the large level's scale: divided by that one's temperature it is calibrated."""
    small: Floats
    """The ramp's calibrated probabilities."""
    again: bool = False
    """True if its batch has failed before, after the ramp had answered it: it only runs on to be compared."""

    @property
    def offer(self) -> Offer:
        return self.begun.offer

    @cached_property
    def goes_on(self) -> bool:
        """True if the offer in force, or under test, sends the text on."""
        return self.sent_on_by(self.offer)

    def sent_on_by(self, offer: Offer) -> bool:
        share = share_large(self.small.max(), Dispatcher(offer.cut_off, offer.slope))
        return goes_on(self.concern.text.id, float(share))

    @property
    def in_force(self) -> bool:
        return self.begun.ticket.in_force

    @property
    def leaves(self) -> bool:
        """True if the ramp answers the text."""
        return self.in_force and not self.goes_on

    @property
    def reported(self) -> bool:
        """True if the text is an audit. Where words are dropped, an audit costs a second run, so only texts
        that were drawn for it are audits. The other texts that the small level answers would be no random
        sample."""
        return self.begun.ticket.audited or not (self.in_force or self.offer.pruning)

    @property
    def runs_on(self) -> bool:
        """True if its rows stay in the layers."""
        return self.reported or not self.leaves

    @property
    def shortened(self) -> bool:
        """True if the text's words are dropped, even if only for an audit."""
        return self.goes_on and self.offer.pruning > 0.0 and (self.in_force or self.reported)

    @property
    def whole(self) -> bool:
        """True if the text goes on with all its words, even if only for an audit."""
        return not self.shortened or not self.in_force or self.reported

    def mixed(self, output: Tensor, weight: float) -> Tensor:
        """The ensemble with the large level's output, on that one's scale; at the weights 0 and 1 one level's
        output as it is."""
        if weight in (0.0, 1.0):
            return output if weight else self.ramp
        temperature = self.concern.cascade.large_temperature
        large = probabilities(output.double().numpy(), temperature)
        mixture = combined(self.small, large, weight)
        return torch.from_numpy(temperature * np.log(np.maximum(mixture, SMALLEST))).to(output.dtype)

    def disagrees(self, output: Tensor, shortened: Tensor) -> list[bool]:
        """Return, for each offer, True if its answer differs from the full model's."""
        answer, said = self.concern.text.task.answer, []
        for offer in self.begun.offers:
            on = self.sent_on_by(offer)
            said.append(answer(self.mixed(shortened, offer.weight) if on else self.ramp).label)
        return [label != answer(output).label for label in said]


class InsideHook(Hook):
    """One batch's hook; see `Hook`."""

    def __init__(
        self, batch: StageBatch, concerns: Mapping[int, Concern], owed: Owed[Decided] | None = None
    ) -> None:
        """concerns: by index of the text in the batch. owed: receives the audits of texts that have their
        answer if the batch fails; None: these are lost."""
        self._batch, self._concerns, self._owed = batch, concerns, owed
        self._decided: dict[int, Decided] = {}
        """Texts that are still in the layers."""

    @property
    def at(self) -> frozenset[int]:
        sites = (concern.cascade.site for concern in self._concerns.values())
        return frozenset(site for site in sites if site is not None)

    @property
    def concerns(self) -> frozenset[int]:
        return frozenset(self._concerns)

    def __call__(self, layer: int, rows: Rows) -> tuple[Rows, Left | None]:
        mine = self._asked(layer, rows)
        if not mine:
            return rows, None
        outputs = self._batch.ramp(layer, rows, mine)
        decided = [self._decide(text, output) for text, output in zip(mine, outputs, strict=True)]
        found = {text: one for text, one in zip(mine, decided, strict=True) if one is not None}
        leaving = {text: one for text, one in found.items() if one.leaves and not one.again}
        for one in leaving.values():
            one.concern.standing.followed(returned=True)
        self._decided.update({text: one for text, one in found.items() if one.runs_on})
        return self._onward(layer, rows, found), _left(layer, rows, leaving) if leaving else None

    def ended(self, texts: Sequence[int], outputs: list[Output]) -> list[Output]:
        """See `Hook.ended`. The second output of a text that went on twice is the shortened one's."""
        last = dict(zip(texts, outputs, strict=True))
        done: dict[int, Output] = {}
        for text, output in zip(texts, outputs, strict=True):
            one = self._decided.get(text)
            if one is not None:
                done[text] = _final_output(one, output, last[text])
                del self._decided[text]
        return [done.get(text, output) for text, output in zip(texts, outputs, strict=True)]

    def failed(self) -> None:
        for text, one in list(self._decided.items()):
            if self._owed is not None and one.leaves and not one.again:
                del self._decided[text]
                self._owed.put(one.concern.text.nonce, one)

    def close(self) -> None:
        """End the audits of a batch that failed between two layers."""
        for one in self._decided.values():
            lost(one)
        self._decided.clear()

    def _asked(self, layer: int, rows: Rows) -> list[int]:
        """The texts whose ramp is here. Texts that another stage has merged, or runs twice, are left alone,
        and so are those that may lose words while it has merged any: rows are then of tokens that are there
        in part."""
        here = [t for t in rows.texts if t in self._concerns and self._concerns[t].cascade.site == layer]
        if not here or rows.source is None:
            return here if len(set(here)) == len(here) else [t for t in here if here.count(t) == 1]
        changed = {rows.texts[place] for place in rows.changed}
        able = [t for t in here if not any(offer.pruning for offer in self._concerns[t].cascade.offers)]
        return [t for t in able if t not in changed and rows.texts.count(t) == 1]

    def _decide(self, text: int, output: Tensor | None) -> Decided | None:
        concern = self._concerns[text]
        owed = None if self._owed is None else self._owed.take(concern.text.nonce)
        if owed is not None:
            return replace(owed, concern=concern, again=True)
        begun = None if output is None else concern.standing.begin(concern.text.nonce)
        if output is None or begun is None:
            return None
        small = probabilities(output.double().numpy(), concern.cascade.temperature)
        on_scale = output * (concern.cascade.large_temperature / concern.cascade.temperature)
        return Decided(concern, begun, on_scale, small)

    def _onward(self, layer: int, rows: Rows, found: Mapping[int, Decided]) -> Rows:
        """The rows of the texts that stay; the same object if all stay as they are."""
        shorter = [text for text, one in found.items() if one.shortened]
        if not shorter and all(one.runs_on for one in found.values()):
            return rows
        seen = self._batch.attention(layer, rows, shorter) if shorter else []
        given = dict(zip(shorter, seen, strict=True))
        parts: list[tuple[int, Sequence[int] | None]] = []
        for place, text in enumerate(rows.texts):
            one = found.get(text)
            if one is not None and not one.runs_on:
                continue
            if one is None or one.whole:
                parts.append((place, None))
            if one is not None and one.shortened:
                parts.append((place, shortened(one.concern.text, given[text], one.offer.pruning)))
        return rows.taken(parts)


def shortened(text: Text, attention: Floats, scale: float) -> list[int]:
    """The places of the tokens that a text keeps. attention [tokens]: of `StageBatch.attention`."""
    stay: list[int] = np.flatnonzero(kept_tokens(attention, text.words, text.segments, scale)).tolist()
    return stay


def _left(layer: int, rows: Rows, leaving: Mapping[int, Decided]) -> Left:
    """The texts that leave with their ramps' outputs; nothing reads the rows of this part."""
    none, ones = rows.x[:0], leaving.values()
    return Left(
        list(leaving),
        none,
        none,
        [0] * (len(leaving) + 1),
        after=layer,
        why="exit",
        outputs=[one.ramp for one in ones],
        confidences=[float(one.small.max()) for one in ones],
    )


def _final_output(one: Decided, output: Output, shortened: Output) -> Output:
    """The output to answer with. Reports the text if it is an audit.

    shortened: the output of the text without the words that would be dropped; else `output` itself.
    """
    standing, begun = one.concern.standing, one.begun
    if isinstance(output, Exception) or isinstance(shortened, Exception):
        lost(one)
        return output
    if one.reported:
        standing.record(begun, disagrees=one.disagrees(output, shortened))
    if not one.in_force:
        return output
    if not one.leaves:
        standing.followed(returned=False)
    return one.mixed(shortened, one.offer.weight)


def lost(one: Decided) -> None:
    """End an audit that cannot be compared. If the text has its answer, it counts as a disagreement: it may
    have failed since it is one on which the levels disagree."""
    if one.leaves:
        one.concern.standing.record(one.begun, disagrees=[True] * len(one.begun.offers))
    else:
        one.concern.standing.abandon(one.begun)
