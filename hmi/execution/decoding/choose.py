"""The choice of a language model's step executor."""

from __future__ import annotations

import logging
from functools import partial

import torch
from hmi_kernels.compile import GENERATING

from hmi.errors import Unavailable
from hmi.execution.compiling import CURE, compile_missing
from hmi.execution.decoding.base import StepExecutor
from hmi.execution.decoding.paged import LEAST_PAGES, page_bytes
from hmi.execution.decoding.plain import PlainDecoder
from hmi.execution.guarded import GuardedSteps, StepsOnDevice
from hmi.execution.precision import KINDS, Precision, available
from hmi.model.sources.generative_root import UpperDecoder

log = logging.getLogger("hmi.execution")
QUICK: tuple[Precision, ...] = ("bf16", "int16")
"""The precisions that are faster than fp32 and change little."""


def step_executor(
    upper: UpperDecoder, wanted: str, memory: int, device: str = "cpu", device_bytes: int = 0
) -> StepExecutor:
    """Return an executor of a root's upper layers, with pages that take `memory` bytes.

    wanted: the setting `precision`. auto: the first of QUICK that the processor can, else fp32; on a device
    bf16 if it can. Layers of sizes for which there is no compiled kernel run in torch, in fp32. device,
    device_bytes: the settings. On a CUDA device, the pages and `device_bytes` of modules are in the device's
    memory; the CPU follows if the device fails. The first executor of an installation compiles the kernels,
    which takes half a minute. Raises Unavailable if they cannot be compiled.
    """
    try:
        compile_missing(GENERATING)
    except RuntimeError as error:
        raise Unavailable(f"{error}; HMI cannot write without them: {CURE}") from error
    there = _on_device(upper, wanted, memory, device, device_bytes)
    if there is None:
        return _on_cpu(upper, wanted, memory, LEAST_PAGES)

    def lost(why: str) -> None:
        log.error("a language model writes on the CPU from now on: its device has failed (%s)", why)

    return GuardedSteps(there, partial(_on_cpu, upper, wanted, memory), lost)


def _on_cpu(upper: UpperDecoder, wanted: str, memory: int, least: int) -> StepExecutor:
    """least: the least number of pages."""
    from hmi_kernels.encoder.tile import number_bytes

    from hmi.execution.decoding.compiled import CompiledDecoder  # which loads the kernels

    precision: Precision = next((kind for kind in KINDS if kind == wanted), "fp32")
    if wanted == "auto":
        here = available()
        precision = next((name for name in QUICK if name in here), "fp32")
    pages = max(least, memory // page_bytes(upper, number_bytes(KINDS[precision])))
    try:
        return CompiledDecoder(upper, pages, precision)
    except ValueError as error:
        log.warning("a language model runs in torch, which is slow: %s", error)
        return PlainDecoder(upper, pages)


def _on_device(
    upper: UpperDecoder, wanted: str, memory: int, device: str, device_bytes: int
) -> StepsOnDevice | None:
    """The executor on a CUDA device; None: there is none."""
    if device == "cpu" or not torch.cuda.is_available():
        return None
    from hmi.execution.cuda.choose import cuda_decoder

    return cuda_decoder(upper, wanted, device, memory, device_bytes)
