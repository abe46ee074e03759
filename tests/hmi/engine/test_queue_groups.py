"""Texts with a deadline or a utility in groups; ordinary texts as if there were none."""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hmi.engine.schedule.limits import BatchLimits
from hmi.engine.schedule.pace import Pace
from hmi.engine.schedule.queue import BatchQueue
from hmi.engine.texts.item import Item, Piece
from hmi.engine.texts.request import PRIORITIES
from hmi.errors import HmiError
from hmi.stages.planner import Candidate
from hmi.stages.planning.group import BEYOND, GroupLimits, Price
from tests.hmi.engine.test_queue_model import Told, item

SEEDS = (1, 2, 3)
BATCH_S = 0.02
LIMITS = GroupLimits(seconds=BATCH_S)


class Clock:
    """The time of a trace, in place of that of the queue and its items."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        for module in ("schedule.queue", "texts.item"):
            monkeypatch.setattr(f"hmi.engine.{module}.time", SimpleNamespace(monotonic=lambda: self.now))


def cuts_of(seed: int, clock: Clock, **given: Any) -> list[str]:
    """Put, drop and cut texts without deadlines at random. Returns the windows of every batch, and all
    failures."""
    rng, pace = random.Random(seed), Pace()
    queue = BatchQueue(6000, pace, longest_s=0.5, weight_of=lambda t: 1.0 + (t == "b"), **given)
    every, alive, seen = list[Item](), list[Item](), list[str]()

    def sent() -> Item:
        lengths = [rng.randint(1, 60) for _ in range(rng.choice([1, 1, 1, 3]))]
        one = item(rng.choice("aaabcd"), rng.choice(["cls", "cls", "rows"]), lengths)
        one.request = SimpleNamespace(  # type: ignore[assignment]
            **{**vars(one.request), "priority": rng.choice(PRIORITIES), "beside": rng.random() < 0.1},
            has_aim=False,
        )
        cast(Any, one).number = len(every)
        every.append(one)
        return one

    for _ in range(600):
        clock.now += rng.uniform(0, 0.004)
        did = rng.random()
        if did < 0.45:
            new = [sent() for _ in range(rng.randint(1, 5))]
            try:
                queue.put(new)
                alive += new
            except HmiError as error:
                seen.append(str(error))
        elif did < 0.5 and alive:
            queue.drop(rng.sample(alive, rng.randint(1, min(3, len(alive)))))
        else:
            express = did > 0.85
            candidates = queue.express_candidates() if express else queue.candidates()
            if candidates:
                limits = BatchLimits(rng.uniform(0.002, 0.03), 400, rng.choice([1.0, 0.7]), express=express)
                pieces = queue.cut(min(candidates), limits)
                seen.append(str([(cast(Any, p.item).number, p.index) for p in pieces]))
                pace.ran(min(candidates).key, sum(p.work for p in pieces), rng.uniform(0.001, 0.02))
        alive = [i for i in alive if i.cut < len(i.windows) and cast(Told, i.sink).wanted]
    return seen + [str(cast(Told, one.sink).error) for one in every]


def price(one: Item) -> Price:
    """The value and the seconds of an item's waiting windows under three settings."""
    seconds = 1e-4 * sum(map(len, one.windows[one.cut :]))
    value = one.request.utility
    return Price((value, 0.9 * value, -math.inf), (seconds, 0.7 * seconds, 0.5 * seconds))


