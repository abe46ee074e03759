"""The hooks that adapt every text of a batch, whatever its model's profile allows: for the profile itself."""

from __future__ import annotations

from collections.abc import Sequence

from hmi.execution.base import Hook
from hmi.stages.base import Batch
from hmi.stages.token_adaptation.prompts import PromptHook


def forced_hooks(gamma: int, batch: Batch) -> Sequence[Hook]:
    """Return the hooks of one γ. A text whose model has no such prompts stays as it is."""
    if gamma == 0:
        return []
    if gamma < 0:
        raise AssertionError  # MERGE
    sets = {text: batch.prompts(text, gamma) for text in range(len(batch.texts))}
    given = {text: prompts for text, prompts in sets.items() if prompts is not None}
    return [PromptHook(given, batch.layers)] if given else []
