"""The effect of each setting of token adaptation on the texts of one model, for a planner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hmi.stages.base import OFF, Setting
from hmi.stages.planner import SettingEffect, Waiting
from hmi.stages.token_adaptation.allowed import boldest
from hmi.stages.token_adaptation.settings import SHORTEST, TokenSetting, schedule

TYPICAL: Final = 32
"""The tokens of a text for which the cost of prompts is right. It is the same for texts of any length."""


def terms_of(text: Waiting, settings: Sequence[Setting], allowed: Sequence[int]) -> list[SettingEffect]:
    """Return the terms of each setting. allowed: the γ other than 0 that the text's model may use now."""
    scores = {point.gamma: point.score for point in text.version.tokens}
    full = scores.get(0, 1.0)
    names = {each.gamma: each.name for each in settings if isinstance(each, TokenSetting)}
    found = []
    for setting in settings:
        level = setting.gamma if isinstance(setting, TokenSetting) else 0
        gamma = boldest(tuple(allowed), level) if level else 0
        if gamma < 0:
            # Merging that scored better than none on the profile's rows did so by chance.
            accuracy = min(scores[gamma], full)
            found.append(SettingEffect(schedule(gamma, text.layers), accuracy, names[gamma], SHORTEST, True))
        elif gamma > 0:
            rows = (1.0 + gamma / TYPICAL,) * text.layers
            found.append(SettingEffect(rows, scores[gamma], names[gamma], SHORTEST))
        else:
            found.append(SettingEffect((1.0,) * text.layers, full, OFF.name))
    return found
