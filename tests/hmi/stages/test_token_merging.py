"""Merging in a batch, over real executors: who loses rows, which ones, and who must notice nothing."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch

from hmi.execution import Executor, Hook, Left, Rows
from hmi.execution.batch import offsets_of
from hmi.execution.fused import FusedExecutor
from hmi.execution.packed import PackedExecutor
from hmi.stages.token_adaptation.audits import AuditRecords
from hmi.stages.token_adaptation.settings import MERGES, schedule
from tests.hmi.execution.test_fused import BERT, MPNET, module, upper
from tests.hmi.labs import cuda_lab
from tests.hmi.labs.merging_lab import MODEL, OBJECTIVE, hook_of, ran, texts, through_hook, version

LENGTHS = (24, 40, 9, 64, 31)
EXECUTORS: dict[str, Callable[..., Executor]] = {
    "packed": lambda shape: PackedExecutor(upper(shape), shape),
    "fused": lambda shape: FusedExecutor(upper(shape), shape, "fp32"),
    "cuda": lambda shape: cuda_lab.executor(cuda_lab.device_of("twin"), shape),
}
every_executor = pytest.mark.parametrize("name", EXECUTORS)


def mixed(shape: object) -> list[object]:
    a, b = module(shape, "lora", 4), module(shape, "sequential", 3)  # type: ignore[arg-type]
    return [a, a, None, b, a]


@pytest.mark.parametrize("layers", [1, 3, 9, 12])
@pytest.mark.parametrize("gamma", MERGES)
def test_a_schedule_saves_what_its_name_says(gamma: int, layers: int) -> None:
    rows = schedule(gamma, layers)
    assert 1.0 - sum(rows) / layers == pytest.approx(-gamma / 100)
    steps = [layer for layer, (a, b) in enumerate(pairwise((1.0, *rows))) if b < a]
    assert steps[0] == {1: 0, 3: 0, 9: 2, 12: 2}[layers]
    assert len(steps) == 1 + (gamma == -50 and layers > 3)
    assert all(b >= a / 2 for a, b in pairwise((1.0, *rows))), "one merging halves at most"


@every_executor
@pytest.mark.parametrize("reads", ["cls", "rows"])
def test_pairs_of_equal_rows_merged_are_as_if_they_were_not(name: str, reads: str) -> None:
    parts = [torch.cat([x[:1], x[1:-1].repeat_interleave(2, 0), x[-1:]]) for x in texts((9, 5, 14), BERT.dim)]
    tokens = [len(part) for part in parts]
    modules, executor = [module(BERT, "lora", 4)] * 3, EXECUTORS[name](BERT)
    hook = hook_of(tokens, dict.fromkeys(range(3), -50))
    (plain,), (merged,) = (ran(executor, parts, modules, *h, reads=reads) for h in ([], [hook]))
    torch.testing.assert_close(merged.last, plain.last, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(merged.before, plain.before, atol=1e-5, rtol=1e-5)
    assert list(merged.offsets) == offsets_of(tokens), "each token has a row"


@every_executor
@pytest.mark.parametrize("shape", [BERT, MPNET], ids=["bert", "mpnet"])
def test_texts_that_are_not_merged_notice_nothing(name: str, shape: object) -> None:
    parts, modules, executor = texts(LENGTHS, shape.dim), mixed(shape), EXECUTORS[name](shape)  # type: ignore[attr-defined]
    hook = hook_of(LENGTHS, {1: -50, 3: -20})
    for reads in ("cls", "rows"):
        (plain,), (merged,) = (ran(executor, parts, modules, *h, reads=reads) for h in ([], [hook]))
        for text in (0, 2, 4):
            span = slice(*plain.offsets[text : text + 2])
            last = slice(text, text + 1) if reads == "cls" else span
            for a, b in ((plain.last[last], merged.last[last]), (plain.before[span], merged.before[span])):
                if name == "cuda":  # where texts of similar length run together
                    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)
                else:
                    assert torch.equal(a, b)
        mine = slice(*plain.offsets[1:3])
        assert not torch.equal(plain.before[mine], merged.before[mine])


@every_executor
def test_alone_equals_batched(name: str) -> None:
    parts, modules, executor = texts(LENGTHS, MPNET.dim), mixed(MPNET), EXECUTORS[name](MPNET)
    gammas = {0: -35, 1: -50, 2: -20, 3: -10}
    (together,) = ran(executor, parts, modules, hook_of(LENGTHS, gammas))
    for text, gamma in gammas.items():
        hook = hook_of(LENGTHS[text : text + 1], {0: gamma})
        (alone,) = ran(executor, [parts[text]], [modules[text]], hook)
        mine = together.before[slice(*together.offsets[text : text + 2])]
        if name == "fused":
            assert torch.equal(alone.last[0], together.last[text])
            assert torch.equal(alone.before, mine)
        torch.testing.assert_close(alone.last[0], together.last[text], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(alone.before, mine, atol=1e-5, rtol=1e-5)


def test_special_rows_stay_both_segments_survive_and_every_token_is_somewhere() -> None:
    """A pair of texts of 20 and 2 tokens, one of 1 and 30, and a single text."""
    tokens, layers = (25, 34, 18), 9
    stretches = {0: [(1, 20), (22, 2)], 1: [(1, 1), (3, 30)]}
    parts = texts(tokens, 16)
    packed = Rows.packed(torch.cat(parts), offsets_of(tokens))
    for gamma in MERGES:
        hook = hook_of(tokens, dict.fromkeys(range(3), gamma), stretches=stretches, layers=layers)
        found = through_hook(hook, packed, layers)
        for share, rows in zip(schedule(gamma, layers), found, strict=True):
            if share == 1.0:
                assert rows is packed
                continue
            assert rows.source is not None
            assert rows.size is not None
            assert len(rows.source) == sum(tokens) == int(rows.size.sum())
            assert rows.source.bincount().float().tolist() == rows.size.tolist()
            assert list(rows.token_offsets) == list(packed.offsets)
            for i, (a, b) in enumerate(rows.spans()):
                mine = rows.source[slice(*packed.offsets[i : i + 2])]
                assert (a, b - 1) == (int(mine[0]), int(mine[-1]))
                segments = stretches.get(i, [(1, tokens[i] - 2)])
                special = sorted(set(range(tokens[i])) - {t for s, n in segments for t in range(s, s + n)})
                assert torch.equal(rows.x[mine[special]], parts[i][special])
                rows_of = [set(mine[s : s + n].tolist()) for s, n in segments]
                assert len(set.union(*rows_of)) == sum(map(len, rows_of)) == b - a - len(special)
                assert all(rows_of), "no segment is lost"
                assert b - a >= share * tokens[i] - len(segments)


def test_short_texts_lose_no_more_than_they_have() -> None:
    tokens = (1, 2, 3, 4, 5, 6)
    packed = Rows.packed(torch.cat(texts(tokens, 8)), offsets_of(tokens))
    rows = through_hook(hook_of(tokens, dict.fromkeys(range(6), -50)), packed)[-1]
    assert [b - a for a, b in rows.spans()] == [1, 2, 3, 3, 4, 4]


class Leaves(Hook):
    """A hook by which some texts leave before a layer."""

    def __init__(self, who: set[int], at: int) -> None:
        self._who, self._at = who, at

    @property
    def at(self) -> frozenset[int]:
        return frozenset({self._at})

    def __call__(self, layer: int, rows: Rows) -> tuple[Rows, Left | None]:
        gone = sorted(self._who.intersection(rows.texts))
        left = Left(
            gone, rows.x[:0], rows.x[:0], [0] * (len(gone) + 1), layer, "exit", [rows.x[0]] * len(gone)
        )
        return rows.taken([(i, None) for i, t in enumerate(rows.texts) if t not in self._who]), left


@pytest.mark.parametrize("at", [0, 1, 2, 4])
@pytest.mark.parametrize("first", [True, False])
def test_texts_that_leave_among_merged_ones_move_nobody_else(at: int, first: bool) -> None:
    layers = [*upper(BERT), *upper(BERT)]  # so that the rows of some texts are merged twice
    executor = FusedExecutor(torch.nn.ModuleList(layers), BERT, "fp32")
    parts, modules = texts(LENGTHS, BERT.dim), [module(BERT, "lora", 4)] * 5
    gammas = {0: -35, 1: -50, 3: -20, 4: -50}

    def merge() -> Hook:
        return hook_of(LENGTHS, gammas, layers=len(layers))

    (all_stay,) = ran(executor, parts, modules, merge(), reads="rows")
    hooks = [merge(), Leaves({0, 2, 3}, at)]
    early, end = ran(executor, parts, modules, *(hooks if first else hooks[::-1]), reads="rows")
    assert (list(early.texts), list(end.texts)) == ([0, 2, 3], [1, 4])
    for place, text in enumerate(end.texts):
        mine, wanted = (slice(*left.offsets[i : i + 2]) for left, i in ((end, place), (all_stay, text)))
        assert torch.equal(end.last[mine], all_stay.last[wanted])
        assert torch.equal(end.before[mine], all_stay.before[wanted])


@every_executor
def test_an_audit_runs_both_and_gives_the_merged_answer(name: str) -> None:
    parts, modules, executor = texts(LENGTHS, BERT.dim), mixed(BERT), EXECUTORS[name](BERT)
    ledger, gammas = AuditRecords(), {1: -50, 3: -20}
    made = version((0, 0.9, 1.0, 900), (-50, 0.9, 1.0, 900), (-20, 0.9, 1.0, 900))
    ledger.allowed(MODEL, made, OBJECTIVE, None)
    hook = hook_of(LENGTHS, gammas, {1, 3}, ledger=ledger)
    (left,) = ran(executor, parts, modules, hook)
    (merged,), (plain,) = (ran(executor, parts, modules, *h) for h in ([hook_of(LENGTHS, gammas)], []))
    assert list(left.texts) == [0, 1, 1, 2, 3, 3, 4]
    for place, (text, of) in enumerate(zip(left.texts, (0, 1, 0, 0, 1, 0, 0), strict=True)):
        wanted = (merged if of else plain).last[text]
        torch.testing.assert_close(left.last[place], wanted, atol=1e-5, rtol=1e-5)
    outputs = [
        torch.tensor(v) for v in ([1.0, 0], [1.0, 0], [0, 1.0], [1.0, 0], [1.0, 0], [1.0, 0], [0.0, 1])
    ]
    assert hook.ended(left.texts, list(outputs)) == outputs
    audits = ledger.audits(MODEL, made.artefact)
    assert {gamma: (a.seen, a.disagreed) for gamma, a in audits.items()} == {-50: (1, 1), -20: (1, 0)}


def test_rows_whose_words_were_dropped_are_left_alone() -> None:
    packed = Rows.packed(torch.cat(texts(LENGTHS, 8)), offsets_of(LENGTHS))
    fewer = packed.taken([(0, [0, 3, 4, 9, 23]), *((i, None) for i in range(1, 5))])
    hook = hook_of(LENGTHS, dict.fromkeys(range(5), -50))
    assert hook(0, fewer)[0] is fewer


def test_taken_rows_keep_what_they_stand_for() -> None:
    packed = Rows.packed(torch.cat(texts(LENGTHS, 8)), offsets_of(LENGTHS))
    rows = through_hook(hook_of(LENGTHS, {0: -50, 1: -20, 3: -35}), packed)[-1]
    assert rows.changed == {0, 1, 3}
    part = rows.taken([(1, None), (2, None), (3, None), (3, None)])
    assert list(part.texts) == [1, 2, 3, 3]
    tokens = [rows.by_token(rows.x)[slice(*packed.offsets[i : i + 2])] for i in (1, 2, 3, 3)]
    assert torch.equal(part.by_token(part.x), torch.cat(tokens))
    assert list(part.token_offsets) == offsets_of([40, 9, 64, 64])
    assert part.changed == {0, 2, 3}
    assert rows.taken([]).texts == []
