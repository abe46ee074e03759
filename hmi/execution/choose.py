"""The choice of a root's executor: the fastest on this machine of those that the settings allow.

The times are measured once on a machine and kept (`hmi.stores.profiles`); `hmi.execution.fastest` decides.
"""

from __future__ import annotations

import copy
import logging
import math
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from hmi_kernels.encoder import fits
from torch import Tensor

from hmi.core import now
from hmi.errors import HmiError, InvalidInput
from hmi.execution.base import Executor, Hook
from hmi.execution.batch import BatchKey, Left, Rows, offsets_of
from hmi.execution.compiling import NEVER, Ended, compile_missing, is_compiled
from hmi.execution.fastest import ALLOWED, fastest, precision_of
from hmi.execution.guarded import Guarded, OnDevice
from hmi.execution.machine import fingerprint
from hmi.execution.packed import PackedExecutor, pack_upper
from hmi.execution.precision import available
from hmi.model.memory import give_back_memory
from hmi.model.sources.root import Root
from hmi.model.tenant.modules import TenantModule
from hmi.stores.failures import log_failure
from hmi.stores.profiles import Measured, Profile, Profiles

log = logging.getLogger("hmi.execution")
PROBES: dict[str, tuple[int, ...]] = {"short": (16,), "long": (128,), "mixed": (12, 96, 20, 64, 32, 64)}
"""The measured batches, and the tokens of their texts."""
REFERENCE = "packed fp32"
ROUNDS, ROUNDS_TOKENS = 3, 384
"""A batch is timed at least this many times, and until its runs have at least this many tokens together. The
fastest run counts."""
Progress = Callable[[str, int, int], None]
"""Called before each step of a measurement with its name, the number of steps done, and of all steps."""


class Chosen:
    """A root's `Executor` that passes each batch to the fastest one, and exact requests to the reference.

    Until the fastest is known, the reference runs everything.
    """

    def __init__(self, reference: Executor) -> None:
        self._reference = self._best = reference
        self.name = REFERENCE
        self.measured: tuple[Measured, ...] = ()
        self.fault: str | None = None
        """Why the root's device is not used any more."""
        self._ended = threading.Event()
        self._work: threading.Thread | None = None

    @property
    def layers(self) -> int:
        return self._reference.layers

    def take(self, best: Executor | None, name: str, measured: Sequence[Measured]) -> None:
        """Run `best` from the next batch on. None stands for the reference."""
        self._best, self.name, self.measured = best or self._reference, name, tuple(measured)

    def lose(self, why: str) -> None:
        """Leave the device, which has failed: the reference runs from the next batch on."""
        self.take(None, REFERENCE, ())
        self.fault = why

    def choose(self, work: Callable[[threading.Event], None]) -> threading.Thread:
        """Run `work` on a thread: it does what is missing until the fastest executor is known.

        `work` must end soon after the event that it gets is set.
        """
        self._work = threading.Thread(target=work, args=(self._ended,), name="hmi-choose", daemon=True)
        self._work.start()
        return self._work

    def settle(self) -> None:
        """Wait until the choice has ended. Blocks: some seconds, if the root was not measured here before."""
        if self._work is not None:
            self._work.join()

    def close(self) -> None:
        """End the choice, if it is under way. Waits for the step that runs, which takes about a second.

        A process that ends while torch runs on a thread is aborted.
        """
        self._ended.set()
        if self._work is not None:
            self._work.join()

    @property
    def precision(self) -> str:
        """The numbers that its products multiply; see `precision.Precision`."""
        return precision_of(self.name)

    def fits(self, key: BatchKey) -> bool:
        return self._for(key).fits(key)

    def space(self, tokens: int) -> Tensor:
        return self._best.space(tokens)  # in host memory, which every executor accepts

    def prefetch(self, modules: Sequence[TenantModule | None]) -> None:
        self._best.prefetch(modules)

    def prepare(self, module: TenantModule, *, exact: bool = False) -> int:
        """See `Executor.prepare`. exact: for requests that ask for exactness."""
        return (self._reference if exact else self._best).prepare(module)

    def run(
        self, key: BatchKey, rows: Rows, modules: Sequence[TenantModule | None], hooks: Sequence[Hook] = ()
    ) -> Iterator[Left]:
        return self._for(key).run(key, rows, modules, hooks)

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


