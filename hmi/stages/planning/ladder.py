"""The settings of all stages together that a planner chooses among for one batch key."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from hmi.stages.base import OFF, Setting, Shape, Stage
from hmi.stages.planner import Adaptive, SettingEffect, Waiting
from hmi.stages.planning.cost import Cost
from hmi.stages.planning.group import Price

TYPICAL = 32
"""The tokens of the text by which settings are compared before any is priced."""


@dataclass(frozen=True)
class StageSettings:
    """One setting of each adaptive stage. The other stages run under the last of theirs."""

    settings: dict[str, Setting]
    """The settings of all stages, by stage."""
    name: str
    """The names of those that are not off; "off" if all are."""


@dataclass(frozen=True)
class Effects:
    """The effect of one step on the texts of one model."""

    name: str
    total: float
    """The sum over the layers of the fraction of a text's rows that enter each."""
    squares: float
    """The sum of the squares of these fractions."""
    accuracy: float
    """The accuracy relative to that with all of them off, so that no tenant comes later because its task is
    hard."""
    shortest: int
    """Texts with fewer tokens stay off."""
    whole: bool
    """True if texts of several windows stay off, too."""


class Ladder:
    """The steps of a batch key. Step 0 has all adaptive stages off.

    A step may be priced above off: prompts take time and gain accuracy.
    """

    def __init__(self, stages: Sequence[Stage], shape: Shape, cost: Cost) -> None:
        self.shape, self.cost = shape, cost
        self._adaptive = [stage for stage in stages if isinstance(stage, Adaptive)]
        adaptive: list[Stage] = [stage for stage in stages if isinstance(stage, Adaptive)]
        others = {s.name: s.settings(shape.key)[-1] for s in stages if not isinstance(s, Adaptive)}
        self.steps: list[StageSettings] = []
        seconds = []
        for chosen in product(*(stage.settings(shape.key) for stage in adaptive)):
            pairs = list(zip(adaptive, chosen, strict=True))
            name = ", ".join(setting.name for setting in chosen if setting != OFF) or "off"
            self.steps.append(
                StageSettings({**others, **{stage.name: setting for stage, setting in pairs}}, name)
            )
            rows = [stage.effect(setting, shape).rows for stage, setting in pairs if setting != OFF]
            seconds.append(cost.text_s(TYPICAL, _multiplied(rows, shape.layers), name))
        self.fixed = [cost.fixed_s(0, step.name) for step in self.steps]
        """[steps]: the seconds of a batch apart from its windows and modules."""
        self.faster = sorted(
            (s for s in range(1, len(seconds)) if seconds[s] < seconds[0]), key=lambda s: -seconds[s]
        )
        """The steps that are faster than off for a typical text, the fastest last."""

    def effects(self, text: Waiting) -> list[Effects]:
        """[steps]: what each does to texts of the text's model. The stages are asked."""
        terms = [
            [(each, _relative(each, mine[0])) for each in mine]
            for stage in self._adaptive
            for mine in (stage.terms(text),)
        ]
        return [self._together(each) for each in product(*terms)]

    def price(self, text: Waiting, effects: Sequence[Effects], least: float = 0.0) -> Price:
        """Return the text's value and seconds under each step. A step whose accuracy is below `least` is not
        allowed."""
        cost, values, seconds = self.cost, [], []
        for effect in effects:
            stall = cost.stalls.get(effect.name, (0.0, 0.0))[1]
            each, square = stall + cost.row * effect.total, cost.square * effect.squares
            accuracy, total = 1.0, 0.0
            for n in text.windows:
                if n < effect.shortest or (effect.whole and not text.whole):
                    total += cost.text + n * (cost.row + cost.square * n) * self.shape.layers
                else:
                    total += cost.text + n * (each + square * n)
                    accuracy = effect.accuracy
            seconds.append(total)
            values.append(text.utility * accuracy if accuracy >= least else -math.inf)
        return Price(tuple(values), tuple(seconds))

    def _together(self, terms: Sequence[tuple[SettingEffect, float]]) -> Effects:
        rows = _multiplied([each.rows for each, _ in terms], self.shape.layers)
        name = ", ".join(each.name for each, _ in terms if each.name != OFF.name) or OFF.name
        accuracy = prod(relative for _, relative in terms)
        shortest = min((each.shortest for each, _ in terms if each.name != OFF.name), default=0)
        squares, whole = sum(share * share for share in rows), any(each.whole for each, _ in terms)
        return Effects(name, sum(rows), squares, accuracy, shortest, whole)


def _relative(terms: SettingEffect, off: SettingEffect) -> float:
    return terms.accuracy / off.accuracy if off.accuracy > 0 else 1.0


def _multiplied(rows: Sequence[Sequence[float]], layers: int) -> list[float]:
    """[layers]: the fraction of the rows that several stages leave together."""
    return [prod(each[layer] for each in rows) for layer in range(layers)]
