"""Back-off plans through the store, for every width of window, against the oracle."""

from __future__ import annotations

import numpy as np
import plotlab as lab
import pytest
from hmi_kernels.lookup.layout import Window

from plot_store import Invalid, Store
from plot_store.reading.backoff import steps_of

WIDTHS = {1: (3,), 2: (9, 3), 3: (40, 9, 3), 4: (90, 40, 9, 3), 5: (200, 90, 40, 9, 3)}
FEW = 4  # a vocabulary so small that windows of five are found too
LENGTHS = (0, 1, 2, 3, 4, 5, 6, 60)
BY_VERSION_3 = [(3, 0), (2, 0), (3, 1), (2, 1), (1, None)]


def chain_of(
    store: Store, n: int, dtypes: tuple[str, ...] = ("int8", "fp16", "fp32"), window: Window = "centred"
) -> list[lab.Entries]:
    """Publish a chain up to r/a/b; return its entries, nearest version first."""
    chain: list[lab.Entries] = []
    for depth, dtype in enumerate(dtypes):
        made = lab.content(10 * n + depth, WIDTHS[n], vocab=FEW, window=window)
        ref = "/".join("rab"[: depth + 1])
        lab.put(store, ref, made, dtype=dtype, n=n, vocab=FEW, window=window)
        chain.insert(0, lab.entries(made, dtype))
    return chain


@pytest.mark.parametrize("window", ["centred", "causal"])
@pytest.mark.parametrize("n", WIDTHS)
@pytest.mark.parametrize("backoff", ["order", "version"])
def test_named_plans_equal_the_oracle(store: Store, n: int, backoff: str, window: Window) -> None:
    chain = chain_of(store, n, window=window)
    steps = steps_of(backoff, n, len(chain))
    with store.reader("r/a/b", backoff=backoff) as reader:
        for seed in range(4):
            lab.same_as(reader, chain, lab.texts(seed, LENGTHS, FEW), steps)
        counts = lab.look(reader, lab.texts(9, (500,), FEW))[1].counts()
    names = ["5gram", "4gram", "trigram", "bigram", "unigram", "miss"]
    assert list(counts) == names[5 - n :]
    assert sum(counts.values()) == 500
    # An id 0 ends causal n-grams: a third of the runs of five has none before its end.
    assert counts[names[5 - n]] > (100 if window == "centred" else 25)
    lab.check(store)


@pytest.mark.parametrize(
    "steps",
    [
        [(3, 0)],
        [(1, None)],
        [(2, 1), (3, None), (1, 0)],
        [(1, 0), (2, 0), (3, 0)],
        [(3, 2), (3, 0), (3, 1), (2, None), (2, None), (1, 2)],
    ],
    ids=str,
)
def test_steps_equal_the_oracle(store: Store, steps: list[tuple[int, int | None]]) -> None:
    chain = chain_of(store, 3)
    with store.reader("r/a/b", backoff=steps) as reader:
        for seed in range(4):
            lab.same_as(reader, chain, lab.texts(seed, LENGTHS, FEW), steps)


def test_named_backoffs_are_these_steps() -> None:
    assert steps_of("order", 3, 2) is None  # the kernels' own default
    assert steps_of("version", 3, 2) == BY_VERSION_3
    assert steps_of("version", 1, 2) == [(1, None)]
    assert steps_of([(2, 1), [1, None]], 3, 2) == [(2, 1), (1, None)]


def test_the_plans_differ_where_a_parents_trigram_meets_a_domains_bigram(store: Store) -> None:
    root, domain = lab.content(1, (0, 0, 0)), lab.content(2, (0, 0, 0))
    root[3] = lab.content(3, (1, 0, 0))[3]
    a, b, c = root[3][0][0].tolist()
    domain[2] = (root[3][0][:, 1:], lab.content(4, (0, 1, 0))[2][1])
    lab.put(store, "r", root)
    lab.put(store, "r/d", domain)
    answers = []
    for backoff, depth in (("order", 1), ("version", 0)):
        with store.reader("r/d", backoff=backoff) as reader:
            out, hits = lab.look(reader, [[a, b, c]])
        # With back-off by version, the trigram still fills the left role.
        assert (hits.order[1], hits.depth[1]) == (3, depth)
        answers.append(out)
    assert not np.array_equal(*answers)


@pytest.mark.parametrize(
    ("backoff", "says"),
    [
        ("longest", "use order or version"),
        (7, "is unknown"),
        ([], "has 0 steps"),
        ([(3, 0)] * 2000, "2000 steps"),
        ([3], "is not a pair"),
        ([(3,)], "is not a pair"),
        (["32"], "is not a pair"),
        ([(4, 0)], "order 4 is unknown"),
        ([(0, 0)], "order 0 is unknown"),
        ([(3, 2)], "a version that the chain of 2 lacks"),
        ([(3, -1)], "lacks"),
        ([(3, "0")], "lacks"),
        ([(True, 0)], "order True is unknown"),
    ],
)
def test_a_wrong_plan_is_refused(store: Store, backoff: object, says: str) -> None:
    lab.put(store, "r", lab.content(1))
    lab.put(store, "r/a", lab.content(2))
    with pytest.raises(Invalid, match=says):
        store.reader("r/a", backoff=backoff)  # type: ignore[arg-type]
    assert not store._env().held()
