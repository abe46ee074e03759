"""The precisions of executors. This module compiles no kernels."""

from __future__ import annotations

from typing import Literal

from hmi_kernels.encoder import BFLOAT, FLOAT, INT8, INT16

Precision = Literal["fp32", "bf16", "int16", "int8"]
"""The numbers that an executor's products multiply."""
KINDS: dict[Precision, int] = {"fp32": FLOAT, "bf16": BFLOAT, "int16": INT16, "int8": INT8}
"""The kernels' names of the precisions."""


def available() -> list[Precision]:
    """The precisions that this processor has instructions for."""
    from hmi_kernels.encoder.isa import kinds  # numba, which takes a third of a second

    here = kinds()
    return [name for name, kind in KINDS.items() if kind in here]
