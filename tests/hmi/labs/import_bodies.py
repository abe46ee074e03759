"""The import of a root, whose process dies once in mid-phase."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from hmi.jobs.root import import_root
from hmi.jobs.runtime.context import JobContext
from hmi.model.files import write_checkpoint
from hmi.training.root import phases

DIES_AT = 7
"""The process dies while it writes this checkpoint, counted over all phases."""


def run(ctx: JobContext) -> dict[str, Any]:
    if ctx.job.attempts == 1:
        phases.write_checkpoint = _Dying()  # type: ignore[assignment]
    return import_root.run(ctx)


class _Dying:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(
        self, path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any] | None = None
    ) -> None:
        self.calls += 1
        if self.calls == DIES_AT:
            path.with_name(f".{path.name}.0.tmp").write_bytes(b"the first half")
            os.kill(os.getpid(), signal.SIGKILL)
        write_checkpoint(path, tensors, about)


BODIES = {"import_root": run}
