"""Removing what crashes leave behind: folders without a job, half-written artefacts."""

from __future__ import annotations

import shutil
import time
from contextlib import suppress

from hmi.core import ENDED
from hmi.errors import Damaged, NotFound
from hmi.jobs.runtime.discarding import strange_roots
from hmi.jobs.runtime.folders import JobFolder
from hmi.jobs.runtime.process import after_end
from hmi.stores.layout import Layout, clear_leftovers
from hmi.stores.registry import Registry

HOUR_S = 3600.0


def clean(registry: Registry, layout: Layout, older_than_s: float = HOUR_S) -> list[str]:
    """Remove leftovers older than `older_than_s`; younger ones may be at work. Returns what went."""
    removed: list[str] = []
    for folder in (layout.roots, layout.lowers, layout.adapters):
        removed += clear_leftovers(folder, older_than_s)
    removed += _strange_jobs(registry, layout, older_than_s)
    # Last, for it raises Damaged where what the registry names cannot all be read.
    for path in strange_roots(registry, layout):
        # FileNotFoundError: another process was quicker.
        with suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > older_than_s:
                shutil.rmtree(path)
                removed.append(f"{path.parent.name}/{path.name}")
    return removed


def _strange_jobs(registry: Registry, layout: Layout, older_than_s: float) -> list[str]:
    """Folders of jobs that were never queued (killed in between), whose tenant was deleted, or
    that ended untidied."""
    removed = []
    for path in layout.jobs.iterdir():
        # NotFound: not a job's name, so not ours; FileNotFoundError: another process was quicker;
        # Damaged: nobody can tell whether the job is at an end.
        with suppress(NotFound, FileNotFoundError, Damaged):
            folder = JobFolder(layout.jobs, path.name)
            if path.is_dir() and _spent(registry, folder, path.name) and folder.age_s() > older_than_s:
                with folder.try_lock() as free:
                    if free:
                        after_end(registry, folder, path.name)
                        removed.append(path.name)
    return removed


def _spent(registry: Registry, folder: JobFolder, job: str) -> bool:
    return not registry.has_job(job) or (folder.input.exists() and registry.job(job).state in ENDED)
