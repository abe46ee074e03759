"""Checking what a caller hands over as n-grams and representations."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kernels.layout import ROLES
from plot_store.errors import Invalid


def check_order(order: int) -> int:
    """The order itself; Invalid unless 3, 2 or 1."""
    if order not in ROLES:
        raise Invalid(f"order {order!r} is unknown: use 3 (trigram), 2 (bigram) or 1 (unigram)")
    return order


def check_ngrams(order: int, ngrams: NDArray[np.uint32], vocab: int) -> NDArray[np.uint32]:
    """Integers [m, order] as uint32 [m, order]. Raises Invalid for another shape or an id outside the vocabulary."""
    check_order(order)
    array = np.asarray(ngrams)
    if array.ndim != 2 or array.shape[1] != order or array.dtype.kind not in "iu":
        raise Invalid(
            f"n-grams of order {order} must be integers of shape [m, {order}], not {array.dtype}{array.shape}"
        )
    if array.size and (int(array.min()) < 0 or int(array.max()) >= vocab):
        raise Invalid(f"a token id is outside 0..{vocab - 1}: use the tokenizer that the schema names")
    return np.ascontiguousarray(array, np.uint32)


def check_rows(order: int, count: int, rows: NDArray[np.float32], dim: int) -> NDArray[np.float32]:
    """Floats [count, roles, dim] as contiguous float32. Raises Invalid for another shape or type."""
    array = np.asarray(rows)
    if array.shape != (count, ROLES[order], dim) or array.dtype.kind != "f":
        raise Invalid(
            f"representations of order {order} must be floats of shape {(count, ROLES[order], dim)}, "
            f"not {array.dtype}{array.shape}"
        )
    return np.ascontiguousarray(array, np.float32)
