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
from dataclasses import asdict, dataclass, replace
from pathlib import Path

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
    data: Path, model: str, texts: Sequence[str], warm: str = "", root_bytes: int = 0, io_bytes_per_s: int = 0
) -> Served:
    """Ask a model in a new process with these settings.

    warm: a model of another root that answers first, so that the growth of memory is the root's own.
    """
    given = [str(data), model, warm, str(root_bytes), str(io_bytes_per_s)]
    lines = "\n".join(" ".join(text.split()) for text in texts)
    done = subprocess.run(
        [sys.executable, "-m", __name__, *given], input=lines, capture_output=True, text=True, check=True
    )
    return Served(**json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    import torch

    data, model, warm, root_bytes, io_bytes_per_s = sys.argv[1:]
    texts = sys.stdin.read().splitlines()
    torch.set_num_threads(1)
    print(
        json.dumps(
            asdict(asyncio.run(_served(Path(data), model, warm, texts, int(root_bytes), int(io_bytes_per_s))))
        )
    )


async def _served(
    data: Path, model: str, warm: str, texts: list[str], root_bytes: int, io_bytes_per_s: int
) -> Served:
    from hmi.config import Settings
    from hmi.core import ModelId
    from hmi.engine import Engine, TextRequest
    from hmi.engine.admit.bundles import Bundles
    from hmi.manager import Manager
    from hmi.metrics import Metrics
    from hmi.stages.planner import RoundRobin

    settings = replace(
        Settings.from_env(None, data=data), root_bytes=root_bytes, io_bytes_per_s=io_bytes_per_s
    )
    manager, asked = Manager(settings), ModelId.parse(model)
    stores = manager.registry, manager.plots, manager.adapters, manager.lowers
    bundles = Bundles(data, *stores, "fp32", root_bytes=root_bytes, io_bytes_per_s=io_bytes_per_s)
    engine = Engine(bundles, settings, Metrics(), None, RoundRobin())
    await engine.start()
    if warm:
        await engine.infer([TextRequest(ModelId.parse(warm), texts[0])])
        for upper in bundles._uppers.values():
            await asyncio.to_thread(upper.executor.settle)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins now
    before = _memory("VmRSS")
    begun = time.perf_counter()
    await engine.infer([TextRequest(asked, texts[0])])
    first_s = time.perf_counter() - begun
    for upper in bundles._uppers.values():
        await asyncio.to_thread(upper.executor.settle)
    line, found = iter(enumerate(texts)), dict[int, tuple[str, str]]()

    async def caller() -> None:
        for i, text in line:
            (result,) = await engine.infer([TextRequest(asked, text, provenance=True)])
            assert result.provenance is not None
            found[i] = str(result.label), result.provenance.stages.get("shards", "")

    begun = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    took = time.perf_counter() - begun
    grown = _memory("VmHWM") - before
    await engine.stop()
    manager.close()
    answers = [found[i] for i in range(len(texts))]
    return Served(first_s, len(texts) / took, grown, [a for a, _ in answers], [s for _, s in answers])


def _memory(field: str) -> int:
    """The bytes that /proc says of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))


if __name__ == "__main__":
    main()
