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
INTEGERS = INT8, INT16
LENGTH, SHORT = 46_300.0, 32_767.0
"""The greatest Euclidean length of a row, or of a column, of 16-bit integers, and the greatest integer. By
the inequality of Cauchy and Schwarz, no sum of the products of a row and a column leaves an int32, nor does
a part of the sum."""


def fits(dim: int, heads: int, inner: int) -> bool:
    """Return whether the kernels can run layers of these sizes; `inner` is the FFN's. Imports no compiler."""
    return dim % 64 == 0 and inner % 64 == 0 and dim % heads == 0 and dim // heads % 16 == 0
