"""Maintenance of the PLOT store: checks its catalogue, chooses domains to compact, collects garbage."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hmi.core import DomainId, JobRecord
from hmi.errors import Conflict, HmiError, NotFound
from hmi.jobs.specs import CompactPlotSpec
from hmi.manager.parts import Parts
from hmi.stores.layout import Layout
from hmi.stores.plots import plot_errors
from plot_store import GcReport, Store, VersionInfo, probe

log = logging.getLogger("hmi.manager")


def probe_plots(data: Path) -> None:
    """Check the catalogue of a data folder's PLOTs in a child process, before anything opens it.

    Raises Damaged, Unavailable (the disk or memory stood in the way of an answer).
    """
    with plot_errors():
        probe(Layout(data).plots)


@dataclass(frozen=True)
class DomainOnDisk:
    """What the disk tells of a domain's current version; `chain` is how many versions a look-up may
    fall back on."""

    domain: str
    version: str
    bytes: int
    segments: int
    small_segments: int
    chain: int
    entries: dict[str, int]


class Maintenance:
    """Compaction, collection with other retention than the default, and figures of the store. Thread-safe."""

    def __init__(self, parts: Parts, pinned: Callable[[], set[str]]) -> None:
        """`pinned` tells which versions models and live jobs stand on."""
        self._parts, self._pinned = parts, pinned
        self._tried: dict[str, str] = {}  # by domain, the version that housekeeping had compacted last

    def housekeeping(self) -> None:
        """Look whether the catalogue is still sound, and queue the compaction of every domain
        that needs it."""
        try:
            probe_plots(self._parts.settings.data)
        except HmiError as error:
            log.error("%s", error.message)
            return
        refs = self._refs()
        for domain in self.due():
            # The store may find too little to gain and leave a version as it is: once is enough.
            version = refs.get(domain)
            if version is None or self._tried.get(domain) == version.id:
                continue
            with suppress(Conflict):
                job = self.compact(domain, max_segments=self._parts.settings.compact_segments)
                self._tried[domain] = version.id
                log.info("%s has many small segments: job %s merges them", domain, job.job)

    def due(self) -> list[str]:
        """Domains whose current version has more small segments than the settings allow."""
        allowed = self._parts.settings.compact_segments
        if not allowed:
            return []
        return [
            d
            for d, version in self._refs().items()
            if max(self._small(version).values(), default=0) > allowed
        ]

    def compact(self, domain: str, *, max_segments: int = 1) -> JobRecord:
        """Queue the merging of small segments, of each order of n-grams that has more than
        `max_segments` of them.

        Raises InvalidInput (no domain's name), NotFound, Conflict (a job builds or compacts it).
        """
        name = str(DomainId.parse(domain))
        if name not in self._refs():
            raise NotFound(f"there is no domain {name!r}: see the list of domains", field="domain")
        # A damaged job of whatever domain must not end the care of all; the store itself keeps two
        # builders apart.
        for job in self._parts.registry.live_jobs(tolerant=True):
            if job.kind == "build_plot" and job.spec.get("domain") == name:
                raise Conflict(
                    f"job {job.job} is building {name}: compact {name} when the job has ended", job=job.job
                )
        return self._parts.runner.submit(
            "compact_plot", CompactPlotSpec(domain=name, max_segments=max_segments).stored()
        )

    def collect(self, *, dry_run: bool, keep_versions: int | None, keep_days: float | None) -> GcReport:
        """Collect PLOT versions that nothing keeps: not retention, a model, a job, a tag or a
        pin. Raises InvalidInput.

        Versions are kept that are among a domain's newest `keep_versions` or younger than
        `keep_days`; None: default.
        """
        least = self._parts.settings.plot_keep_versions if keep_versions is None else keep_versions
        given: dict[str, Any] = {"keep_versions": least, "keep_days": keep_days}
        wanted = {name: value for name, value in given.items() if value is not None}
        with plot_errors():
            return self._parts.plots.gc(dry_run=dry_run, keep=self._pinned(), **wanted)

    def on_disk(self) -> list[DomainOnDisk]:
        """Every domain's current version, by name."""
        plots = self._parts.plots
        with plot_errors():
            return [self._row(plots, domain, version) for domain, version in sorted(self._refs().items())]

    def _row(self, plots: Store, domain: str, version: VersionInfo) -> DomainOnDisk:
        entries = {str(order): count for order, count in version.entries.items()}
        return DomainOnDisk(
            domain,
            version.id,
            version.bytes,
            len(version.segments),
            sum(self._small(version).values()),
            len(plots.chain(version.id)),
            entries,
        )

    def _small(self, version: VersionInfo) -> Counter[int]:
        """Rows segments that merging would do away with, by order of n-grams."""
        limit = self._parts.settings.compact_small_bytes
        return Counter(s.order for s in version.segments if s.kind == "rows" and s.bytes < limit)

    def _refs(self) -> dict[str, VersionInfo]:
        with plot_errors():
            return self._parts.plots.refs()
