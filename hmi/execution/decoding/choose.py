"""The choice of a language model's step executor."""

from __future__ import annotations

import logging

from hmi_kernels.compile import GENERATING

from hmi.errors import Unavailable
from hmi.execution.compiling import CURE, compile_missing
from hmi.execution.decoding.base import PAGE, StepExecutor
from hmi.execution.decoding.plain import PlainDecoder
from hmi.execution.precision import KINDS, Precision, available
from hmi.model.sources.generative_root import UpperDecoder

log = logging.getLogger("hmi.execution")
LEAST_PAGES = 64
"""Pages of an executor at the least, whatever memory the setting gives."""


def step_executor(upper: UpperDecoder, wanted: str, memory: int) -> StepExecutor:
    """Return an executor of a root's upper layers, with pages that take `memory` bytes.

    wanted: the setting `precision`. auto: bf16 if the processor can, else fp32. Layers of sizes for which
    there is no compiled kernel run in torch, in fp32. The first executor of an installation compiles the
    kernels, which takes half a minute. Raises Unavailable if they cannot be compiled.
    """
    try:
        compile_missing(GENERATING)
    except RuntimeError as error:
        raise Unavailable(f"{error}; HMI cannot write without them: {CURE}") from error
    from hmi.execution.decoding.compiled import CompiledDecoder  # which loads the kernels

    precision: Precision = next((kind for kind in KINDS if kind == wanted), "fp32")
    if wanted == "auto":
        precision = "bf16" if "bf16" in available() else "fp32"
    shape, layers = upper.shape, len(upper.layers)
    number = 4 if precision == "fp32" else 2
    page = layers * 2 * shape.kv_heads * PAGE * shape.head_dim * number
    pages = max(LEAST_PAGES, memory // page)
    try:
        return CompiledDecoder(upper, pages, precision)
    except ValueError as error:
        log.warning("a language model runs in torch, which is slow: %s", error)
        return PlainDecoder(upper, pages)
