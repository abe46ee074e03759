"""Layers of language models over rows of many sequences, each row with a low-rank module of its own, on one
CPU thread.

Keys and values lie in pages, which a sequence need not have side by side. `ops` is the face, `layer` the
whole layer, `attention` that of one row over its pages, `rowwise` what happens to single rows. The products
and the modules are those of `hmi_kernels.encoder`.
"""

from __future__ import annotations

PAGE = 16
"""Tokens of a page: the lanes of a vector."""


def fits(dim: int, heads: int, kv_heads: int, head: int, inner: int) -> bool:
    """Return whether the kernels can run layers of these sizes. head: numbers of an attention head; inner:
    the FFN's. Imports no compiler."""
    whole = (dim, inner, heads * head, kv_heads * head)
    return not any(size % 64 for size in whole) and head % 32 == 0 and heads % kv_heads == 0
