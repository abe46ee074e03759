"""The choice of the device's executor. It is taken only if it agrees with the reference on this device."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

import torch
from hmi_kernels.modules import ops
from hmi_kernels.modules.device import CupyLauncher, NoDevice
from torch import Tensor, nn

from hmi.core import ModuleSpec
from hmi.errors import InvalidInput
from hmi.execution.batch import BatchKey, Rows, offsets_of
from hmi.execution.cuda.changes import WayName
from hmi.execution.cuda.decoder import CudaDecoder
from hmi.execution.cuda.device import Device
from hmi.execution.cuda.executor import DTYPES, SLOT_BYTES, CudaExecutor
from hmi.execution.cuda.graphs import RECURS
from hmi.execution.cuda.torch_device import TorchDevice
from hmi.execution.cuda.ways import Ways
from hmi.execution.decoding.base import PAGE, Part, StepExecutor
from hmi.execution.decoding.paged import LEAST_PAGES, page_bytes
from hmi.execution.decoding.plain import PlainDecoder
from hmi.execution.decoding.scores import matrix_of
from hmi.execution.fastest import MIN_COSINE
from hmi.execution.packed import PackedExecutor
from hmi.model.network.shape import DecoderShape, EncoderShape
from hmi.model.sources.generative_root import UpperDecoder
from hmi.model.sources.root import Root
from hmi.model.tenant.modules import TenantModule, new_module
from hmi.modulespec import GATED

log = logging.getLogger("hmi.execution")
LENGTHS = (9, 40, 17, 64, 3, 25, 31, 12) * 2
"""Tokens of each text of the measured batch. Each text is another tenant's."""
SHORT = (9, 12, 3, 16) * 4
"""The same of the batch that graphs are measured with: its launches take long beside its work."""
CHUNKS = (9, 40, 3, 17)
"""Tokens of each sequence that a step executor is measured with. Each is another tenant's."""
LANGUAGE_MODEL = "of a language model"
UP_STD = 0.3
"""The standard deviation of `up` in the measured modules of encoders."""
DECODER_UP_STD = 0.1
"""The same for language models, which have more layers. With larger ones, rounding in bf16 alone takes a row
of SmolLM2-135M too far from the reference."""
ROUNDS = 5
"""Timed runs of each way. The fastest counts."""


def check_device(wanted: str) -> None:
    """Raise InvalidInput if the setting `device` asks for a device that torch does not find."""
    if wanted == "cuda" and not torch.cuda.is_available():
        raise InvalidInput(
            "device = 'cuda': torch finds no CUDA device; check the driver with nvidia-smi and that torch "
            "is a build for CUDA, or use auto",
            field="device",
        )


def on_device(wanted: str) -> bool:
    """Return whether roots run on a CUDA device in the precisions that it has, by the setting `device`."""
    return wanted != "cpu" and torch.cuda.is_available()


def path(device: str, precision: str) -> tuple[str | None, str]:
    """Which path roots take by these settings: the precision on a CUDA device, and what computes there; or
    None, and why the CPU runs them."""
    if not on_device(device):
        return None, f"device = {device}" if device == "cpu" else "torch finds no CUDA device"
    name = torch.cuda.get_device_name()
    chosen = precision_on_device(precision, torch.cuda.is_bf16_supported(including_emulation=False))
    if chosen is None:
        return None, f"{name} does not run precision = {precision}"
    return chosen, name


def cuda_executor(
    root: Root, precision: str, device: str, slot_bytes: int = SLOT_BYTES
) -> tuple[CudaExecutor, str] | None:
    """Return an executor of a root's upper layers, as they were trained, and its name; None: run on the CPU.

    device, precision: the settings. A failure on this device is logged, and the CPU goes on.
    """
    chosen, why = path(device, precision)
    if chosen is None:
        if on_device(device):
            log.warning("root %s runs on the CPU: %s", root.info.name, why)
        return None
    try:
        kernels = kernels_for(root.info.name)
        found = sound_executor(
            root.upper, root.info.shape, chosen, TorchDevice(kernels=kernels), slot_bytes, kernels
        )
    except Exception:
        log.exception("root %s runs on the CPU: the device could not be used", root.info.name)
        return None
    log.info("root %s runs on the device in %s, modules by %s", root.info.name, chosen, found.ways.name)
    return found, f"cuda {chosen}"


