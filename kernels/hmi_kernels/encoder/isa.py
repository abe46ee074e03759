"""The processor's abilities, as the compiler of the kernels sees them."""

from __future__ import annotations

from functools import cache
from typing import Any

from numba.core.registry import cpu_target

from hmi_kernels.encoder import BFLOAT, FLOAT, INT8, INT16

NEEDS = {FLOAT: (), BFLOAT: ("avx512bf16",), INT8: ("avx512vnni", "avx512bf16"), INT16: ("avx2",)}
"""The LLVM features that a kind needs. Modules of int8 layers are bfloat16."""


@cache
def has(feature: str) -> bool:
    """Return whether machine code for this processor may use an LLVM feature, for example `avx512f`.

    NUMBA_CPU_NAME and NUMBA_CPU_FEATURES together let a test compile for another processor.
    """
    magic: Any = cpu_target.target_context.codegen().magic_tuple()
    return f"+{feature}" in str(magic[2]).split(",")


def able(kind: int) -> bool:
    """Return whether this processor has the instructions of a kind."""
    return all(has(feature) for feature in NEEDS[kind])


def kinds() -> list[int]:
    """The kinds that this processor has instructions for. Compiles nothing."""
    return [kind for kind in NEEDS if able(kind)]
