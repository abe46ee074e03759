"""Encoder layers over the packed rows of many texts, with a low-rank module of each text's own, on one CPU
thread.

`ops` is the face. `tile` is the innermost product, `product` a matrix's, `rowwise` what happens to single
rows, `attention` one text's attention, `change` the modules, `layer` the whole; `pack` makes the layouts that
they read.
"""

from __future__ import annotations

FLOAT, BFLOAT, INT8, INT16 = range(4)
"""The kinds of numbers that a layer's products multiply: float32, bfloat16, and integers of 8 or 16 bits with
a scale for each row and column. Sums are float32, or int32 of integers."""


def fits(dim: int, heads: int, inner: int) -> bool:
    """Return whether the kernels can run layers of these sizes; `inner` is the FFN's. Imports no compiler."""
    return dim % 64 == 0 and inner % 64 == 0 and dim % heads == 0 and dim // heads % 16 == 0