def cuda_decoder(
    upper: UpperDecoder, precision: str, device: str, memory: int, slot_bytes: int = SLOT_BYTES
) -> CudaDecoder | None:
    """Return a step executor of a language model's upper layers, with pages that take `memory` bytes of the
    device; None: write on the CPU.

    device, precision: the settings. A failure on this device is logged, and the CPU goes on.
    """
    chosen, why = path(device, precision)
    if chosen is None:
        if on_device(device):
            log.warning("a language model writes on the CPU: %s", why)
        return None
    pages = max(LEAST_PAGES, memory // page_bytes(upper, DTYPES[chosen].itemsize))
    try:
        kernels = kernels_for(LANGUAGE_MODEL)
        found = sound_decoder(upper, pages, chosen, TorchDevice(kernels=kernels), slot_bytes, kernels)
    except Exception:
        log.exception("a language model writes on the CPU: the device could not be used")
        return None
    log.info("a language model writes on the device in %s, modules by %s", chosen, found.ways.name)
    return found


def precision_on_device(wanted: str, bf16: bool) -> str | None:
    """The precision that a device runs under the setting; None: none."""
    if wanted == "auto":
        return "bf16" if bf16 else "fp32"
    return wanted if wanted == "fp32" or (wanted == "bf16" and bf16) else None


def sound_executor(
    upper: nn.ModuleList,
    shape: EncoderShape,
    precision: str,
    device: Device,
    slot_bytes: int,
    launcher: ops.Launcher | None,
) -> CudaExecutor:
    """Build an executor with the fastest way of computing modules, of those that agree with the reference.

    Raises RuntimeError if none does.
    """
    ours = CudaExecutor(upper, shape, precision, device, slot_bytes=slot_bytes)
    modules, rows = _tenants(shape, len(upper), len(LENGTHS)), _rows(shape, LENGTHS)
    wanted = _answer(PackedExecutor(upper, shape), rows, modules)
    times = _take_fastest(ours, lambda: _answer(ours, rows, modules), wanted, launcher)
    if "kernel" in times:
        _try_graphs(ours, PackedExecutor(upper, shape), modules)
    return ours


def sound_decoder(
    upper: UpperDecoder,
    pages: int,
    precision: str,
    device: Device,
    slot_bytes: int,
    launcher: ops.Launcher | None,
) -> CudaDecoder:
    """Build a step executor with the fastest way of computing modules, of those that agree with the
    reference. Raises RuntimeError if none does.
    """
    ours = CudaDecoder(upper, pages, precision, device, slot_bytes=slot_bytes)
    modules = _tenants(upper.shape, len(upper.layers), len(CHUNKS))
    wanted = _written(PlainDecoder(upper, LEAST_PAGES), upper, modules)
    _take_fastest(ours, lambda: _written(ours, upper, modules), wanted, launcher)
    return ours


def _take_fastest(
    ours: CudaExecutor | CudaDecoder,
    answer: Callable[[], Tensor],
    wanted: Tensor,
    launcher: ops.Launcher | None,
) -> dict[WayName, float]:
    """Give an executor the fastest way of computing modules, of those that agree with the reference.

    answer: runs the executor, and returns rows. wanted: the reference's. Returns the seconds of each way
    that agrees. Raises RuntimeError if none does.
    """
    names: list[WayName] = ["loop", "groups"]
    if launcher is not None:
        names.append("kernel")
    times: dict[WayName, float] = {}
    for name in names:
        ours.ways = Ways(name, launcher)
        try:
            close = float(torch.cosine_similarity(answer(), wanted).min())
        except Exception:
            log.exception("modules by %s fail on this device", name)
            continue
        if close >= MIN_COSINE:  # not if it is NaN
            times[name] = min(_timed(answer))
        else:
            log.error("modules by %s are wrong on this device: a row has the cosine %s", name, close)
    if not times:
        raise RuntimeError("no way of computing modules agrees with the reference on this device")
    ours.ways = Ways(min(times, key=lambda name: times[name]), launcher if "kernel" in times else None)
    log.debug("modules: %s", ", ".join(f"{name} {1e3 * t:.2f} ms" for name, t in times.items()))
    return times


def _try_graphs(ours: CudaExecutor, reference: PackedExecutor, modules: Sequence[TenantModule]) -> None:
    """Let recurring shapes run as graphs if they agree with the reference, and take less time."""
    rows = _rows(ours.shape, SHORT)
    wanted, without = _answer(reference, rows, modules), min(_timed(lambda: _answer(ours, rows, modules)))
    ours.graphs.on = True
    try:
        for _ in range(RECURS):
            replayed = _answer(ours, rows, modules)
        captured, _ = ours.graphs.held()
        close = float(torch.cosine_similarity(replayed, wanted).min())
        took = min(_timed(lambda: _answer(ours, rows, modules)))
        ours.graphs.on = bool(captured) and close >= MIN_COSINE and took < without
        if not close >= MIN_COSINE:
            log.error("graphs are wrong on this device: a row has the cosine %s", close)
        log.debug("graphs: %.2f ms, without %.2f ms, %d captured", 1e3 * took, 1e3 * without, captured)
    except Exception:
        ours.graphs.on = False
        log.exception("graphs fail on this device")
    ours.graphs.forget()  # this thread runs no batches


def kernels_for(root: str) -> ops.Launcher | None:
    """The compiled kernels of modules; None, logged, if cupy is not installed."""
    try:
        return CupyLauncher()
    except NoDevice as error:
        log.info("root %s runs without the kernels of modules: %s", root, error)
        return None


def _rows(shape: EncoderShape, wanted: Sequence[int]) -> Rows:
    lengths = [min(n, shape.positions) for n in wanted]
    g = torch.Generator().manual_seed(0)
    return Rows.packed(torch.randn(sum(lengths), shape.dim, generator=g), offsets_of(lengths))


def _tenants(shape: EncoderShape | DecoderShape, depth: int, count: int) -> list[TenantModule]:
    """LoRAs of two ranks with random weights, which change a row about as much as the root's own maps do
    (a language model's: less).

    So a row without its change is far from the reference.
    """
    sites, std = (None, UP_STD) if isinstance(shape, EncoderShape) else (GATED, DECODER_UP_STD)
    g, made = torch.Generator().manual_seed(1), []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        for i in range(count):
            spec = ModuleSpec(kind="lora", rank=8 if i % 4 else 12, sites=sites)
            module = new_module(spec, shape, depth)
            for name, p in module.named_parameters():
                if name.endswith(".up"):
                    p.data.copy_(torch.randn(p.shape, generator=g) * std)
            made.append(module.eval().requires_grad_(False))
    return made


@torch.inference_mode()
def _answer(
    executor: CudaExecutor | PackedExecutor, rows: Rows, modules: Sequence[TenantModule | None]
) -> Tensor:
    key = BatchKey(("", ""), "rows", exact=False)
    return torch.cat([left.last for left in executor.run(key, rows, modules)])


@torch.inference_mode()
def _written(executor: StepExecutor, upper: UpperDecoder, modules: Sequence[TenantModule]) -> Tensor:
    """Read a chunk of each of some sequences, then a token of each. Returns the scores after each of both,
    but those of id 0, less their mean: [2 · sequences, vocab - 1]. The mean changes no probability, and
    would be most of a row."""
    words, g = upper.scores.weight, torch.Generator().manual_seed(2)
    firsts = [-(-(count + 1) // PAGE) for count in CHUNKS]
    tables = [range(end - count, end) for count, end in zip(firsts, accumulate(firsts), strict=True)]
    found = []
    for begins, counts in (((0,) * len(CHUNKS), CHUNKS), (CHUNKS, (1,) * len(CHUNKS))):
        each = zip(begins, counts, tables, modules, strict=True)
        parts = [Part(begin, count, table, module, True) for begin, count, table, module in each]
        ids = torch.randint(1, len(words), (sum(counts),), generator=g)
        rows = executor.step(words[ids].float(), parts)
        found.append(matrix_of(rows)[:, 1 : len(words)])
    scores = torch.cat(found)
    return scores - scores.mean(1, keepdim=True)


def _timed(work: Callable[[], object]) -> Iterator[float]:
    """Seconds of each of several runs."""
    for _ in range(ROUNDS):
        yield _seconds(work)


def _seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun
