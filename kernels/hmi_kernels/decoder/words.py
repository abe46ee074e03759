"""The scores of all words as the next token, and the best of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmi_kernels.decoder.layer import BLOCK
from hmi_kernels.decoder.rowwise import rms_normed
from hmi_kernels.encoder import room as rooms
from hmi_kernels.encoder.product import multiply
from hmi_kernels.encoder.room import operand
from hmi_kernels.encoder.tile import STRIDE
from hmi_kernels.encoder.vectors import F32, I64, LANES, Vectors, vectorised
from hmi_kernels.jit import compiled, get, load_f32, put, store_i64, store_u32, whole

GROUP = 64
"""Scores whose greatest is known: those of a panel."""
LEAST = np.uint32(0xFF800000)
"""The bits of -inf."""


@vectorised(3)
def _greatest(v: Vectors, row: Any, groups: Any, out: Any) -> None:
    """out [groups] = the greatest of each GROUP numbers of a row, float32."""

    def group(i: Any, _: list[Any]) -> list[Any]:
        at = v.at(row, v.scaled(i, 4 * GROUP))
        most = v.load(at)
        for j in range(1, GROUP // LANES):
            most = v.most(v.load(v.at(at, 4 * LANES * j)), most)
        v.store(v.greatest(most), v.at(out, v.scaled(i, 4)))
        return []

    v.loop(groups, [], group)


@whole
def _first_of(numbers: Any, count: Any) -> Any:
    """Return the place of the greatest of so many float32, of equal ones the first. Not-a-number is none."""
    found, most = 0, load_f32(numbers)
    for i in range(1, count):
        x = load_f32(numbers + 4 * i)
        if x > most or (x == x and most != most):
            found, most = i, x
    return found


@whole
def score(
    kind: Any,
    words: Any,
    x: Any,
    rows: Any,
    d: Any,
    gain: Any,
    eps: Any,
    vocab: Any,
    room: Any,
    out: Any,
    tops: Any,
    firsts: Any,
) -> None:
    """out float32 [rows, panels, GROUP] = RMSNorm(x float32 [rows, dim]) · the matrix `words`; tops float32
    [rows, panels], the greatest of each panel; firsts int64 [rows], the place of the greatest of all, of
    equal ones the first. Word 0, and those from `vocab` on, are -inf."""
    panels = (vocab + GROUP - 1) // GROUP
    middle, step = get(room, rooms.MIDDLE), STRIDE * panels
    put(room, rooms.CHANGES, 0)
    put(room, rooms.FETCH_LEFT, 0)
    for begin in range(0, rows, BLOCK):
        n = min(BLOCK, rows - begin)
        for i in range(n):
            rms_normed(x + 4 * d * (begin + i), gain, middle + 4 * d * i, eps, d // 16)
        operand(kind, room, middle, n, d)
        for p in range(panels):
            to = out + begin * step + p * STRIDE
            multiply(room, kind, words, n, p, p + 1, panels, to, step)
            for i in range(n):
                if p == 0:
                    store_u32(to + i * step, LEAST)
                for j in range(vocab - GROUP * p, GROUP):
                    store_u32(to + i * step + 4 * j, LEAST)
                _greatest(to + i * step, 1, tops + 4 * (panels * (begin + i) + p))
    for i in range(rows):
        group = _first_of(tops + 4 * panels * i, panels)
        at = GROUP * group + _first_of(out + i * step + STRIDE * group, GROUP)
        store_i64(firsts + 8 * i, at)


@vectorised(5)
def _exponentials(v: Vectors, row: Any, highest: Any, scale: Any, groups: Any, out: Any) -> None:
    """out = the sum of e^(scale (x - highest)) over a row of whole groups; highest, scale, out: addresses
    of a float32."""
    top, factor = (v.spread(v.load(at, F32)) for at in (highest, scale))

    def each(i: Any, carried: list[Any]) -> list[Any]:
        z = v.b.fmul(v.b.fsub(v.load(v.at(row, v.scaled(i, 4 * LANES))), top), factor)
        there = v.b.fcmp_ordered(">", z, v.const(-87.0))
        return [v.b.fadd(carried[0], v.b.select(there, v.exp(z), v.const(0.0)))]

    (total,) = v.loop(v.b.mul(groups, I64(GROUP // LANES)), [v.const(0.0)], each)
    v.store(v.total(total), out)


# A description that is called by name in `best`, whose arguments are no addresses, needs a kernel around it.
@whole
def greatest(row: Any, groups: Any, out: Any) -> None:
    _greatest(row, groups, out)


@whole
def exponentials(row: Any, highest: Any, scale: Any, groups: Any, out: Any) -> None:
    _exponentials(row, highest, scale, groups, out)


@compiled
def best(
    row: NDArray[np.float32],
    tops: NDArray[np.float32],
    scale: float,
    ids: NDArray[np.int64],
    found: NDArray[np.float32],
) -> tuple[int, float]:
    """Write the len(ids) best of a row, a multiple of GROUP long, that are neither -inf nor not-a-number.
    tops: the greatest of each GROUP. Returns how many there are, and the logarithm of the sum of the
    exponentials of all numbers times `scale`; -inf if the scale is 0, which says that no sum is wanted."""
    groups, k, count = len(row) // GROUP, len(ids), 0
    factor, total = np.full(1, scale, np.float32), np.zeros(1, np.float32)
    for g in range(groups):
        # Of equal scores the lower id stands first, so a later one has to be greater.
        if count == k and not tops[g] > found[k - 1]:
            continue
        for i in range(g * GROUP, (g + 1) * GROUP):
            x = row[i]
            if not x > -np.inf or (count == k and not x > found[k - 1]):
                continue
            count = min(count + 1, k)
            at = count - 1
            while at > 0 and x > found[at - 1]:
                found[at], ids[at] = found[at - 1], ids[at - 1]
                at -= 1
            found[at], ids[at] = x, i
    if count == 0 or scale == 0:
        return count, -np.inf
    exponentials(row.ctypes.data, found.ctypes.data, factor.ctypes.data, groups, total.ctypes.data)
    return count, scale * found[0] + np.log(total[0])
