"""numba body that validates a ragged batch before a kernel reads it."""

from __future__ import annotations

from typing import Any

from hmi_kernels.jit import compiled

OK, BAD_OFFSETS, BAD_TOKEN = 0, -1, -2


@compiled
def checked(tokens: Any, offsets: Any, vocab: Any) -> Any:
    """OK, BAD_OFFSETS or BAD_TOKEN. After OK no kernel reads outside the arrays."""
    if offsets.size < 1 or offsets[0] != 0 or offsets[offsets.size - 1] != tokens.size:
        return BAD_OFFSETS
    for t in range(offsets.size - 1):
        if offsets[t + 1] < offsets[t]:
            return BAD_OFFSETS
    for i in range(tokens.size):
        if tokens[i] < 0 or tokens[i] >= vocab:
            return BAD_TOKEN
    return OK
