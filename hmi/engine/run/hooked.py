"""The hooks of one batch: whom they concern, and what happens if one fails."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Self

from hmi.execution import Hook
from hmi.execution.base import Failing, Output
from hmi.stages.base import Setting
from hmi.stores.failures import log_failure

log = logging.getLogger("hmi.engine")


class Hooked:
    """The hooks of one batch, used on its compute thread. As a context manager it closes them at the end of
    the block, and first tells them if the block has failed.

    An error before a layer fails the batch, which then runs again without adaptive stages. Once the layers
    have run, answers are worth more than what stages learn from them: an error is logged, and the stage's
    hook is closed.
    """

    def __init__(self, texts: int) -> None:
        self.hooks: tuple[Hook, ...] = ()
        """Those that are not closed."""
        self.stages: list[dict[str, str]] = [{} for _ in range(texts)]
        """The setting of each stage that concerns a text, by text."""

    def add(self, stage: str, setting: Setting, hooks: Sequence[Hook]) -> None:
        self.hooks += tuple(hooks)
        for hook in hooks:
            concerned = hook.concerns
            names: Mapping[int, str] = concerned if isinstance(concerned, Mapping) else {}
            for text in range(len(self.stages)) if concerned is None else concerned:
                self.stages[text][stage] = names.get(text, setting.name)

    def mark(self, stage: str, setting: str) -> None:
        """Note a setting that concerns all texts, of a stage without hooks."""
        for of_text in self.stages:
            of_text[stage] = setting

    def ended(self, texts: Sequence[int], outputs: list[Output]) -> list[Output]:
        """The outputs to answer with: what each hook in turn makes of them (`Hook.ended`)."""
        for hook in self.hooks:
            try:
                outputs = hook.ended(texts, list(outputs))
            except Exception as error:
                log_failure(log, "a stage could not take note of a batch's answers", error)
                self._close(hook)
        return outputs

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for hook in self.hooks if kind is not None else ():
            try:
                if isinstance(hook, Failing):
                    hook.failed()
            except Exception as error:
                log_failure(log, "a stage could not take note of a batch's failure", error)
        for hook in self.hooks:
            self._close(hook)

    def _close(self, hook: Hook) -> None:
        self.hooks = tuple(other for other in self.hooks if other is not hook)
        try:
            hook.close()
        except Exception as error:
            log_failure(log, "a stage could not end its work on a batch", error)
