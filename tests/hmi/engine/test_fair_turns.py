"""Room, turns, timings: the accounts that tenants share."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from hmi.core import ModelId, ModelVersion
from hmi.engine.admit.loading import ModelLoader
from hmi.engine.schedule.limits import BatchLimits
from hmi.engine.schedule.pace import Pace
from hmi.engine.schedule.queue import BatchQueue
from hmi.engine.schedule.turns import MAX_TENANTS, Turns
from hmi.engine.schedule.waiting_budget import WaitingBudget
from hmi.engine.texts.item import Item, Times
from hmi.errors import Damaged, QuotaExceeded, Unavailable
from hmi.stores.tensors.adapter_store import DamagedArtefact
from tests.hmi.engine.test_queue_model import item


def test_a_call_of_many_tenants_does_not_exceed_the_room() -> None:
    room = WaitingBudget(1000, "tokens")
    room.take(Counter({"first": 1}))
    many = Counter({f"t{i}": 10 for i in range(996)})
    with pytest.raises(Unavailable, match="1 tokens are waiting"):
        room.take(many)
    assert room.taken == 1
    room.take(Counter({f"t{i}": 10 for i in range(99)}))
    assert room.taken == 991
    with pytest.raises(Unavailable):
        room.check(Counter({"late": 10}))


def test_an_empty_room_takes_any_call_and_a_large_one_leaves_room_for_others() -> None:
    room = WaitingBudget(1000, "tokens")
    room.take(Counter({f"t{i}": 900 for i in range(20)}))
    assert room.taken == 18_000
    for i in range(20):
        room.release(f"t{i}", 900)
    assert room.taken == 0
    room.take(Counter({"loud": 5000}))
    with pytest.raises(QuotaExceeded, match="tenant loud has 5000 tokens waiting"):
        room.check(Counter({"loud": 1}))
    room.take(Counter({"quiet": 250}))
    room.clear()
    assert room.taken == 0


def test_a_turn_out_of_order_costs_those_who_wait_nothing() -> None:
    turns = Turns()
    turns.begin(["loud", "quiet"])
    turns.charge("loud", 10.0)
    turns.charge("quiet", 0.1)
    turns.begin(["loud", "quiet"])
    assert turns.given("new") == pytest.approx(5.05), "a newcomer is level with who always waited"
    turns.charge("loud", 1.0)
    assert turns.given("quiet") == pytest.approx(0.1)
    turns.begin(["loud"])
    assert turns.given("new") == pytest.approx(11.0)
    assert turns.given("quiet") == turns.given("new"), "who stays away saves nothing up"


def test_what_is_given_back_counts_for_who_waits_and_is_not_saved_up() -> None:
    turns = Turns()
    turns.weigh("a", 2.0)
    turns.begin(["a", "b"])
    turns.charge("a", 4.0)
    turns.charge("b", 4.0)
    turns.give_back("a", 2.0)
    turns.begin(["a", "b"])
    assert (turns.given("a"), turns.given("b")) == (pytest.approx(1.0), pytest.approx(4.0))
    assert turns.given("new") == pytest.approx(2.0), "six seconds for weights of three"
    turns.give_back("b", 9.0)
    turns.begin(["a"])
    assert turns.given("b") == turns.given("new") == pytest.approx(1.0), "nobody is behind all who wait"
    turns.give_back("new", 9.0)
    assert turns.given("new") == pytest.approx(1.0), "a newcomer is level, and no less"


def test_tenants_that_come_all_the_time_hold_up_none_that_had_a_turn() -> None:
    queue, came, order = BatchQueue(1_000_000, Pace()), 0, list[str]()
    limits = BatchLimits(1e-9, 20)  # one text
    queue.put([item("again", "cls", [20])])
    queue.cut(min(queue.candidates()), limits)
    queue.put([item("again", "cls", [20])])
    while len(order) < 100:
        while queue.tenants < 8:
            queue.put([item(f"new{came}", "cls", [20])])
            came += 1
        order += [piece.item.tenant for piece in queue.cut(min(queue.candidates()), limits)]
    assert order.index("again") < 16, "it had one turn while eight waited, so it waits for about eight"


@pytest.mark.parametrize("later", [("meek",), ("new",), ("meek", "new"), ("meek", "new", "back")])
def test_a_tenant_that_wants_little_in_every_turn_saves_nothing_up(later: tuple[str, ...]) -> None:
    """Whoever wants much from some moment on shares equally from then on, with who always did."""
    turns, got, wanted = Turns(), Counter[str](), Counter({"much": 10**6, "back": 1})
    for turn in range(300):
        if turn < 200:
            wanted["meek"] = 1
        elif turn == 200:
            got.clear()
            wanted.update(dict.fromkeys(later, 10**6))
        turns.begin(wanted)
        for _ in range(50):
            tenant = min(wanted, key=turns.given)
            turns.charge(tenant, 1.0)
            got[tenant] += 1
            wanted[tenant] -= 1
            if not wanted[tenant]:
                del wanted[tenant]
                turns.leave(tenant)
    share = got.total() / (1 + len(later))
    assert all(abs(got[tenant] - share) < 100 for tenant in ("much", *later)), got  # two turns


def test_the_queue_lets_a_tenant_leave_whose_last_text_is_cut() -> None:
    queue, got = BatchQueue(10_000_000, Pace()), Counter[str]()
    for tenant in ("much", "many"):
        queue.put([item(tenant, "cls", [200]) for _ in range(900)])
    for turn in range(110):
        if turn == 80:
            got.clear()
        if turn <= 80:
            queue.put([item("meek", "cls", [200]) for _ in range(400 if turn == 80 else 1)])
        got.update(p.item.tenant for p in queue.cut(min(queue.candidates()), BatchLimits(1e9, 2000)))
    assert max(got.values()) - min(got.values()) < 20, got


def test_the_weights_of_tenants_that_no_longer_wait_are_forgotten() -> None:
    turns = Turns()
    turns.weigh("stays", 2.0)
    for i in range(3 * MAX_TENANTS):
        turns.weigh(f"gone{i}", 2.0)
        turns.begin(["stays"])
    assert len(turns._weights) <= MAX_TENANTS + 1
    turns.charge("stays", 1.0)
    assert turns.given("stays") == pytest.approx(0.5), "who waits keeps its weight"


def test_a_planner_may_pass_over_the_tenant_that_received_least() -> None:
    queue = BatchQueue(1_000_000, Pace())
    limits = BatchLimits(1e-9, 20)
    queue.put([item("loud", "cls", [20]) for _ in range(50)])
    for _ in range(20):
        queue.cut(min(queue.candidates()), limits)
    queue.put([item("quiet", "rows", [20]) for _ in range(2)])
    before = {c.tenant: c.given_s for c in queue.candidates()}
    assert before["quiet"] < before["loud"]
    queue.cut(max(queue.candidates()), limits)
    assert [c.tenant for c in queue.express_candidates()] == ["quiet"], (
        "it has received less than the host's tenant"
    )
    assert min(queue.candidates()).tenant == "quiet"
    assert min(queue.candidates()).given_s == before["quiet"]


def windows_of(lengths: list[int]) -> Item:
    text = item("acme", "cls", lengths)
    text.queued = 100.0
    return text


def add(text: Item, index: int, times: Times) -> bool:
    return text.add(index, torch.zeros(1), {"miss": 1}, 3, {}, times)


def test_a_texts_timing_has_every_batch_once_though_the_last_may_be_accounted_first() -> None:
    text, early, late = windows_of([2, 2, 2]), Times(101.0, 0.25, 1.0), Times(102.0, 0.5, 3.0)
    assert not add(text, 0, early)
    assert not add(text, 1, early)
    assert add(text, 2, late)
    early.compute_s = 2.0  # its other texts took longer
    assert text.timing == {"queue_ms": 1000.0, "retrieve_ms": 750.0, "compute_ms": 5000.0}


def test_a_window_that_runs_again_is_timed_once() -> None:
    text, first = windows_of([2, 2]), Times(101.0, 0.25, 1.0)
    add(text, 0, first)
    add(text, 0, Times(103.0, 0.25, 1.0))
    add(text, 1, first)
    assert text.timing == {"queue_ms": 1000.0, "retrieve_ms": 250.0, "compute_ms": 1000.0}


class Pool:
    """A pool that loads nothing."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def has(self, name: str) -> bool:
        return False

    def remember(self, name: str) -> None: ...

    def prefetch(self, *_: object, **__: object) -> None:
        raise self._error


@pytest.mark.parametrize(
    "error", [OSError("the disk"), DamagedArtefact("0123", "fails its checksum", "update")]
)
async def test_an_error_is_never_its_own_cause(error: Exception) -> None:
    loader = ModelLoader(cast(Any, None), cast(Any, Pool(error)))
    version = ModelVersion.model_construct(version=3, artefact="0123")
    executor = cast(Any, SimpleNamespace(prepare=int))
    with pytest.raises(type(error) if isinstance(error, OSError) else Damaged) as caught:
        await loader._module(ModelId("acme", "mood"), version, executor.prepare, executor)
    assert caught.value.__cause__ is not caught.value
    if isinstance(error, DamagedArtefact):
        assert "version 3 of model acme.mood" in str(caught.value)
        assert caught.value.__cause__ is error
