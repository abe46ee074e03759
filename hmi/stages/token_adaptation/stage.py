"""The stage of token adaptation (OTAS): under load, texts give up similar rows.

A text is concerned if its model's version has a profile, and its tenant has set
`Objective.agreement_under_load`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from hmi.core import Cascade, ModelId, ModelVersion, Objective
from hmi.execution.base import Hook
from hmi.execution.batch import BatchKey
from hmi.stages.base import OFF, Effect, Setting, Shape, StageBatch
from hmi.stages.early_exit.evidence import Audits
from hmi.stages.planner import SettingEffect, Waiting
from hmi.stages.token_adaptation.allowed import boldest
from hmi.stages.token_adaptation.audits import AuditRecords, audited
from hmi.stages.token_adaptation.hook import MergeHook
from hmi.stages.token_adaptation.prompts import prompt_hooks
from hmi.stages.token_adaptation.settings import (
    MERGE_SETTINGS,
    PROMPT_SETTINGS,
    SHORTEST,
    TokenSetting,
    schedule,
)

_TYPICAL: Final = 32
"""The tokens of a text for which the cost of prompts is right. It is the same for texts of any length."""


def _terms_of(text: Waiting, settings: Sequence[Setting], allowed: Sequence[int]) -> list[SettingEffect]:
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
            rows = (1.0 + gamma / _TYPICAL,) * text.layers
            found.append(SettingEffect(rows, scores[gamma], names[gamma], SHORTEST))
        else:
            found.append(SettingEffect((1.0,) * text.layers, full, OFF.name))
    return found


class TokenAdaptation:
    """A `Stage`. It keeps the audits of merging. Thread-safe."""

    name = "tokens"

    def __init__(self) -> None:
        self._ledger = AuditRecords()

    def settings(self, key: BatchKey) -> Sequence[Setting]:
        return (OFF,) if key.exact or key.bits else (OFF, *PROMPT_SETTINGS, *MERGE_SETTINGS)

    def effect(self, setting: Setting, shape: Shape) -> Effect:
        """The rows of a batch whose texts all may use the setting. How many answers differ depends on their
        models: see `ModelVersion.tokens`."""
        assert isinstance(setting, TokenSetting)
        if setting.gamma > 0:
            return Effect(rows=(1.0 + setting.gamma / _TYPICAL,) * shape.layers)
        return Effect(rows=schedule(setting.gamma, shape.layers))

    def terms(self, text: Waiting) -> Sequence[SettingEffect]:
        """See `hmi.stages.planner.Adaptive`."""
        gammas = self._ledger.allowed(text.model, text.version, text.objective, text.cascade)
        return _terms_of(text, self.settings(text.key), gammas)

    def hooks(self, setting: Setting, batch: StageBatch) -> Sequence[Hook]:
        """See `Stage.hooks`."""
        assert isinstance(setting, TokenSetting)
        if batch.key.exact or batch.key.bits:
            return []
        gammas = self._gammas(setting.gamma, batch)
        if setting.gamma > 0:
            return prompt_hooks(gammas, batch)
        if not gammas:
            return []
        chosen = [text for text in gammas if audited(batch.texts[text].nonce)]
        return [MergeHook(batch, gammas, chosen, self._ledger)]

    def allowed(
        self, model: ModelId, version: ModelVersion, objective: Objective, cascade: Cascade | None = None
    ) -> tuple[int, ...]:
        """Return the γ that a model's texts may use now; see `hmi.stages.token_adaptation.allowed`."""
        return self._ledger.allowed(model, version, objective, cascade)

    def totals(self) -> Audits:
        """Return the audits of all models since the server started. Thread-safe."""
        return self._ledger.totals

    def audits(self, model: ModelId, artefact: str) -> Mapping[int, Audits]:
        """Return the audits of a model's merged texts, by γ."""
        return self._ledger.audits(model, artefact)

    def forget(self, artefacts: Collection[str], models: Collection[ModelId] = ()) -> None:
        """Drop the audits of deleted artefacts. models: those deleted; (): all that have them."""
        self._ledger.forget(artefacts, models)

    def _gammas(self, level: int, batch: StageBatch) -> dict[int, int]:
        """The γ of each text that has one other than 0. A text of several windows is not merged: no audit
        could compare its answer, which is made of all windows."""
        found = {}
        for text, objective in enumerate(batch.objectives):
            if objective.agreement_under_load is None or (level < 0 and batch.tokens[text] < SHORTEST):
                continue
            model, version, cascade = batch.versions[text]
            gamma = boldest(self._ledger.allowed(model, version, objective, cascade), level)
            if gamma > 0 or (gamma < 0 and batch.texts[text].whole):
                found[text] = gamma
        return found
