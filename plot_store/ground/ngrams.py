"""Checks of a caller's n-grams and vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
from hmi_kernels.lookup.layout import roles
from numpy.typing import NDArray

from plot_store.ground.errors import Invalid
from plot_store.ground.nouns import ORDER_NAMES, Schema


def check_order(order: int, n: int) -> int:
    """Return the order as an int. Raises Invalid unless it is in 1..n."""
    if not isinstance(order, int | np.integer) or isinstance(order, bool) or not 1 <= order <= n:
        known = " or ".join(f"{k} ({ORDER_NAMES[k]})" for k in range(n, 0, -1))
        raise Invalid(f"order {order!r} is unknown where n = {n}: use {known}")
    return int(order)


def check_ngrams(order: int, ngrams: NDArray[np.uint32], schema: Schema) -> NDArray[np.uint32]:
    """Return integers [m, order] as contiguous uint32 [m, order].

    Raises Invalid for another shape or an id outside the vocabulary.
    """
    order = check_order(order, schema.n)
    array = _as_array("ngrams", ngrams)
    if array.ndim != 2 or array.shape[1] != order or array.dtype.kind not in "iu":
        raise Invalid(
            f"n-grams of order {order} must be integers of shape [m, {order}], not {array.dtype}{array.shape}"
        )
    if array.size and (int(array.min()) < 0 or int(array.max()) >= schema.vocab):
        raise Invalid(f"a token id is outside 0..{schema.vocab - 1}: use the tokenizer that the schema names")
    return np.ascontiguousarray(array, np.uint32)


def check_rows(order: int, count: int, rows: NDArray[np.float32], schema: Schema) -> NDArray[np.float32]:
    """Return floats [count, roles, dim] as contiguous float32. Raises Invalid for another shape or type."""
    array, shape = _as_array("rows", rows), (count, roles(schema.n, order, schema.window), schema.dim)
    if array.shape != shape or array.dtype.kind != "f":
        raise Invalid(
            f"representations of order {order} must be floats of shape {shape}, not "
            f"{array.dtype}{array.shape}"
        )
    return np.ascontiguousarray(array, np.float32)


def _as_array(name: str, given: Any) -> NDArray[Any]:
    try:
        return np.asarray(given)
    except ValueError as error:  # a nested list whose parts differ in length
        raise Invalid(f"{name} is not an array ({error}): pass a numpy array") from error
