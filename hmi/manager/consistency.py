"""Keeps registry, PLOT store and files consistent: removes what crashes and deletions leave, and
reports what is missing."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from hmi.errors import Damaged, HmiError, Unavailable
from hmi.jobs.runtime.folders import JobFolder
from hmi.manager.files import FileOperations
from hmi.manager.parts import HOUR_S, Parts
from hmi.manager.roots import RootOperations
from hmi.model.checked import ROOT_CURE
from hmi.stores.bucket import Bucket
from hmi.stores.failures import run_each
from hmi.stores.layout import folder_bytes
from hmi.stores.plot.plot_meta import lowers_of, samples_of
from hmi.stores.plot.plots import plot_errors
from hmi.stores.plot.sharing import is_shared, share_late, shared_refs
from hmi.stores.tensors.adapter_store import LOWER_CURE, MODEL_CURE
from hmi.stores.tensors.samples import CURE as SAMPLE_CURE

log = logging.getLogger("hmi.manager")


class Consistency:
    """Verification, and garbage collection across the stores."""

    def __init__(self, parts: Parts, roots: RootOperations) -> None:
        self._parts, self._roots = parts, roots

    def housekeeping(self) -> None:
        """Verify and collect: once at the start and then hourly, in the jobs' supervisor thread. A
        part that fails is logged; the others still run."""
        run_each(
            log,
            {
                "checking": self._warn,
                "removing what imports left": self._drop_strays,
                "sharing": self._share,
                "collecting": self.collect,
            },
        )

    def _warn(self) -> None:
        for problem in self.verify():
            log.warning("%s", problem)

    def _share(self) -> None:
        """Put what the bucket lacks there. There is something if the data folder had no bucket before."""
        parts = self._parts
        if parts.bucket is None or not parts.registry.is_primary():
            return
        with plot_errors():
            versions = parts.plots.metas()
        parts.adapters.share(parts.used_artefacts())
        parts.lowers.share(lowers_of(versions))
        parts.samples.share(samples_of(versions))
        for root in parts.registry.roots():
            parts.roots.share(root.name, root.version)
        for job in parts.registry.live_jobs():
            JobFolder(parts.layout.jobs, job.job, parts.bucket).share()
        FileOperations(parts).share()
        share_late(parts.plots, parts.bucket, self.pinned_plots(), parts.registry.leads)

    def _drop_strays(self) -> None:
        with plot_errors():
            for ref in self._parts.plots.heads():
                if "/" not in ref and self._roots.drop_stray(ref):
                    log.info("removed the PLOT of %s, whose import never ended", ref)

    def verify(self) -> tuple[str, ...]:
        """Damaged records of the registry; if there are none, everything that it names but that neither the
        data folder nor the bucket has. Reads no artefact. Raises Unavailable."""
        parts = self._parts
        damaged = parts.registry.problems()
        if damaged:
            return tuple(damaged)
        with plot_errors():
            heads, versions = parts.plots.heads(), parts.plots.metas()
        refs = heads | shared_refs(parts.bucket)
        problems: list[str] = []
        for root in parts.registry.roots():
            if root.name not in refs:
                problems.append(f"root {root.name} has no PLOT: delete it and import it again")
            if not parts.roots.has(root.name, root.version):
                problems.append(f"root {root.name} has lost its files: {ROOT_CURE}")
        lowers = parts.lowers.known()
        for lower, domain in lowers_of(versions).items():
            if lower not in lowers:
                problems.append(f"domain {domain} has lost its lower layers: {LOWER_CURE}")
        have, known = parts.adapters.known(), {version.id: True for version in versions}
        roots = {(root.name, root.version) for root in parts.registry.roots()}
        for model in parts.registry.models():
            name = f"{model.tenant}.{model.name}"
            for stored in model.versions:
                what = f"version {stored.version} of model {name} has lost its"
                if stored.artefact not in have:
                    problems.append(f"{what} artefact: {MODEL_CURE}")
                if (stored.root, stored.root_version) not in roots:
                    problems.append(f"{what} root {stored.root}: fine-tune it again")
                if stored.plot_version not in known:
                    known[stored.plot_version] = self._has_plot(stored.plot_version) or is_shared(
                        parts.bucket, stored.plot_version
                    )
                if not known[stored.plot_version]:
                    problems.append(f"{what} PLOT version: fine-tune it again")
        return tuple(problems)

    def verify_files(self) -> tuple[str, ...]:
        """Read every byte of roots, lower layers, samples, modules and heads. Returns one sentence for
        each damaged part.

        Missing artefacts are left to `verify`.
        """
        from hmi.model.sources.root import verify_root  # imports torch, which takes seconds

        parts, problems = self._parts, list[str]()
        with plot_errors():
            versions = parts.plots.metas()
        for root in parts.registry.roots(tolerant=True):
            folder = parts.layout.root(root.name, root.version)
            problems += self._problems(verify_root, folder) if folder.is_dir() else []
        lowers = parts.lowers.names()
        for lower, domain in lowers_of(versions).items():
            if lower in lowers:
                problems += self._problems(
                    parts.lowers.check, lower, f"domain {domain}'s lower layers", LOWER_CURE
                )
        for sample in sorted(samples_of(versions) & parts.samples.names()):
            problems += self._problems(parts.samples.check, sample, "a domain's sample of texts", SAMPLE_CURE)
        have = parts.adapters.names()
        owners = {
            version.artefact: f"model {model.tenant}.{model.name}, version {version.version}"
            for model in parts.registry.models(tolerant=True)
            for version in model.versions
        }
        for name in sorted(have & owners.keys()):
            problems += self._problems(parts.adapters.check, name, owners[name], MODEL_CURE)
        return tuple(problems)

    @staticmethod
    def _problems(check: Callable[..., list[str] | None], *given: object) -> list[str]:
        try:
            return check(*given) or []
        except (Damaged, Unavailable) as error:
            return [error.message]

    def collect(self, *, plots: bool = True) -> dict[str, int]:
        """Free PLOT versions, artefacts, lower layers and samples that nothing needs any more. Returns the
        bytes freed by kind.

        plots=False leaves PLOT versions alone, for a caller that has collected them with another retention.
        """
        parts, manages = self._parts, self._parts.registry.is_primary()
        files = FileOperations(parts).collect()
        _, adapters = parts.adapters.gc(parts.used_artefacts(), HOUR_S, shared=manages)
        keep = self.pinned_plots()
        with plot_errors():
            kept = parts.settings.plot_keep_versions
            freed = parts.plots.gc(keep=keep, keep_versions=kept).bytes if plots else 0
            versions = parts.plots.metas()
        parts.misses.files.prune(self._has_plot)
        beside = {"lowers": 0, "samples": 0}
        # A running build may have stored lower layers or a sample whose version it will publish hours later.
        if not any(j.kind == "build_plot" for j in parts.registry.live_jobs()):
            beside["lowers"] = parts.lowers.gc(lowers_of(versions), HOUR_S)[1]
            beside["samples"] = parts.samples.gc(samples_of(versions), HOUR_S)[1]
        if parts.bucket is not None and manages:
            self._collect_shared(parts.bucket)
        return {"adapters": adapters, "plots": freed, **beside, "files": files}

    def _collect_shared(self, bucket: Bucket) -> None:
        """Remove from the bucket what crashes left there: inputs of jobs, files of callers and of roots."""
        old = [name for part in ("jobs", "files", "roots") for name in bucket.names(part, HOUR_S)]
        # Jobs are read first. An import that ends meanwhile has published its root before.
        known = {job.job for job in self._parts.registry.live_jobs()}
        known |= {root.version for root in self._parts.registry.roots()}

        def needed(name: str) -> bool:
            part, *within = name.split("/")
            return not known.isdisjoint(within) or (
                part == "files" and self._parts.registry.file(within[-1]) is not None
            )

        bucket.remove([name for name in old if not needed(name)])

    def pinned_plots(self) -> set[str]:
        """PLOT versions that a kept model version or a live job depends on."""
        parts = self._parts
        pinned: set[str] = set()
        # Jobs are read first. A job that ends meanwhile has published its model before, so the
        # models read next include it.
        for job in parts.registry.live_jobs():
            pinned |= JobFolder(parts.layout.jobs, job.job).pinned().versions
        return pinned | {v.plot_version for m in parts.registry.models() for v in m.versions}

    def stats(self) -> dict[str, Any]:
        """Bytes on disk by part, and the numbers of roots, domains, tenants, models and jobs."""
        parts, layout = self._parts, self._parts.layout
        with plot_errors():
            plots = parts.plots.info()
        models = parts.registry.models()
        return {
            "bytes": {
                "registry": folder_bytes(layout.registry),
                "plots": plots.bytes,
                "roots": folder_bytes(layout.roots),
                "lowers": parts.lowers.bytes(),
                "samples": parts.samples.bytes(),
                "adapters": parts.adapters.bytes(),
                "jobs": folder_bytes(layout.jobs),
                "misses": folder_bytes(layout.misses),
                "files": folder_bytes(layout.files),
            },
            "roots": len(parts.registry.roots()),
            "domains": plots.refs,
            "tenants": parts.registry.count_tenants(),
            "models": len(models),
            "model_versions": sum(len(m.versions) for m in models),
            "jobs": sum(parts.registry.count_jobs().values()),
            "plot_entries": {str(order): count for order, count in plots.entries.items()},
        }

    def _has_plot(self, domain_or_version: str) -> bool:
        try:
            with plot_errors():
                self._parts.plots.version(domain_or_version)
        except HmiError as error:
            if error.kind in ("not_found", "invalid_input"):
                return False
            raise
        return True