def executor_for(
    root: Root,
    wanted: str = "auto",
    profiles: Profiles | None = None,
    *,
    wait: bool = False,
    device: str = "cpu",
    device_bytes: int = 0,
) -> Chosen:
    """Return an executor that owns the root's upper layers. Prepares the layers in place.

    `wanted` is the setting `precision`. If `profiles` holds the root's times on this machine, the fastest
    executor alone is built, and runs from the first batch on if its kernels were compiled before. Otherwise a
    thread does what is missing while the reference runs: it compiles the kernels, which takes some ten
    seconds, builds all executors and measures them, which takes a second or two, and keeps the times. Tests
    and benchmarks `wait` for it. `device` is the setting: on a CUDA device, its executor runs all but exact
    requests, and nothing else is built or measured unless the device fails.
    """
    there = _on_device(root, wanted, device, device_bytes)
    upper = _Upper(root)
    chosen = Chosen(upper.reference)
    if there is None:
        _on_cpu(chosen, upper, wanted, profiles, at_once=True, wait=wait)
        return chosen
    executor, name = there
    # Without the weak reference, device memory would wait for the garbage collector when the root is dropped:
    # what `chosen` takes refers to `lost`.
    owner = weakref.ref(chosen)

    def lost(why: str) -> None:
        log.error("root %s runs on the CPU from now on: its device has failed (%s)", root.info.name, why)
        left = owner()
        if left is not None:
            left.lose(why)
            _on_cpu(left, upper, wanted, profiles, at_once=False, wait=False)

    chosen.take(Guarded(executor, upper.reference, lost), name, ())
    return chosen


def _on_cpu(
    chosen: Chosen, upper: _Upper, wanted: str, profiles: Profiles | None, *, at_once: bool, wait: bool
) -> None:
    """Let the fastest executor of the CPU run. at_once: on this thread, if that takes less than a second."""
    info = upper.root.info
    if not upper.fits:
        if wanted not in ALLOWED:
            log.warning("root %s runs in fp32: its sizes do not fit the kernels of %s", info.name, wanted)
        return
    known = None if profiles is None else profiles.get(info.name, info.version, fingerprint())
    if at_once and known is not None and _at_hand(fastest(known.measured, wanted).name):
        _choose(chosen, upper, wanted, known, None, NEVER)
        return
    work = chosen.choose(lambda ended: _choose(chosen, upper, wanted, known, profiles, ended))
    if wait:
        work.join()


def _on_device(root: Root, wanted: str, device: str, device_bytes: int) -> tuple[OnDevice, str] | None:
    """The executor on a CUDA device, and its name; None: there is none."""
    if device == "cpu" or not torch.cuda.is_available():
        return None
    from hmi.execution.cuda.choose import cuda_executor

    return cuda_executor(root, wanted, device, device_bytes)


def _silent(step: str, done: int, of: int) -> None:
    """A `Progress` that reports nothing."""


def measure(root: Root, progress: Progress = _silent) -> Profile:
    """Measure all executors of a root on this machine. Prepares its upper layers in place.

    Lets torch run on one thread from now on, as the engine does. Raises RuntimeError if the kernels cannot be
    compiled.
    """
    torch.set_num_threads(1)
    return _measured_all(_Upper(root), progress)


class _Upper:
    """A root's upper layers as they were trained, and the executors made of them, each built once."""

    def __init__(self, root: Root) -> None:
        self.root, self._shape = root, root.info.shape
        self.fits = fits(self._shape.dim, self._shape.heads, self._shape.ffn)
        self._layers = copy.deepcopy(root.upper) if self.fits else None
        pack_upper(root.upper)
        self.reference = PackedExecutor(root.upper, self._shape)
        self._built: dict[str, Executor] = {REFERENCE: self.reference}

    def names(self) -> list[str]:
        """The executors that this processor can run, the reference first."""
        return [REFERENCE, *(f"fused {p}" for p in available() if self.fits)]

    def executor(self, name: str) -> Executor:
        if name not in self._built:
            from hmi.execution.fused import FusedExecutor  # compiles the kernels, or loads them

            assert self._layers is not None
            precision = next(p for p in available() if name == f"fused {p}")
            self._built[name] = FusedExecutor(self._layers, self._shape, precision)
        return self._built[name]

    def close(self) -> None:
        """Give back the memory of all that was not taken."""
        self._layers = None
        self._built.clear()
        give_back_memory()


