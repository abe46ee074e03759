"""The buckets of words equal a slow plain form, and a fresh table changes nothing."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hmi.model.lexical import Lexical, codes_of, features_of, shape_of
from kernels.cpu_words import BOUNDARY, FAR, NEAR, PAIR

FULL = (1 << 64) - 1


def mixed(code: int, place: int) -> int:
    x = (code + (place + 3) * 0xBF58476D1CE4E5B9) & FULL
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & FULL
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & FULL
    return x ^ (x >> 31)


def plain(words: list[str], buckets: int) -> list[list[int]]:
    """Every feature of every word, one by one."""
    codes = [[int(c) for c in codes_of(word)] for word in words]
    out = []
    for w, own in enumerate(codes):
        seen = [mixed(code, 0) for code in own]
        for place in (-2, -1, 1, 2):
            inside = 0 <= w + place < len(words)
            lent = codes[w + place][: NEAR if abs(place) == 1 else FAR] if inside else [int(BOUNDARY)]
            seen += [mixed(code, place) for code in lent]
        before = codes[w - 1][0] if w else int(BOUNDARY)
        seen.append(mixed(own[0] ^ (before * int(PAIR) & FULL), 0))
        out.append([((code >> 32) * buckets) >> 32 for code in seen])
    return out


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(min_size=1, max_size=80), max_size=6), st.sampled_from([1, 7, 1024, 1 << 16]))
def test_the_kernel_equals_the_plain_form(words: list[str], buckets: int) -> None:
    found = features_of(words, buckets)
    assert len(found) == len(words)
    ids, offsets = found.ids.tolist(), found.offsets.tolist()
    assert [ids[a:b] for a, b in itertools.pairwise(offsets)] == plain(words, buckets)


def test_alone_equals_batched() -> None:
    table = Lexical(256, 5)
    torch.nn.init.normal_(table.table)
    texts = [["Cisplatin", "-", "induced"], ["IL-2"], ["acute", "renal", "failure", "was", "seen"]]
    bags = [features_of(words, 256) for words in texts]
    together = table(bags)
    alone = torch.cat([table([bag]) for bag in bags])
    assert torch.equal(together, alone)


def test_a_fresh_table_says_nothing_and_learns() -> None:
    lexical = Lexical(64, 3)
    bags = [features_of(["a", "b"], 64)]
    assert not lexical(bags).any()
    lexical(bags)[0, 1].backward()
    assert lexical.table.grad is not None
    assert lexical.table.grad[:, 1].any()
    assert not lexical.table.grad[:, 0].any()


@pytest.mark.parametrize(
    ("word", "shape"), [("IL-2Ra", "A-0Aa"), ("the", "a"), ("NaCl", "AaAa"), ("1,000", "0,0"), ("", "")]
)
def test_shapes(word: str, shape: str) -> None:
    assert shape_of(word) == shape
