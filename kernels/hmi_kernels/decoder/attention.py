"""Attention of one row to the tokens of its sequence up to itself, whose keys and values lie in pages.

A page holds PAGE tokens of one layer: for each head of keys and values, the keys as columns [head, PAGE],
then the values as rows [PAGE, head]. So a vector of 16 lanes has a number of each key, or 16 numbers of a
value.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from hmi_kernels.decoder import PAGE
from hmi_kernels.decoder.rowwise import loaded
from hmi_kernels.encoder import FLOAT
from hmi_kernels.encoder.rowwise import softmax
from hmi_kernels.encoder.vectors import F32, I64, LANES, Vectors, vectorised
from hmi_kernels.jit import whole

TOGETHER = 4
"""Heads of queries that read a key together."""
CHAINS = 2
"""Sums of a query's products with a page: each product waits for the one before in its sum."""
WIDE = 2
"""Vectors of values that are summed at a time: a head has a multiple of 32 numbers."""
LINE = 64
"""Bytes of a cache line."""


def _page_at(v: Vectors, table: Any, page: Any, base: Any, page_bytes: Any) -> Any:
    number = v.load(v.at(table, v.scaled(page, 8)), I64)
    return v.at(base, v.b.mul(number, page_bytes))


def _scored(
    size: int,
    v: Vectors,
    n: Any,
    q: Any,
    head: Any,
    table: Any,
    pages: Any,
    base: Any,
    page_bytes: Any,
    scores: Any,
    step: Any,
) -> None:
    """n, q, head, table, pages, base, page_bytes, scores, step: scores [n, PAGE pages] = n queries, float32
    [n, head], times the keys of these pages. Rows of scores lie `step` bytes apart."""
    b = v.b

    def product(count: int) -> None:
        def page(j: Any, _: list[Any]) -> list[Any]:
            keys = _page_at(v, table, j, base, page_bytes)

            def numbers_of(i: Any, sums: list[Any]) -> list[Any]:
                after = list(sums)
                for chain in range(CHAINS):
                    at = b.add(v.scaled(i, CHAINS), I64(chain))
                    key_at = v.at(keys, v.scaled(at, size * PAGE))
                    if chain * size * PAGE % LINE == 0:
                        v.prefetch(v.at(key_at, v.scaled(head, 2 * PAGE * size)))
                    key = loaded(v, key_at, size)
                    for r in range(count):
                        word = v.load(v.at(q, b.add(b.mul(v.scaled(head, 4), I64(r)), v.scaled(at, 4))), F32)
                        k = count * chain + r
                        after[k] = v.fma(v.spread(word), key, after[k])
                return after

            sums = v.loop(b.sdiv(head, I64(CHAINS)), [v.const(0.0)] * (CHAINS * count), numbers_of)
            for r in range(count):
                total = b.fadd(sums[r], sums[count + r])
                v.store(total, v.at(scores, b.add(b.mul(step, I64(r)), v.scaled(j, 4 * PAGE))))
            return []

        v.loop(pages, [], page)

    v.switch(n, {count: partial(product, count) for count in range(1, TOGETHER + 1)})


def _mixed(
    size: int,
    v: Vectors,
    n: Any,
    scores: Any,
    step: Any,
    head: Any,
    table: Any,
    tokens: Any,
    base: Any,
    page_bytes: Any,
    out: Any,
) -> None:
    """n, scores, step, head, table, tokens, base, page_bytes, out: out float32 [n, head] = n rows of scores
    times the values of the first `tokens` tokens."""
    b = v.b

    def product(count: int, column: Any) -> None:
        def token(t: Any, sums: list[Any]) -> list[Any]:
            page = _page_at(v, table, b.ashr(t, I64(4)), base, page_bytes)
            inside = b.and_(t, I64(PAGE - 1))
            at = v.at(page, v.scaled(b.add(b.mul(head, I64(PAGE)), b.add(b.mul(head, inside), column)), size))
            for line in range(0, size * LANES * WIDE, LINE):
                v.prefetch(v.at(at, v.at(v.scaled(head, 2 * PAGE * size), line)))
            values = [loaded(v, v.at(at, size * LANES * j), size) for j in range(WIDE)]
            after = []
            for r in range(count):
                share = v.spread(v.load(v.at(scores, b.add(b.mul(step, I64(r)), v.scaled(t, 4))), F32))
                after += [v.fma(share, values[j], sums[WIDE * r + j]) for j in range(WIDE)]
            return after

        sums = v.loop(tokens, [v.const(0.0)] * (count * WIDE), token)
        for r in range(count):
            to = v.at(out, v.scaled(b.add(b.mul(head, I64(r)), column), 4))
            for j in range(WIDE):
                v.store(sums[WIDE * r + j], v.at(to, 4 * LANES * j))

    def rows(count: int) -> None:
        def columns(i: Any, _: list[Any]) -> list[Any]:
            product(count, v.scaled(i, LANES * WIDE))
            return []

        v.loop(b.sdiv(head, I64(LANES * WIDE)), [], columns)

    v.switch(n, {count: partial(rows, count) for count in range(1, TOGETHER + 1)})


_scored_floats, _scored_bfloats = (vectorised(9)(partial(_scored, size)) for size in (4, 2))
_mixed_floats, _mixed_bfloats = (vectorised(9)(partial(_mixed, size)) for size in (4, 2))


@whole
def attend_pages(
    kind: Any,
    q: Any,
    heads: Any,
    kv_heads: Any,
    head: Any,
    factor: Any,
    table: Any,
    tokens: Any,
    base: Any,
    page_bytes: Any,
    scores: Any,
    zeros: Any,
    out: Any,
) -> None:
    """out float32 [heads, head] = attention of a row's queries, float32 [heads, head], to the first
    `tokens` tokens.

    table: the int64 numbers of the sequence's pages. base: page 0 of this layer. scores: room for TOGETHER
    rows of whole pages. factor: the bits of a float32. Neighbouring heads of queries share a head of keys.
    """
    size = 4 if kind == FLOAT else 2
    pages, group = (tokens + PAGE - 1) // PAGE, heads // kv_heads
    step, of_head = 4 * PAGE * pages, 2 * PAGE * head * size
    for h in range(kv_heads):
        first = 0
        while first < group:
            n = min(TOGETHER, group - first)
            at = 4 * head * (h * group + first)
            keys = base + h * of_head
            if size == 4:
                _scored_floats(n, q + at, head, table, pages, keys, page_bytes, scores, step)
            else:
                _scored_bfloats(n, q + at, head, table, pages, keys, page_bytes, scores, step)
            for r in range(n):
                softmax(scores + r * step, tokens, factor, zeros, zeros)
            if size == 4:
                _mixed_floats(n, scores, step, head, table, tokens, keys, page_bytes, out + at)
            else:
                _mixed_bfloats(n, scores, step, head, table, tokens, keys, page_bytes, out + at)
            first += n
