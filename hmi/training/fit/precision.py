"""The choice of a number format that this CPU computes fast."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def arithmetic(*, bf16: bool) -> AbstractContextManager[object]:
    """A context for matrix products in bf16, if `bf16` is set and the CPU computes it natively.
    bf16 is then 2 to 3 times faster; on other CPUs it would be several times slower."""
    return torch.autocast("cpu", torch.bfloat16) if bf16 and native_bf16() else nullcontext()


def native_bf16() -> bool:
    return torch.backends.mkldnn.is_available() and bool(torch.cpu._is_avx512_bf16_supported())
