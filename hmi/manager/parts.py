"""Stores and checks that the manager's parts share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import ValidationError

from hmi.config import Settings
from hmi.core import ModelRecord, Record
from hmi.errors import InvalidInput
from hmi.jobs.runtime.runner import JobRunner
from hmi.stores.adapter_store import AdapterStore
from hmi.stores.layout import Layout
from hmi.stores.miss_recorder import MissRecorder
from hmi.stores.registry import Registry
from hmi.words import said
from plot_store import Store

HOUR_S = 3600.0
R = TypeVar("R", bound=Record)


@dataclass(frozen=True)
class Parts:
    """Everything that a manager has opened."""

    settings: Settings
    layout: Layout
    registry: Registry
    plots: Store
    adapters: AdapterStore
    lowers: AdapterStore
    runner: JobRunner
    misses: MissRecorder

    def spare_artefacts(self, models: Iterable[ModelRecord]) -> None:
        """Call before these models are deleted: requests in flight have pinned versions of them,
        and will read them.

        The collection frees the artefacts once an hour has passed.
        """
        self.adapters.spare({v.artefact for m in models for v in m.versions})

    def freed_artefacts(self, deleted: Iterable[ModelRecord]) -> int:
        """The number of artefacts that are unused now that these models are deleted."""
        return len({v.artefact for m in deleted for v in m.versions} - self.used_artefacts())

    def used_artefacts(self) -> set[str]:
        return {v.artefact for m in self.registry.models() for v in m.versions}


def checked_alpha(alpha: float) -> float:
    """Raises InvalidInput unless 0 <= alpha <= 100."""
    if isinstance(alpha, bool) or not isinstance(alpha, (int, float)) or not math.isfinite(alpha):
        raise InvalidInput(
            f"alpha = {alpha!r} is not a number: give 0 to 100 (percent covered)", field="alpha"
        )
    if not 0 <= alpha <= 100:
        raise InvalidInput(
            f"alpha = {alpha} is outside 0 to 100, the percentage of n-grams covered", field="alpha"
        )
    return float(alpha)


def checked_options(kind: type[R], options: Mapping[str, Any] | Record | None) -> R:
    """The options of a job; raises InvalidInput naming the first impossible one."""
    given = options.model_dump() if isinstance(options, Record) else dict(options or {})
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(["options", *map(str, first["loc"])])
        raise InvalidInput(f"{field}: {said(first, kind)}", field=field) from error
