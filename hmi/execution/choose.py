"""The choice of a root's executor: the fastest on this machine of those that the settings allow."""

from __future__ import annotations

import copy
import logging
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean

import torch
from hmi_kernels.encoder import fits
from torch import Tensor, nn

from hmi.errors import InvalidInput
from hmi.execution.base import Executor, Hook, Pause, no_pause
from hmi.execution.batch import BatchKey, Left, Rows, offsets_of
from hmi.execution.packed import PackedExecutor, pack_upper
from hmi.execution.precision import available
from hmi.model.memory import give_back_memory
from hmi.model.modules import TenantModule
from hmi.model.root import Root
from hmi.model.shape import EncoderShape

log = logging.getLogger("hmi.execution")
ALLOWED: dict[str, tuple[str, ...]] = {"auto": ("fp32", "bf16"), "fp32": ("fp32",)}
"""The precisions that compete under a setting. The settings bf16 and int8 allow themselves alone."""
MIN_COSINE = 0.999
"""Under `auto`, an executor is rejected if a row has a smaller cosine to the same row in fp32."""
PROBES = ((16,), (64, 32, 96, 64))
"""Lengths of the texts of the measured batches: one short text, and four longer ones."""
ROUNDS = 3
"""Timed runs of each batch. The fastest counts."""


@dataclass(frozen=True)
class Measured:
    """One executor on this machine."""

    name: str
    """`packed fp32`, `fused bf16` and so on."""
    us_per_token: tuple[float, ...]
    """Microseconds a token, for each batch of PROBES."""
    cosine: float
    """The least cosine of a row to the same row of packed torch in fp32."""

    def __str__(self) -> str:
        return f"{self.name} {'/'.join(f'{t:.0f}' for t in self.us_per_token)}"


class Chosen:
    """A root's `Executor` that passes each batch to the fastest one, and exact requests to the reference.

    Until the fastest is known, the reference runs everything.
    """

    def __init__(self, reference: Executor) -> None:
        self._reference = self._best = reference
        self.name = "packed fp32"
        self.measured: tuple[Measured, ...] = ()

    @property
    def layers(self) -> int:
        return self._reference.layers

    def take(self, best: Executor | None, name: str, measured: Sequence[Measured]) -> None:
        """Run `best` from the next batch on. None stands for the reference."""
        self._best, self.name, self.measured = best or self._reference, name, tuple(measured)

    @property
    def precision(self) -> str:
        """What its products multiply: `fp32`, `bf16` or `int8`."""
        return self.name.rpartition(" ")[2]

    def fits(self, key: BatchKey) -> bool:
        return self._for(key).fits(key)

    def space(self, tokens: int) -> Tensor:
        return self._reference.space(tokens)

    def run(
        self,
        key: BatchKey,
        rows: Rows,
        modules: Sequence[TenantModule | None],
        hooks: Sequence[Hook] = (),
        pause: Pause = no_pause,
    ) -> Iterator[Left]:
        return self._for(key).run(key, rows, modules, hooks, pause)

    def _for(self, key: BatchKey) -> Executor:
        return self._reference if key.exact else self._best


def check_precision(wanted: str) -> None:
    """Raise InvalidInput if this processor has no instructions for the precision that was asked for."""
    if wanted in ("auto", "fp32"):
        return
    if wanted not in available():
        raise InvalidInput(
            f"precision = {wanted!r}: this processor has no instructions for it; use auto or fp32",
            field="precision",
        )


def executor_for(root: Root, wanted: str = "auto", *, wait: bool = False) -> Chosen:
    """Return an executor that owns the root's upper layers. Prepares the layers in place.

    `wanted` is the setting `precision`. A thread builds and measures the compiled executors, which takes a
    second. The first time on a machine it also compiles their kernels, which takes some ten seconds. Tests
    and benchmarks `wait` for it; a server runs the reference meanwhile.
    """
    shape, upper = root.info.shape, copy.deepcopy(root.upper)
    pack_upper(root.upper)
    chosen = Chosen(PackedExecutor(root.upper, shape))
    if fits(shape.dim, shape.heads, shape.ffn):
        args = chosen, upper, root, wanted
        work = threading.Thread(target=_choose, args=args, name="hmi-choose", daemon=True)
        work.start()
        if wait:
            work.join()
    elif wanted not in ALLOWED:
        log.warning("root %s runs in fp32: its sizes do not fit the kernels of %s", root.info.name, wanted)
    return chosen


