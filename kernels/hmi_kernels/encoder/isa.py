"""What the processor can do, as the compiler of the kernels sees it."""

from __future__ import annotations

from functools import cache
from typing import Any, cast

import numba
from numba.core.registry import cpu_target

FLOAT, BFLOAT, INT8 = 0, 1, 2
"""The kinds of numbers that a layer's products multiply: float32, bfloat16, and 8-bit integers with a scale
for each row and column. Sums are float32, or int32 of 8-bit integers."""

NEEDS = {BFLOAT: "avx512bf16", INT8: "avx512vnni"}
"""The feature that multiplies numbers of a kind."""


@cache
def has(feature: str) -> bool:
    """Whether machine code for this processor may use an LLVM feature, `avx512f` say.

    NUMBA_CPU_NAME and NUMBA_CPU_FEATURES count, so a test can compile for another processor.
    """
    config: Any = cast(Any, numba).config
    if config.CPU_NAME is not None and config.CPU_FEATURES is None:
        return False
    magic: Any = cpu_target.target_context.codegen().magic_tuple()
    return f"+{feature}" in str(magic[2]).split(",")


def kinds() -> list[int]:
    """The kinds that have instructions of their own here."""
    return [kind for kind in (FLOAT, BFLOAT, INT8) if kind not in NEEDS or has(NEEDS[kind])]
