"""Exports of domains: a PLOT version with all its ancestors, and the lower layers of branches that
were pretrained further. Samples of corpora stay where they are, since they are texts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hmi.manager.parts import Parts
from hmi.stores.plot.plot_meta import lowers_of
from hmi.stores.plot.plots import plot_errors
from hmi.stores.tensors.adapter_store import LOWER_CURE
from plot_store import Store, VersionInfo

ByteProgress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all)."""


def export_domain(parts: Parts, version: str, archive: Path, progress: ByteProgress) -> None:
    """Write a version to `archive`. Raises NotFound, Damaged, StorageFull, Unavailable."""
    with plot_errors():
        lowers = lowers_of(parts.plots.chain(version))
        for name, ref in lowers.items():
            parts.lowers.check(name, f"domain {ref}'s lower layers", LOWER_CURE)
        parts.plots.export(
            version, archive, attached={n: parts.lowers.path(n) for n in lowers}, progress=progress
        )


def import_domain(
    parts: Parts, archive: Path, name: str | None, progress: ByteProgress
) -> tuple[VersionInfo, list[str]]:
    """Import an export.

    Returns the version, and the refs whose lower layers are neither in the export nor in this store
    (earlier releases exported none). Such versions answer, but no build can extend them. Raises
    plot_store's errors and Damaged, StorageFull.
    """
    lowers = lowers_of(Store.archived(archive))
    for lower, content in Store.attached(archive):
        # Lower layers come before the versions that need them; collection spares what was stored in
        # the last hour.
        if lower in lowers:
            parts.lowers.take_over(lower, content)
    version = parts.plots.import_archive(archive, ref=name, progress=progress)
    return version, sorted(ref for lower, ref in lowers.items() if not parts.lowers.has(lower))