@pytest.mark.parametrize("seed", SEEDS)
def test_texts_without_a_deadline_are_cut_as_if_there_were_no_groups(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    priced = cuts_of(seed, Clock(monkeypatch), price=price, limits=LIMITS)
    assert priced == cuts_of(seed, Clock(monkeypatch))


class World:
    """A queue with texts of all kinds, and what is known of them."""

    def __init__(self, seed: int, clock: Clock) -> None:
        self.rng, self.clock, self.pace = random.Random(seed), clock, Pace()
        self.queue = BatchQueue(1 << 30, self.pace, price=price, limits=LIMITS)
        self.every: list[Item] = []
        self.cut: list[tuple[int, int]] = []

    @property
    def waiting(self) -> list[Item]:
        return [one for one in self.every if cast(Told, one.sink).wanted and one.cut < len(one.windows)]

    def send(self) -> None:
        for _ in range(self.rng.randint(1, 4)):
            lengths = [self.rng.randint(1, 60) for _ in range(self.rng.choice([1, 1, 1, 3]))]
            late = self.clock.now + self.rng.uniform(0.001, 2.0) if self.rng.random() < 0.6 else None
            one = item(self.rng.choice("aaaabc"), self.rng.choice(["cls", "cls", "rows"]), lengths, late)
            utility = self.rng.choice([1.0, 1.0, 0.5, 0.1])
            one.request = replace(one.request, utility=utility, beside=self.rng.random() < 0.1)
            self.every.append(one)
            self.queue.put([one])

    def take(self, *, express: bool = False) -> None:
        """Cut a batch: of a group at random, or as the planner that names none."""
        candidates = self.queue.express_candidates() if express else self.queue.candidates()
        if not candidates:
            return
        first, named = min(candidates), None
        if first.grouped and self.rng.random() < 0.7:
            named = self.rng.choice(first.groups).id
        seconds = self.rng.uniform(0.002, 0.03)
        before, others = len(self.waiting), {one.member for one in self.waiting}
        pieces = self.queue.cut(first, BatchLimits(seconds, 400, 0.8, express=express), named)
        if not express:
            assert pieces or len(self.waiting) < before, "no cut leaves the queue as it was"
        self.check(pieces, first, named, others)

    def check(self, pieces: list[Piece], first: Candidate, named: int | None, before: set[Any]) -> None:
        for piece in pieces:
            assert (id(piece.item), piece.index) not in self.cut, "cut twice"
            self.cut.append((id(piece.item), piece.index))
            assert piece.item.key == first.key
        groups = {None if (group := piece.item.group) is None else group.id for piece in pieces}
        assert len(groups) <= 1, "a batch never has texts of two groups"
        if named is not None and pieces:
            assert groups == {named}
        assert not pieces or (groups == {None}) != first.grouped
        requests = [piece.item.request for piece in pieces if piece.item.group is not None]
        dues = [math.inf if r.deadline is None else r.deadline for r in requests]
        if any(due < math.inf for due in dues):
            assert max(dues) - min(dues) <= LIMITS.deadline_s
        if requests:
            utilities, arrived = [r.utility for r in requests], [piece.item.queued for piece in pieces]
            assert max(utilities) - min(utilities) <= LIMITS.utility
            assert max(arrived) - min(arrived) <= LIMITS.wait_s
            assert len({id(piece.item) for piece in pieces}) <= LIMITS.texts

    def sums(self) -> None:
        """Compare every group's sums with those of the texts that wait."""
        mine: dict[int, list[Item]] = {}
        for one in self.waiting:
            if one.request.has_aim:
                assert one.group is not None
                mine.setdefault(one.group.id, []).append(one)
        groups = {group.id: group for group in self.queue._waiting.groups}
        assert groups.keys() == mine.keys()
        for id, items in mine.items():
            group, prices = groups[id], [price(one) for one in items]
            factor = BEYOND if group.beyond else 1.0
            assert [factor * sum(p.values[s] for p in prices) for s in range(3)] == pytest.approx(
                group.values
            )
            assert [sum(p.seconds[s] for p in prices) for s in range(3)] == pytest.approx(group.seconds)
            assert group.deadline == min(one.request.deadline or math.inf for one in items)
            assert group.modules == Counter(one.bundle.version.artefact for one in items)


@pytest.mark.parametrize("seed", range(4))
def test_a_batch_never_mixes_groups_and_their_sums_are_those_of_what_waits(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long texts, express batches, texts that leave and texts that are late, in random order."""
    clock = Clock(monkeypatch)
    world = World(seed, clock)
    for _ in range(300):
        clock.now += world.rng.uniform(0, 0.05)
        did = world.rng.random()
        if did < 0.45:
            world.send()
        elif did < 0.55 and world.waiting:
            gone = world.rng.sample(world.waiting, min(3, len(world.waiting)))
            world.queue.drop(gone)
            for one in gone:
                cast(Told, one.sink).wanted = False
        else:
            world.take(express=did > 0.85)
        world.sums()
    while world.queue.candidates():
        world.take()
        world.sums()
    assert world.queue.tokens == 0
    assert not world.waiting
    assert not world.queue._waiting._kinds_of
    assert not world.queue._waiting.groups


def test_a_text_beyond_its_tenants_share_is_in_a_group_that_counts_little() -> None:
    queue = BatchQueue(1 << 30, Pace(), price=price, limits=LIMITS)
    flood = [item("loud", "cls", [60], time.monotonic() + 1.0) for _ in range(40)]
    queue.put(flood)
    assert not any(one.group.beyond for one in flood if one.group), "nobody else waits"
    quiet = [item("quiet", "cls", [60], time.monotonic() + 1.0)]
    queue.put(quiet)
    more = [item("loud", "cls", [60], time.monotonic() + 1.0) for _ in range(3)]
    queue.put(more)
    assert all(one.group and one.group.beyond for one in more)
    assert quiet[0].group
    assert not quiet[0].group.beyond
    assert more[0].group
    assert more[0].group.values[0] == pytest.approx(3 * BEYOND)
