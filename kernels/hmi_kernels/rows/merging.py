"""The numba body that merges similar rows of packed texts; `hmi.stages.token_adaptation.hook` is the
reference."""

from __future__ import annotations

from typing import Any

import numpy as np

from hmi_kernels.jit import compiled, reassociated

SMALLEST = 1e-30
"""The least product of two squared lengths: rows of zeros resemble no other."""


@reassociated
def dot(a: Any, b: Any) -> Any:
    """The product of two float32 [dim]."""
    total = np.float32(0.0)
    for j in range(len(a)):
        total += a[j] * b[j]
    return total


@compiled
def merge(x: Any, size: Any, runs: Any, into: Any, out: Any, out_size: Any) -> Any:
    """Fill out float32 [rows', dim] and out_size float32 [rows'] with the rows that are left.

    x float32 [rows, dim] and size float32 [rows]: the rows, and the number of tokens that each stands for.
    runs int64 [runs, 3]: first row, number of rows, and the number of rows to lose, at most half. The rows
    of a run are alternately in A and in B, the first one in A. Of the rows of A, those that resemble a row of
    B most (cosine) go: each becomes a part of that row's mean, weighed by size. Ties go to the earlier row.
    Runs are ascending and do not overlap; rows outside of runs stay. rows' is rows less what the runs lose.
    into int64 [rows]: is filled with the row of `out` that stands for each row. A run's result has the same
    bits in every batch.
    """
    rows = len(x)
    longest = 0
    for r in range(len(runs)):
        longest = max(longest, runs[r, 1])
    square, score = np.empty(longest, np.float32), np.empty((longest + 1) // 2, np.float64)
    best, goes = np.empty((longest + 1) // 2, np.int64), np.empty(longest, np.bool_)
    to, done = 0, 0
    for r in range(len(runs) + 1):
        start, count, lose = (runs[r, 0], runs[r, 1], runs[r, 2]) if r < len(runs) else (rows, 0, 0)
        for i in range(done, start):
            out[to], out_size[to], into[i] = x[i], size[i], to
            to += 1
        done = start + count
        goes[:count] = False
        if lose > 0:
            _match(x, start, count, square, score, best)
            _choose(score, (count + 1) // 2, lose, goes)
        for i in range(count):
            if goes[i]:
                continue
            at = start + i
            out[to], out_size[to], into[at] = x[at], size[at], to
            if lose > 0 and i % 2 == 1:
                _gather(x, size, start, count, i, best, goes, out[to], out_size, to, into)
            to += 1


@compiled
def _match(x: Any, start: Any, count: Any, square: Any, score: Any, best: Any) -> Any:
    """Fill best and score with the row of B that resembles each row of A most, and how much."""
    for i in range(count):
        square[i] = dot(x[start + i], x[start + i])
    for a in range(0, count, 2):
        most, which = -np.inf, 1
        for b in range(1, count, 2):
            both = np.float64(square[a]) * np.float64(square[b])
            like = np.float64(dot(x[start + a], x[start + b])) / np.sqrt(max(both, SMALLEST))
            if like > most:
                most, which = like, b
        score[a // 2], best[a // 2] = most, which


@compiled
def _choose(score: Any, count: Any, lose: Any, goes: Any) -> Any:
    """Mark the `lose` rows of A with the greatest scores, of equal ones the earlier."""
    order = np.argsort(-score[:count], kind="mergesort")
    for k in range(lose):
        goes[2 * order[k]] = True


@compiled
def _gather(
    x: Any,
    size: Any,
    start: Any,
    count: Any,
    b: Any,
    best: Any,
    goes: Any,
    row: Any,
    out_size: Any,
    to: Any,
    into: Any,
) -> Any:
    """Make `row`, which is a copy of row b of a run, the mean of it and of the rows that go into it."""
    total = size[start + b]
    for a in range(0, count, 2):
        if goes[a] and best[a // 2] == b:
            if total == size[start + b]:
                for j in range(len(row)):
                    row[j] *= total
            part = size[start + a]
            for j in range(len(row)):
                row[j] += part * x[start + a, j]
            total += part
            into[start + a] = to
    if total != size[start + b]:
        for j in range(len(row)):
            row[j] /= total
        out_size[to] = total