def _choose(
    chosen: Chosen,
    upper: _Upper,
    wanted: str,
    known: Profile | None,
    profiles: Profiles | None,
    ended: threading.Event,
) -> None:
    """Take the fastest executor. Whatever fails, the reference goes on."""
    name = upper.root.info.name
    try:
        profile = known or _measured_all(upper, ended=ended)
        best = fastest(profile.measured, wanted).name
        if known is not None and not _at_hand(best):
            compile_missing(("encoder",), ended)
        chosen.take(upper.executor(best), best, profile.measured)
        if known is None and profiles is not None:
            told = ", ".join(map(str, profile.measured))
            log.info("root %s is measured and runs on %s (microseconds a token: %s)", name, best, told)
            _keep(profiles, upper.root, profile)
    except Ended:
        log.debug("root %s is not measured: the process ends first", name)  # as after each `hmi infer`
    except Exception:
        log.exception("root %s stays on packed torch: no other executor could be built or measured", name)
    upper.close()


def _keep(profiles: Profiles, root: Root, profile: Profile) -> None:
    try:
        profiles.put(root.info.name, root.info.version, profile)
    except (HmiError, OSError) as error:
        log_failure(log, f"the profile of root {root.info.name} could not be kept", error)


def _measured_all(upper: _Upper, progress: Progress = _silent, ended: threading.Event = NEVER) -> Profile:
    """Build and measure every executor.

    Raises RuntimeError if the kernels cannot be compiled, Ended before the next step once `ended` is set.
    """
    names, measured = upper.names(), list[Measured]()
    if upper.fits:
        progress("compiling", 0, len(names))
        compile_missing(("encoder",), ended)
    dim, longest = upper.root.dim, upper.root.max_length
    probes = {name: tuple(min(n, longest) for n in lengths) for name, lengths in PROBES.items()}
    for step, name in enumerate(names):
        progress(name, step, len(names))
        if ended.is_set():
            raise Ended
        measured.append(_measured(name, upper.executor(name), upper.reference, dim, probes))
    return Profile(machine=fingerprint(), measured_at=now(), batches=probes, measured=tuple(measured))


def _at_hand(name: str) -> bool:
    """Return whether the executor, which was measured here before, can be built in less than a second."""
    return name == REFERENCE or is_compiled("encoder")


@torch.inference_mode()
def _measured(
    name: str, executor: Executor, reference: Executor, dim: int, probes: Mapping[str, Sequence[int]]
) -> Measured:
    times, cosine, g = {}, 1.0, torch.Generator().manual_seed(0)
    for probe, lengths in probes.items():
        rows = Rows.packed(torch.randn(sum(lengths), dim, generator=g), offsets_of(lengths))
        work = _work(executor, rows, len(lengths))
        ours, theirs = work(), _work(reference, rows, len(lengths))()
        close = float(torch.cosine_similarity(ours, theirs).min())
        cosine = min(cosine, close if math.isfinite(close) else -1.0)
        rounds = max(ROUNDS, ROUNDS_TOKENS // sum(lengths))
        times[probe] = 1e6 * min(_seconds(work) for _ in range(rounds)) / sum(lengths)
    return Measured(name=name, us_per_token=times, cosine=cosine)


def _work(executor: Executor, rows: Rows, texts: int) -> Callable[[], Tensor]:
    def work() -> Tensor:
        (left,) = executor.run(BatchKey(("", ""), "cls", exact=False), rows, [None] * texts)
        return left.last

    return work


def _seconds(work: Callable[[], Tensor]) -> float:
    """Return seconds of this thread's processor time, which a busy machine changes less than the clock's."""
    begun = time.thread_time()
    work()
    return time.thread_time() - begun
