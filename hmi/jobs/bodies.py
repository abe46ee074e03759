"""The function that runs each kind of job. It is imported when a job starts, since some
imports take seconds."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, cast

from hmi.core import JobKind
from hmi.jobs.runtime.context import Body, JobContext


def _lazily(module: str) -> Body:
    def run(ctx: JobContext) -> dict[str, Any]:
        return cast(Body, importlib.import_module(module).run)(ctx)

    return run


BODIES: Mapping[JobKind, Body] = {
    "import_root": _lazily("hmi.jobs.root.import_root"),
    "build_plot": _lazily("hmi.jobs.plot.build_plot"),
    "fine_tune": _lazily("hmi.jobs.model.fine_tune"),
    "compact_plot": _lazily("hmi.jobs.plot.compact_plot"),
    "erase": _lazily("hmi.jobs.plot.erase_text"),
    "profile_cascade": _lazily("hmi.jobs.stage.profile_cascade"),
    "shard_root": _lazily("hmi.jobs.root.shard_root"),
    "backup": _lazily("hmi.jobs.back_up"),
    "improve": _lazily("hmi.jobs.improve"),
    "count_part": _lazily("hmi.jobs.plot.count_part"),
}


PRELOADED = ("hmi.jobs.runtime.process", "hmi.jobs.model.fine_tune", "hmi_kernels.lookup.cpu")
"""Modules that take long to import, and that the most frequent kind of job needs."""


KERNELS = ("lookup", "text")
"""Entries of `hmi_kernels.compile` whose machine code that kind of job needs."""


def find_bodies(name: str | None) -> Mapping[JobKind, Body]:
    """The bodies that `name` ("module:attribute") points to; BODIES if it is None."""
    if name is None:
        return BODIES
    module, _, attribute = name.partition(":")
    return cast(Mapping[JobKind, Body], getattr(importlib.import_module(module), attribute))


def preload(name: str | None) -> None:
    """Import what most jobs need, in a process that then forks one process for each job."""
    for module in PRELOADED if name is None else (name.partition(":")[0],):
        importlib.import_module(module)
    if name is None:
        from hmi_kernels import compile, jit  # imports numba, which jobs such as backups do not need

        jit.prepare()
        with suppress(OSError):  # a cache that cannot be written: each job then loads what it needs
            for entry in KERNELS:
                compile.compile_entry(entry)
