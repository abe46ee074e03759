"""The numba body of heads that read [CLS] and attend to the rows before it, for packed texts of one head."""

from __future__ import annotations

from typing import Any

import numpy as np

from hmi_kernels.jit import reassociated


@reassociated
def cls_head(first: Any, before: Any, offsets: Any, queries: Any, weight: Any, bias: Any, out: Any) -> Any:
    """Fill out float32 [texts, outputs] with a head's outputs. A text's are the same bits in every batch.

    first float32 [texts, dim]: each text's [CLS] row. before float32 [tokens, dim]: text i has the rows
    offsets[i]:offsets[i + 1], one at least. queries float32 [queries, dim], possibly none. weight float32
    [outputs, (2 + queries)·dim] is applied to [CLS], the mean of the rows, and for each query the mean
    weighted by the softmax of its products with them. bias float32 [outputs].
    """
    texts, dim = first.shape
    count, longest = len(queries), 0
    for t in range(texts):
        longest = max(longest, offsets[t + 1] - offsets[t])
    shares = np.empty((count, longest), np.float32)
    read = np.empty((1 + count, dim), np.float32)
    for t in range(texts):
        start, end = offsets[t], offsets[t + 1]
        for q in range(count):
            _attend(before, start, end, queries[q], shares[q])
        read[:] = 0.0
        for i in range(start, end):
            row = before[i]
            for j in range(dim):
                read[0, j] += row[j]
            for q in range(count):
                share, mine = shares[q, i - start], read[1 + q]
                for j in range(dim):
                    mine[j] += share * row[j]
        for j in range(dim):
            read[0, j] /= np.float32(end - start)
        for o in range(len(bias)):
            total = bias[o]
            of_cls, row = weight[o], first[t]
            for j in range(dim):
                total += of_cls[j] * row[j]
            for q in range(1 + count):
                at, mine = weight[o, (1 + q) * dim :], read[q]
                for j in range(dim):
                    total += at[j] * mine[j]
            out[t, o] = total


@reassociated
def _attend(before: Any, start: Any, end: Any, query: Any, shares: Any) -> Any:
    """Fill shares float32 [end - start or more] with the softmax of the query's products with these rows."""
    most = np.float32(-np.inf)
    for i in range(start, end):
        row, product = before[i], np.float32(0.0)
        for j in range(len(query)):
            product += query[j] * row[j]
        shares[i - start] = product
        most = max(most, product)
    total = np.float32(0.0)
    for i in range(end - start):
        shares[i] = np.exp(shares[i] - most)
        total += shares[i]
    for i in range(end - start):
        shares[i] /= total
