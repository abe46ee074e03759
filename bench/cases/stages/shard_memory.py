"""A root in a process of its own: the memory, speed and answers with and without a limit. See `measured`.

`bench.cases.stages.shard_memory DATA MODEL WARM ROOT_BYTES IO_BYTES_PER_S` reads texts from its
input, one a line, and prints a JSON object.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from bench.cases.serve.engine import by_callers, serving
from hmi.core import ModelId
from hmi.engine import TextRequest

CALLERS = 8


@dataclass(frozen=True)
class Served:
    """The figures of one process."""

    first_s: float
    """Seconds from the first request, of a root that is not in memory, to its answer."""
    texts_per_s: float
    grown_bytes: int
    """The growth of the process's memory from before the root was loaded to its peak."""
    labels: list[str]
    stages: list[str]
    """The texts' setting of shards; empty for those that ran on exact weights."""


def measured(
    data: Path,
    model: ModelId,
    texts: Sequence[str],
    *,
    warm: ModelId | None = None,
    root_bytes: int = 0,
    io_bytes_per_s: int = 0,
) -> Served:
    """Ask a model in a new process with these settings.

    warm: a model of another root that answers first, so that the growth of memory is the root's own.
    """
    given = map(str, (data, model, warm or "", root_bytes, io_bytes_per_s))
    lines = "\n".join(" ".join(text.split()) for text in texts)
    done = subprocess.run(
        [sys.executable, "-m", __name__, *given], input=lines, capture_output=True, text=True, check=True
    )
    return Served(**json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    data, model, warm, *limits = sys.argv[1:]
    torch.set_num_threads(1)
    texts, first = sys.stdin.read().splitlines(), ModelId.parse(warm) if warm else None
    served = asyncio.run(_served(Path(data), ModelId.parse(model), first, texts, *map(int, limits)))
    print(json.dumps(asdict(served)))


async def _served(
    data: Path, model: ModelId, warm: ModelId | None, texts: list[str], root_bytes: int, io_bytes_per_s: int
) -> Served:
    limits: dict[str, Any] = {"root_bytes": root_bytes, "io_bytes_per_s": io_bytes_per_s}
    async with serving(data, warm, precision="fp32", stages="shards", **limits) as engine:
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins now
        before, begun = _memory("VmRSS"), time.perf_counter()
        await engine.ask(model, texts[0])
        first_s = time.perf_counter() - begun
        for upper in engine.bundles._uppers.values():
            await asyncio.to_thread(upper.executor.settle)
        requests, begun = [TextRequest(model, text, provenance=True) for text in texts], time.perf_counter()
        found = await by_callers(CALLERS, requests, lambda request: engine.engine.infer([request]))
        took, grown = time.perf_counter() - begun, _memory("VmHWM") - before
    stages = [one.provenance.stages.get("shards", "") for (one,) in found if one.provenance is not None]
    return Served(first_s, len(texts) / took, grown, [str(one.label) for (one,) in found], stages)


def _memory(field: str) -> int:
    """The bytes that /proc says of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))


if __name__ == "__main__":
    main()
