"""The hooks that adapt every text of a batch, whatever its model's profile allows: for the profile itself."""

from __future__ import annotations

from collections.abc import Sequence

from hmi.execution.base import Hook
from hmi.stages.base import StageBatch
from hmi.stages.token_adaptation.audits import AuditRecords
from hmi.stages.token_adaptation.hook import MergeHook
from hmi.stages.token_adaptation.prompts import prompt_hooks
from hmi.stages.token_adaptation.settings import SHORTEST


def forced_hooks(gamma: int, batch: StageBatch) -> Sequence[Hook]:
    """Return the hooks of one γ. Texts for which there is none stay as they are."""
    if gamma == 0:
        return []
    if gamma < 0:
        gammas = {text: gamma for text, tokens in enumerate(batch.tokens) if tokens >= SHORTEST}
        return [MergeHook(batch, gammas, (), AuditRecords())] if gammas else []
    return prompt_hooks(dict.fromkeys(range(len(batch.tokens)), gamma), batch)
