"""Weights between tenants; priorities and deadlines within one. Each against a plain reference."""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import replace
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hmi.engine.schedule.backlog import Backlog
from hmi.engine.schedule.limits import BatchLimits
from hmi.engine.schedule.pace import BATCH_WORK, Pace
from hmi.engine.schedule.queue import BatchQueue
from hmi.engine.texts.item import MODULE_WORK, Item, Piece
from hmi.engine.texts.request import PRIORITIES, Priority
from hmi.errors import DeadlineExceeded, QuotaExceeded, Unavailable
from tests.hmi.engine.test_queue_model import Told, item

ROOM = 1_000_000
PRIORITY = st.sampled_from(PRIORITIES)
ONE = BatchLimits(1e-9, 1)
"""So little that a batch has one window."""


def next_of(queue: BatchQueue, limits: BatchLimits = ONE) -> list[Piece]:
    return queue.cut(min(queue.candidates()), limits)


def all_of(queue: BatchQueue) -> list[Item]:
    """The items in the order in which they are cut, one window each."""
    found = []
    while queue.candidates():
        found += [piece.item for piece in next_of(queue)]
    return found


@settings(max_examples=150, deadline=None)
@given(
    texts=st.lists(
        st.tuples(
            st.sampled_from(PRIORITIES), st.none() | st.integers(1, 40), st.sampled_from(["cls", "rows"])
        ),
        max_size=12,
    )
)
def test_a_tenants_texts_go_by_priority_then_deadline_then_arrival(
    texts: list[tuple[Priority, int | None, str]],
) -> None:
    now = math.floor(time.monotonic()) + 1000.0  # whole, so that sums are exact
    queue = BatchQueue(ROOM, Pace())
    items = [
        item("acme", reads, [3], None if left is None else now + left, priority)
        for priority, left, reads in texts
    ]
    for one in items:
        one.queued = now
    queue.put(items)

    def plain(one: Item) -> tuple[int, float]:
        left = one.request.deadline
        return PRIORITIES.index(one.request.priority), min(30.0, math.inf if left is None else left - now)

    cut = all_of(queue)
    assert [plain(one) for one in cut] == sorted(plain(one) for one in items)
    for key in {one.key for one in items}:
        mine = sorted((one for one in items if one.key == key), key=plain)  # a stable sort keeps the arrival
        assert [id(one) for one in cut if one.key == key] == [id(one) for one in mine]


@settings(max_examples=60, deadline=None)
@given(urgent=st.lists(st.tuples(PRIORITY, st.booleans()), min_size=30, max_size=30))
def test_priorities_and_deadlines_change_no_other_tenants_turn(urgent: list[tuple[Priority, bool]]) -> None:
    soon = 20.0 + 1e9

    def turns(urgent: list[tuple[Priority, bool]]) -> list[str]:
        queue = BatchQueue(ROOM, Pace())
        for i, (priority, near) in enumerate(urgent):
            one = item("abc"[i % 3], "cls", [5], soon if near else None, priority if i % 3 else "normal")
            one.queued = 1e9
            queue.put([one])
        return [one.tenant for one in all_of(queue)]

    assert turns(urgent) == turns([("normal", False)] * len(urgent))


def test_no_text_waits_for_ever_behind_newer_ones_of_a_higher_priority() -> None:
    queue = BatchQueue(ROOM, Pace())
    low = item("acme", "cls", [3], priority="low")
    low.queued = 0.0
    queue.put([low])
    for second in range(200):
        high = item("acme", "cls", [3], priority="high")
        high.queued = float(second)
        queue.put([high])
        (piece,) = next_of(queue)
        if piece.item is low:
            break
    assert 100 < second < 150


@settings(max_examples=40, deadline=None)
@given(
    weights=st.tuples(*[st.sampled_from([0.25, 1.0, 2.0, 5.0])] * 3),
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=20),
    tokens=st.integers(60, 400),
)
def test_what_backlogged_tenants_receive_is_as_their_weights(
    weights: tuple[float, ...], lengths: list[int], tokens: int
) -> None:
    """While all wait, seconds over weight differ by at most one batch, and by two wherever one begins."""
    pace, by_name = Pace(), dict(zip("abc", weights, strict=True))
    queue = BatchQueue(ROOM * 100, pace, weight_of=by_name.__getitem__)
    for name in by_name:
        queue.put([item(name, "cls", [lengths[(i + ord(name)) % len(lengths)]]) for i in range(200)])
    received, seen = dict.fromkeys(by_name, 0.0), [dict.fromkeys(by_name, 0.0)]
    most_s = window_s = 0.0
    for _ in range(40):
        pieces = next_of(queue, BatchLimits(pace.seconds("any", tokens + BATCH_WORK), 1 << 20))
        paid: set[str] = set()
        took = pace.seconds("any", BATCH_WORK)
        received[pieces[0].item.tenant] += took
        for piece in pieces:
            tenant = piece.item.tenant
            takes = pace.seconds("any", piece.work + (0.0 if tenant in paid else MODULE_WORK))
            paid.add(tenant)
            received[tenant] += takes
            took, window_s = took + takes, max(window_s, takes)
        most_s = max(most_s, took)
        if any(not queue._waiting.work_of(name) for name in by_name):
            break  # a tenant with nothing waiting receives nothing
        seen.append({name: s / by_name[name] for name, s in received.items()})
    for early in seen:
        got = [seen[-1][name] - early[name] for name in by_name]
        assert max(got) - min(got) <= 2 * (most_s + window_s) / min(weights)
    spread = max(seen[-1].values()) - min(seen[-1].values())
    assert spread <= (most_s + window_s) / min(weights), "one batch, to a window"


