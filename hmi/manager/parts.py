"""The stores and checks that the manager's parts share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hmi.config import Settings
from hmi.core import DeletedParts, ModelId, ModelRecord
from hmi.errors import InvalidInput
from hmi.jobs.options import checked_options as checked_options
from hmi.jobs.runtime.runner import JobRunner
from hmi.stores.bucket import Bucket
from hmi.stores.layout import Layout
from hmi.stores.plot.miss_recorder import MissRecorder
from hmi.stores.plot.sharing import share
from hmi.stores.records.registry import Registry
from hmi.stores.root_files import RootFiles
from hmi.stores.tensors.adapter_store import AdapterStore
from hmi.stores.tensors.samples import Samples
from plot_store import Store

HOUR_S = 3600.0


@dataclass(frozen=True)
class Parts:
    """The stores and services of a manager."""

    settings: Settings
    layout: Layout
    bucket: Bucket | None
    registry: Registry
    plots: Store
    adapters: AdapterStore
    lowers: AdapterStore
    samples: Samples
    roots: RootFiles
    runner: JobRunner
    misses: MissRecorder
    tell_deleted: Callable[[DeletedParts], None]
    """Called after each deletion of a tenant, model, domain or root."""

    def share(self, ref_or_id: str) -> None:
        """Bring a PLOT to the bucket; see `sharing.share`."""
        share(self.plots, self.bucket, ref_or_id, self.registry.leads)

    def deleted_models(self, models: Iterable[ModelRecord]) -> None:
        """Tell that these models have been deleted."""
        gone = list(models)
        self.tell_deleted(
            DeletedParts(
                artefacts=frozenset(v.artefact for m in gone for v in m.versions),
                models=frozenset(ModelId(m.tenant, m.name) for m in gone),
            )
        )

    def spare_artefacts(self, models: Iterable[ModelRecord]) -> None:
        """Keep these models' artefacts for an hour; call it before the models are deleted. Requests in
        flight that pinned their versions may still read them. Afterwards collection frees the artefacts."""
        self.adapters.spare({v.artefact for m in models for v in m.versions})

    def freed_artefacts(self, deleted: Iterable[ModelRecord]) -> int:
        """The number of these deleted models' artefacts that no other model uses."""
        return len({v.artefact for m in deleted for v in m.versions} - self.used_artefacts())

    def used_artefacts(self) -> set[str]:
        return self.registry.artefacts()


def checked_alpha(alpha: float) -> float:
    """Return alpha as a float. Raises InvalidInput unless 0 <= alpha <= 100."""
    if isinstance(alpha, bool) or not isinstance(alpha, (int, float)) or not math.isfinite(alpha):
        raise InvalidInput(
            f"alpha = {alpha!r} is not a number: give 0 to 100 (percent covered)", field="alpha"
        )
    if not 0 <= alpha <= 100:
        raise InvalidInput(
            f"alpha = {alpha} is outside 0 to 100, the percentage of n-grams covered", field="alpha"
        )
    return float(alpha)