def _choose(chosen: Chosen, upper: nn.ModuleList, root: Root, wanted: str) -> None:
    """Take the fastest executor. Whatever fails, the reference goes on."""
    try:
        _take_fastest(chosen, upper, root, wanted)
    except Exception:
        log.exception("root %s stays on packed torch: no other executor could be measured", root.info.name)
    give_back_memory()  # of the executors that were built and not taken


def _take_fastest(chosen: Chosen, upper: nn.ModuleList, root: Root, wanted: str) -> None:
    shape, found = root.info.shape, _candidates(upper, root, wanted)
    base = _measured("packed fp32", chosen, chosen, shape)
    measured = [_measured(name, executor, chosen, shape) for name, executor in found.items()]
    able = [m for m in measured if wanted != "auto" or m.cosine >= MIN_COSINE]
    best = min([*able, *([base] if wanted in ALLOWED else [])], key=lambda m: _slowness(m, base))
    chosen.take(found.get(best.name), best.name, [base, *measured])
    told = ", ".join(map(str, (base, *measured)))
    log.debug("root %s runs on %s (microseconds a token: %s)", root.info.name, chosen.name, told)


def _candidates(upper: nn.ModuleList, root: Root, wanted: str) -> dict[str, Executor]:
    _compile_apart()
    from hmi.execution.fused import FusedExecutor

    shape, allowed = root.info.shape, ALLOWED.get(wanted, (wanted,))
    return {f"fused {p}": FusedExecutor(upper, shape, p) for p in available() if p in allowed}


@cache
def _compile_apart() -> None:
    """Compile the kernels in a process of its own, so that this one only reads the machine code.

    LLVM ends its process where it cannot compile. Raises RuntimeError with the reason.
    """
    child = subprocess.run(
        [sys.executable, "-c", "import hmi_kernels.encoder.ops"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    if child.returncode:
        last = (child.stderr.strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(f"the kernels cannot be compiled here (exit status {child.returncode}: {last})")


def _slowness(one: Measured, base: Measured) -> float:
    """The mean of its times over the base's: each probe counts the same."""
    return fmean(t / b for t, b in zip(one.us_per_token, base.us_per_token, strict=True))


@torch.inference_mode()
def _measured(name: str, executor: Executor, reference: Executor, shape: EncoderShape) -> Measured:
    longest = shape.positions
    times, cosine, g = [], 1.0, torch.Generator().manual_seed(0)
    for lengths in ([min(n, longest) for n in probe] for probe in PROBES):
        rows = Rows.packed(torch.randn(sum(lengths), shape.dim, generator=g), offsets_of(lengths))
        work = _work(executor, rows, len(lengths))
        ours, theirs = work(), _work(reference, rows, len(lengths))()
        close = float(torch.cosine_similarity(ours, theirs).min())
        cosine = min(cosine, close if math.isfinite(close) else -1.0)
        times.append(1e6 * min(_seconds(work) for _ in range(ROUNDS)) / sum(lengths))
    return Measured(name, tuple(times), cosine)


def _work(executor: Executor, rows: Rows, texts: int) -> Callable[[], Tensor]:
    def work() -> Tensor:
        (left,) = executor.run(BatchKey(("", ""), "cls", exact=False), rows, [None] * texts)
        return left.last

    return work


def _seconds(work: Callable[[], Tensor]) -> float:
    """Of this thread's own processor time, so that a busy machine changes it less."""
    begun = time.thread_time()
    work()
    return time.thread_time() - begun
