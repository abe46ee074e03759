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
from hmi.stores.plot.plots import current_version, plot_errors
from plot_store import GcReport, VersionInfo, probe

log = logging.getLogger("hmi.manager")


def probe_plots(data: Path) -> None:
    """Check the catalogue of a data folder's PLOTs in a child process, before anything opens it.

    Raises Damaged; Unavailable if the check itself failed, for lack of memory or because of the disk.
    """
    with plot_errors():
        probe(Layout(data).plots)


@dataclass(frozen=True)
class DomainOnDisk:
    """A domain's current version on disk. `chain` is the length of the chain of versions that a
    look-up goes through."""

    domain: str
    version: str
    bytes: int
    segments: int
    small_segments: int
    chain: int
    entries: dict[str, int]


class Maintenance:
    """Compaction, collection with a given retention, and figures of the store. Thread-safe."""

    def __init__(self, parts: Parts, pinned: Callable[[], set[str]]) -> None:
        """`pinned` returns the versions that models and live jobs depend on."""
        self._parts, self._pinned = parts, pinned
        self._settled: dict[str, str] = {}
        """The version of each domain at which housekeeping has looked. It looks once, since a compaction may
        leave a version as it is, if there is too little to gain."""

    def housekeeping(self) -> None:
        """Check the catalogue, and queue the compaction of every domain that needs it."""
        try:
            probe_plots(self._parts.settings.data)
        except HmiError as error:
            log.error("%s", error.message)
            return
        with plot_errors():
            moved = self._parts.plots.moved(self._settled)
        for domain in moved:
            version = current_version(self._parts.plots, domain)
            if version is None:
                self._settled.pop(domain, None)
                continue
            with suppress(Conflict, NotFound):  # a job is at work on it, or it was just deleted
                if self._is_due(version):
                    job = self.compact(domain, max_segments=self._parts.settings.compact_segments)
                    log.info("%s has many small segments: job %s merges them", domain, job.job)
                self._settled[domain] = version.id

    def due(self) -> list[str]:
        """Domains whose current version has more small segments than the settings allow."""
        return [domain for domain, version in self._refs().items() if self._is_due(version)]

    def _is_due(self, version: VersionInfo) -> bool:
        allowed = self._parts.settings.compact_segments
        return 0 < allowed < max(self._small(version).values(), default=0)

    def compact(self, domain: str, *, max_segments: int = 1) -> JobRecord:
        """Queue the merging of small segments, in each order of n-grams that has more than `max_segments`.

        Raises InvalidInput (not a domain's name), NotFound, Conflict (a job builds or compacts the domain).
        """
        name = str(DomainId.parse(domain))
        if current_version(self._parts.plots, name) is None:
            raise NotFound(f"there is no domain {name!r}: see the list of domains", field="domain")
        # Damaged job records are skipped, so that they do not stop compaction; the store itself
        # keeps two builders apart.
        for job in self._parts.registry.live_jobs(tolerant=True):
            if job.kind == "build_plot" and job.spec.get("domain") == name:
                raise Conflict(
                    f"job {job.job} is building {name}: compact {name} when the job has ended", job=job.job
                )
        return self._parts.runner.submit(
            "compact_plot", CompactPlotSpec(domain=name, max_segments=max_segments).stored()
        )

    def collect(self, *, dry_run: bool, keep_versions: int | None, keep_days: float | None) -> GcReport:
        """Collect the PLOT versions that neither retention nor a model, job, tag or pin
        keeps. Raises InvalidInput.

        Retention keeps a domain's newest `keep_versions` versions, and those younger than
        `keep_days`; None: the default.
        """
        least = self._parts.settings.plot_keep_versions if keep_versions is None else keep_versions
        given: dict[str, Any] = {"keep_versions": least, "keep_days": keep_days}
        wanted = {name: value for name, value in given.items() if value is not None}
        with plot_errors():
            return self._parts.plots.gc(dry_run=dry_run, keep=self._pinned(), **wanted)

    def on_disk(self) -> list[DomainOnDisk]:
        """Every domain's current version, by name."""
        below: dict[str | None, int] = {None: 0}  # the length of each parent's chain
        rows = []
        with plot_errors():
            for domain, version in sorted(self._refs().items()):
                if version.parent is not None and version.parent not in below:
                    below[version.parent] = len(self._parts.plots.chain(version.parent))
                rows.append(self._row(domain, version, 1 + below[version.parent]))
        return rows

    def _row(self, domain: str, version: VersionInfo, chain: int) -> DomainOnDisk:
        entries = {str(order): count for order, count in version.entries.items()}
        return DomainOnDisk(
            domain,
            version.id,
            version.bytes,
            len(version.segments),
            sum(self._small(version).values()),
            chain,
            entries,
        )

    def _small(self, version: VersionInfo) -> Counter[int]:
        """The number of row segments that merging would remove, by order of n-grams."""
        limit = self._parts.settings.compact_small_bytes
        return Counter(s.order for s in version.segments if s.kind == "rows" and s.bytes < limit)

    def _refs(self) -> dict[str, VersionInfo]:
        with plot_errors():
            return self._parts.plots.refs()
