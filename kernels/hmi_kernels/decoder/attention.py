"""Attention of one row to the tokens of its sequence up to itself, whose keys and values lie in pages.

As in a product, a row is a sequence of 32-bit words, each of 1 float or 2 bfloats. A page holds PAGE tokens
of one layer: for each head of keys and values, the keys as columns [words of a head, PAGE], then the values
[words of PAGE tokens, head]. So a vector of 16 lanes has a word of each key, or of each of 16 numbers of
values.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from hmi_kernels.decoder import PAGE
from hmi_kernels.encoder import BFLOAT, FLOAT
from hmi_kernels.encoder.isa import able, has
from hmi_kernels.encoder.pack import PER_WORD
from hmi_kernels.encoder.rowwise import softmax, to_bfloats
from hmi_kernels.encoder.tile import dot
from hmi_kernels.encoder.vectors import I32, I64, LANES, WORDS, Vectors, vectorised
from hmi_kernels.jit import whole

TOGETHER = 4
"""Heads of queries that read a key together."""
CHAINS = 4 if has("avx512f") else 1
"""Sums of a query's products with a page: each product waits for the one before in its sum."""
LINE = 64
"""Bytes of a cache line, and of a vector."""


def _page_at(v: Vectors, table: Any, page: Any, base: Any, page_bytes: Any) -> Any:
    number = v.load(v.at(table, v.scaled(page, 8)), I64)
    return v.at(base, v.b.mul(number, page_bytes))


def _scored(
    kind: int,
    v: Vectors,
    n: Any,
    q: Any,
    words: Any,
    table: Any,
    pages: Any,
    base: Any,
    page_bytes: Any,
    scores: Any,
    step: Any,
) -> None:
    """n, q, words, table, pages, base, page_bytes, scores, step: scores [n, PAGE pages] = n queries
    [n, words] times the keys of these pages. Rows of scores lie `step` bytes apart."""
    if not able(kind):
        v.trap()
        return
    b = v.b

    def product(count: int) -> None:
        def page(j: Any, _: list[Any]) -> list[Any]:
            keys = _page_at(v, table, j, base, page_bytes)

            def word_of(i: Any, sums: list[Any]) -> list[Any]:
                after = list(sums)
                for chain in range(CHAINS):
                    at = b.add(v.scaled(i, CHAINS), I64(chain))
                    key_at = v.at(keys, v.scaled(at, LINE))
                    v.prefetch(v.at(key_at, v.scaled(words, 2 * LINE)))  # the next head's
                    key = v.load(key_at, WORDS)
                    for r in range(count):
                        word = v.load(v.at(q, v.scaled(b.add(b.mul(words, I64(r)), at), 4)), I32)
                        k = count * chain + r
                        after[k] = dot(v, kind, after[k], v.spread(word), key)
                return after

            sums = v.loop(b.sdiv(words, I64(CHAINS)), [v.const(0.0)] * (CHAINS * count), word_of)
            while len(sums) > count:
                half = len(sums) // 2
                sums = [b.fadd(x, y) for x, y in zip(sums[:half], sums[half:], strict=True)]
            for r, total in enumerate(sums):
                v.store(total, v.at(scores, b.add(b.mul(step, I64(r)), v.scaled(j, 4 * PAGE))))
            return []

        v.loop(pages, [], page)

    v.switch(n, {count: partial(product, count) for count in range(1, TOGETHER + 1)})


def _mixed(
    kind: int,
    wide: int,
    v: Vectors,
    n: Any,
    shares: Any,
    step: Any,
    head: Any,
    table: Any,
    words: Any,
    base: Any,
    page_bytes: Any,
    out: Any,
) -> None:
    """n, shares, step, head, table, words, base, page_bytes, out: out float32 [n, head] = n rows of shares
    [n, words] times the values of the tokens of these words. `wide` vectors are summed at a time."""
    if not able(kind):
        v.trap()
        return
    b, of_page = v.b, PAGE // PER_WORD[kind]

    def product(count: int, column: Any) -> None:
        def page(j: Any, sums: list[Any]) -> list[Any]:
            values = v.at(
                _page_at(v, table, j, base, page_bytes), v.scaled(b.add(v.scaled(head, of_page), column), 4)
            )
            mine, left = v.at(shares, v.scaled(j, 4 * of_page)), b.sub(words, v.scaled(j, of_page))

            def word_of(i: Any, sums: list[Any]) -> list[Any]:
                at = v.at(values, b.mul(v.scaled(head, 4), i))
                there = [v.load(v.at(at, LINE * k), WORDS) for k in range(wide)]
                for k in range(wide):
                    v.prefetch(v.at(at, v.at(v.scaled(head, 8 * of_page), LINE * k)))  # the next head's
                after = []
                for r in range(count):
                    share = v.spread(v.load(v.at(mine, b.add(b.mul(step, I64(r)), v.scaled(i, 4))), I32))
                    after += [dot(v, kind, sums[wide * r + k], share, there[k]) for k in range(wide)]
                return after

            inside = b.select(b.icmp_signed("<", left, I64(of_page)), left, I64(of_page))
            return v.loop(inside, sums, word_of)

        pages = b.sdiv(b.add(words, I64(of_page - 1)), I64(of_page))
        sums = v.loop(pages, [v.const(0.0)] * (count * wide), page)
        for r in range(count):
            to = v.at(out, v.scaled(b.add(b.mul(head, I64(r)), column), 4))
            for k in range(wide):
                v.store(sums[wide * r + k], v.at(to, LINE * k))

    def rows(count: int) -> None:
        def columns(i: Any, _: list[Any]) -> list[Any]:
            product(count, v.scaled(i, LANES * wide))
            return []

        v.loop(b.sdiv(head, I64(LANES * wide)), [], columns)

    v.switch(n, {count: partial(rows, count) for count in range(1, TOGETHER + 1)})


_scored_floats, _scored_bfloats = (vectorised(9)(partial(_scored, kind)) for kind in (FLOAT, BFLOAT))
_mixed_floats, _mixed_bfloats, _mixed_wide = (
    vectorised(9)(partial(_mixed, *given)) for given in ((FLOAT, 2), (BFLOAT, 2), (BFLOAT, 4))
)


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
    """out float32 [heads, head] = attention of a row's queries [heads, head], float32 if the kind is, else
    bfloat16, to the first `tokens` tokens.

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
            at = head * (h * group + first)
            keys, mine, to = base + h * of_head, q + size * at, out + 4 * at
            if kind == FLOAT:
                _scored_floats(n, mine, head, table, pages, keys, page_bytes, scores, step)
                for r in range(n):
                    softmax(scores + r * step, tokens, factor, zeros, zeros)
                _mixed_floats(n, scores, step, head, table, tokens, keys, page_bytes, to)
            else:
                _scored_bfloats(n, mine, head // 2, table, pages, keys, page_bytes, scores, step)
                for r in range(n):
                    softmax(scores + r * step, tokens, factor, zeros, zeros)
                    to_bfloats(scores + r * step, scores + r * step, pages)
                words = (
                    tokens + 1
                ) // 2  # a last word's second share may be 0, as its value is until it comes
                if head % 64 == 0:
                    _mixed_wide(n, scores, step, head, table, words, keys, page_bytes, to)
                else:
                    _mixed_bfloats(n, scores, step, head, table, words, keys, page_bytes, to)
            first += n
