"""Lexical features equal a slow plain form, a new table changes nothing, and alone equals batched."""

from __future__ import annotations

import itertools

import pytest
import torch
from hmi_kernels.text.words import BOUNDARY, FAR, NEAR, PAIR
from hypothesis import given, settings
from hypothesis import strategies as st

from hmi.model.text.batching import Encoded
from hmi.model.text.lexical import (
    BUCKETS,
    WIDTH,
    Bags,
    Lexical,
    bags_of,
    codes_of,
    lexical_buckets,
    lexical_from,
    shape_of,
)

FULL = (1 << 64) - 1


def whole(words: list[str]) -> Encoded:
    """A window in which each word is one token."""
    count = len(words)
    return Encoded([101, *range(1000, 1000 + count), 102], [0] * (count + 2), [None, *range(count), None])


def text_of(*texts: list[int]) -> Encoded:
    """The tokens of one or two texts, with [CLS] and [SEP] around them."""
    ids, types, words = [101], [0], [None]
    for kind, tokens in enumerate(texts):
        ids += [*tokens, 102]
        types += [kind] * (len(tokens) + 1)
        words += [*range(len(tokens)), None]  # type: ignore[list-item]
    return Encoded(ids, types, words)  # type: ignore[arg-type]


def mixed(code: int, place: int) -> int:
    x = (code + (place + 3) * 0xBF58476D1CE4E5B9) & FULL
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & FULL
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & FULL
    return x ^ (x >> 31)


def plain(words: list[str], buckets: int) -> list[list[int]]:
    """Every feature of every word, one by one."""
    codes = [[int(c) for c in codes_of(word[:64])] for word in words]
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
    found = bags_of(words, whole(words), buckets)
    assert found.rows.tolist() == list(range(1, len(words) + 1))
    ids, offsets = found.ids.tolist(), found.offsets.tolist()
    assert [ids[a:b] for a, b in itertools.pairwise(offsets)] == plain(words, buckets)


def test_a_window_has_the_words_that_begin_in_it_with_their_neighbours_outside() -> None:
    words = ["Cisplatin", "-", "induced", "renal"]
    every = bags_of(words, whole(words), 4096)
    part = bags_of(words, Encoded([101, 7, 8, 9, 102], [0] * 5, [None, 1, 1, 2, None]), 4096)
    assert part.rows.tolist() == [1, 3]
    assert part.ids.tolist() == every.ids[every.offsets[1] : every.offsets[3]].tolist()


def test_words_that_no_window_reads_are_not_looked_at() -> None:
    codes_of.cache_clear()
    words = [f"word{i}" for i in range(1_000)]
    part = bags_of(words, Encoded([101, 7, 8, 102], [0] * 4, [None, 500, 501, None]), 4096)
    assert codes_of.cache_info().currsize == 2 + 2 + 2
    assert part.ids.tolist() == _of(words, 500, 4096) + _of(words, 501, 4096)


def _of(words: list[str], word: int, buckets: int) -> list[int]:
    return plain(words[word - 2 : word + 3], buckets)[2]


def test_a_long_word_counts_by_its_beginning() -> None:
    long, short = ["x" * 10_000, "y"], ["x" * 64, "y"]
    assert torch.equal(bags_of(long, whole(long), 4096).ids, bags_of(short, whole(short), 4096).ids)


def test_a_text_has_each_token_and_each_pair_once() -> None:
    once = bags_of("a", text_of([5, 6, 5, 6]), BUCKETS)
    assert len(once.ids) == 2 + 2  # unigrams 5, 6; bigrams 5 6, 6 5
    assert once.rows.tolist() == [0]
    assert torch.equal(once.ids, bags_of("b", text_of([5, 6, 5, 6, 5]), BUCKETS).ids)


def test_of_two_texts_order_and_difference_count() -> None:
    one, other = (
        bags_of(("a", "b"), text_of([5, 6], [5, 7]), BUCKETS),
        bags_of(("b", "a"), text_of([5, 7], [5, 6]), BUCKETS),
    )
    same = bags_of(("a", "a"), text_of([5, 6], [5, 6]), BUCKETS)
    sets = [frozenset(bag.ids.tolist()) for bag in (one, other, same)]
    assert len(set(sets)) == 3
    # 6 and 7 in one text, 5 in both, 5 6 and 5 7 in one, 7 in place of 6, and four counts.
    assert len(sets[0]) == 10
    assert len(sets[2]) == 2 + 4  # 5 and 6 in both, four counts


@pytest.mark.parametrize("labels", [5, WIDTH + 4])
def test_alone_equals_batched(labels: int) -> None:
    table = Lexical(256, labels)
    torch.nn.init.normal_(table.table)
    texts = [["Cisplatin", "-", "induced"], ["IL-2"], ["acute", "renal", "failure", "was", "seen"], []]
    bags = [bags_of(words, whole(words), 256) for words in texts]
    logits = torch.randn(len(texts), 7, labels)
    together = table(logits, bags)
    for i, bag in enumerate(bags):
        alone = table(logits[i : i + 1, : len(texts[i]) + 2], [bag])
        # With many labels, the rounding of a product may depend on its size; the engine adds one window at
        # a time.
        torch.testing.assert_close(
            together[i, : len(texts[i]) + 2], alone[0], rtol=0, atol=0 if labels <= WIDTH else 1e-5
        )
        assert torch.equal(together[i, len(texts[i]) + 1 :], logits[i, len(texts[i]) + 1 :])


def test_alone_equals_batched_for_texts() -> None:
    table = Lexical(256, 3)
    torch.nn.init.normal_(table.table)
    bags = [bags_of(("", ""), text_of(a, b), 256) for a, b in (([5, 6], [7]), ([8], [8, 9, 5]))]
    logits = torch.randn(2, 3)
    alone = torch.cat([table(logits[i : i + 1], [bag]) for i, bag in enumerate(bags)])
    assert torch.equal(table(logits, bags), alone)


@pytest.mark.parametrize("labels", [3, WIDTH + 1])
def test_a_fresh_table_says_nothing_and_learns(labels: int) -> None:
    lexical = Lexical(64, labels)
    bags = [bags_of(["a", "b"], whole(["a", "b"]), 64)]
    logits = torch.zeros(1, 4, labels)
    assert not lexical(logits, bags).any()
    lexical(logits, bags)[0, 1, 1].backward()
    assert lexical.table.grad is not None
    assert lexical.table.grad.any()


def test_tensors_alone_rebuild_it() -> None:
    for labels in (3, WIDTH + 1):
        lexical = Lexical(64, labels)
        torch.nn.init.normal_(lexical.table)
        bags: list[Bags] = [bags_of(["a", "b"], whole(["a", "b"]), 64)]
        again = lexical_from(dict(lexical.state_dict()))
        assert torch.equal(again.scores(bags), lexical.scores(bags))


def test_tasks_have_lexical_features_by_default_or_as_asked() -> None:
    assert lexical_buckets("tagging", None) == BUCKETS
    assert lexical_buckets("tagging", False) == 0
    assert lexical_buckets("classification", None) == 0
    assert lexical_buckets("classification", True) == BUCKETS
    assert lexical_buckets("embedding", True) == 0


@pytest.mark.parametrize(
    ("word", "shape"), [("IL-2Ra", "A-0Aa"), ("the", "a"), ("NaCl", "AaAa"), ("1,000", "0,0"), ("", "")]
)
def test_shapes(word: str, shape: str) -> None:
    assert shape_of(word) == shape
