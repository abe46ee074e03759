"""Removes what crashes leave behind: folders without a job, half-written artefacts."""

from __future__ import annotations

import shutil
import time
from contextlib import suppress

from hmi.core import ENDED
from hmi.errors import Damaged, NotFound
from hmi.jobs.runtime.discarding import orphaned_roots
from hmi.jobs.runtime.folders import JobFolder
from hmi.jobs.runtime.process import after_end
from hmi.stores.layout import Layout, clear_leftovers
from hmi.stores.records.registry import Registry

HOUR_S = 3600.0


def clean(registry: Registry, layout: Layout, older_than_s: float = HOUR_S) -> list[str]:
    """Remove leftovers older than `older_than_s`, since younger ones may be in use. Returns their names."""
    removed: list[str] = []
    for folder in (layout.roots, layout.lowers, layout.samples, layout.adapters):
        removed += clear_leftovers(folder, older_than_s)
    removed += _clean_jobs(registry, layout, older_than_s)
    # Last, since it raises Damaged if a record of the registry cannot be read.
    for path in orphaned_roots(registry, layout):
        # FileNotFoundError: another process was quicker.
        with suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > older_than_s:
                shutil.rmtree(path)
                removed.append(f"{path.parent.name}/{path.name}")
    return removed


def _clean_jobs(registry: Registry, layout: Layout, older_than_s: float) -> list[str]:
    """Remove the folders of jobs that were never queued (their creator was killed), whose tenant
    was deleted, or that ended without being tidied."""
    removed = []
    for path in layout.jobs.iterdir():
        # NotFound: the name is not a job's; FileNotFoundError: another process was quicker;
        # Damaged: the job's state is unknown.
        with suppress(NotFound, FileNotFoundError, Damaged):
            folder = JobFolder(layout.jobs, path.name)
            if path.is_dir() and _has_ended(registry, folder, path.name) and folder.age_s() > older_than_s:
                with folder.try_lock() as free:
                    if free:
                        after_end(registry, folder, path.name)
                        removed.append(path.name)
    return removed


def _has_ended(registry: Registry, folder: JobFolder, job: str) -> bool:
    return not registry.has_job(job) or (folder.input.exists() and registry.job(job).state in ENDED)