@pytest.mark.parametrize("weight", [1.0, 2.0])
def test_who_computes_all_layers_has_as_much_compute_and_fewer_texts(weight: float) -> None:
    """Shares are of compute. A text takes twice as long on a root of twice the layers."""
    pace, weights = Pace(), {"deep": weight, "fast": 1.0}
    queue = BatchQueue(ROOM * 100, pace, weight_of=weights.__getitem__)
    for name, each_s in (("fast", 1e-4), ("deep", 2e-4)):
        mine = [item(name, "cls", [20], root=name) for _ in range(1500)]
        for _ in range(40):  # the engine learns what the root takes
            pace.ran(mine[0].key, 1000, 1000 * each_s)
        queue.put(mine)
    texts = Counter[str]()
    while sum(texts.values()) < 1500:
        texts.update(piece.item.tenant for piece in next_of(queue, BatchLimits(0.1, 1 << 20)))
    assert texts["fast"] / texts["deep"] == pytest.approx(2 / weight, rel=0.15)


def test_a_text_that_comes_too_late_is_dropped_before_work_unless_it_costs_nobody() -> None:
    pace = Pace()
    key = item("acme", "cls", [100]).key
    for _ in range(30):
        pace.ran(key, 1000.0, 1000.0)
    soon = time.monotonic() + 60
    late, other = item("acme", "cls", [100], soon), item("zeta", "cls", [100])
    queue = BatchQueue(ROOM, pace)
    queue.put([late, other])
    assert [one.tenant for one in all_of(queue)] == ["zeta"]
    assert isinstance(cast(Told, late.sink).error, DeadlineExceeded)
    alone = item("acme", "cls", [100], soon)
    queue.put([alone])
    assert all_of(queue) == [alone], "if nothing else waits, it runs, and corrects the prediction"


def test_a_refusal_says_how_long_what_waits_will_take(monkeypatch: pytest.MonkeyPatch) -> None:
    pace = Pace()
    queue = BatchQueue(ROOM, pace, longest_s=10.0, streams=2)
    loud, other = item("loud", "cls", [200] * 200), item("other", "cls", [200] * 100)
    for _ in range(60):
        pace.ran(loud.key, 1000.0, 0.2)
    queue.put([loud])
    waits_s = pace.seconds(loud.key, sum(Piece(loud, i).work for i in range(200))) / 2
    assert 2.5 < waits_s < 10
    with pytest.raises(QuotaExceeded, match="tenant loud has 40000 tokens waiting") as caught:
        queue.put([item("loud", "cls", [1])])
    assert caught.value.details["retry_after_s"] == math.ceil(waits_s)
    queue.put([other])
    monkeypatch.setattr(queue, "_longest_s", waits_s)
    with pytest.raises(Unavailable) as full:
        queue.put([item("new", "cls", [1])])
    assert full.value.details["retry_after_s"] == math.ceil(1.5 * waits_s)
    queue.drop([loud, other])
    assert queue.tokens == 0
    queue.put([item("new", "cls", [1])])


def test_a_weight_may_change_while_texts_wait() -> None:
    """A weight holds from the next call on, and never for what was received before."""
    weight = {"a": 1.0, "b": 1.0}
    queue = BatchQueue(ROOM, Pace(), weight_of=weight.__getitem__)
    for name in weight:
        queue.put([item(name, "cls", [20]) for _ in range(100)])
    first = [piece.item.tenant for _ in range(40) for piece in next_of(queue)]
    assert abs(first.count("a") - first.count("b")) <= 1
    weight["a"] = 3.0
    queue.put([item("a", "cls", [20])])
    then = [piece.item.tenant for _ in range(40) for piece in next_of(queue)]
    assert abs(then.count("a") - 3 * then.count("b")) <= 3


def test_a_first_text_is_removed_without_a_look_at_those_behind_it() -> None:
    looked = 0

    class Ids(set[int]):
        def __contains__(self, one: object) -> bool:
            nonlocal looked
            looked += 1
            return super().__contains__(one)

    backlog, items = Backlog(), [item("a", "cls", [4]) for _ in range(100)]
    for one in items:
        backlog.add(one)
    assert backlog.remove(Ids({id(items[0])})) == [items[0]]
    assert looked <= 2
    gone = backlog.remove(Ids({id(items[1]), id(items[7]), id(items[99])}))
    assert {id(one) for one in gone} == {id(items[1]), id(items[7]), id(items[99])}
    assert [backlog.pop() for _ in range(len(backlog))] == [*items[2:7], *items[8:99]]


def test_a_small_levels_texts_may_run_beside_their_own_tenants_batch() -> None:
    """Others' texts still need to have received less than the host; an older text of the tenant waits."""
    queue, limits = BatchQueue(ROOM, Pace()), BatchLimits(1.0, ROOM, express=True)
    queue.put([item("acme", "cls", [50])])
    next_of(queue)
    older, small, plain = item("acme", "cls", [9]), item("acme", "rows", [3]), item("acme", "rows", [3])
    queue.put([older, small, plain])
    assert queue.express_candidates() == [], "who was just given a batch"
    small.request = replace(small.request, beside=True)
    (candidate,) = queue.express_candidates()
    assert [piece.item for piece in queue.cut(candidate, limits)] == [small], "not the text behind it"
    assert queue.express_candidates() == []
    assert all_of(queue) == [older, plain]
