"""Answered calls by model since the server started, in memory."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from hmi.core import ModelId

MOST = 10_000
"""Models whose calls are counted. Beyond that, those that answered longest ago are forgotten."""


@dataclass
class VersionCalls:
    """The calls that one version of a model answered."""

    version: int
    calls: int = 0
    inputs: int = 0
    last: float = 0.0
    """The time of the last answer, in seconds since 1970."""
    ms: dict[str, float] = field(default_factory=dict)
    """The sum of all calls' milliseconds, by stage."""


class CallCounter:
    """Counts answered calls by model, on the event loop; it may be read on any thread.

    A new version of a model starts from zero.
    """

    def __init__(self) -> None:
        self._models: dict[ModelId, VersionCalls] = {}
        """Ordered by the last answer, oldest first."""

    def add(self, model: ModelId, version: int, inputs: int, timing: Mapping[str, float]) -> None:
        """Count a call that a model's version answered. timing: milliseconds by stage."""
        found = self._models.pop(model, None)
        if found is None or found.version != version:
            found = VersionCalls(version)
        self._models[model] = found
        found.calls += 1
        found.inputs += inputs
        found.last = time.time()
        for name, ms in timing.items():
            found.ms[name] = found.ms.get(name, 0.0) + ms
        if len(self._models) > MOST:
            del self._models[next(iter(self._models))]

    def of(self, model: ModelId, version: int) -> VersionCalls:
        """The calls that a version answered."""
        found = self._models.get(model)
        return found if found is not None and found.version == version else VersionCalls(version)

    def recent(self, since: float) -> list[ModelId]:
        """The models that answered since then, a time in seconds since 1970: the latest first."""
        found = list(self._models.items())
        return [model for model, calls in reversed(found) if calls.last >= since]

    def models(self, tenant: str | None) -> list[ModelId]:
        """The models of a tenant that answered, or of all tenants, by name."""
        return sorted(model for model in list(self._models) if tenant in (None, model.tenant))
