"""The batch queue against a plain model: every window is cut once, in order, and no tenant is starved."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hmi.core import ModelId, Objective
from hmi.engine import TextRequest
from hmi.engine.admit.bundles import Bundle
from hmi.engine.schedule.limits import BatchLimits
from hmi.engine.schedule.pace import BATCH_WORK, Pace
from hmi.engine.schedule.queue import BatchQueue
from hmi.engine.texts.item import Item, Piece, work_in
from hmi.engine.texts.request import PRIORITIES, Priority
from hmi.errors import DeadlineExceeded, QuotaExceeded, Unavailable
from hmi.execution.batch import BatchKey
from hmi.model.text.batching import Encoded

TENANTS = ("a", "b", "c", "d")
CAPACITY = 400


class Told:
    """A sink that fails at most once and is never given an answer."""

    def __init__(self) -> None:
        self.wanted = True
        self.error: Exception | None = None

    def done(self, result: object) -> None:
        raise AssertionError("the queue answers nothing")

    def fail(self, error: Exception) -> None:
        assert self.wanted, "told twice"
        self.wanted, self.error = False, error


def item(
    tenant: str,
    reads: str,
    lengths: list[int],
    deadline: float | None = None,
    priority: Priority = "normal",
    root: str = "r",
) -> Item:
    version = SimpleNamespace(root=root, root_version="1", artefact=f"of {tenant}")
    bundle = SimpleNamespace(
        model=ModelId(tenant, "m"),
        version=version,
        objective=Objective(),
        cascade=None,
        task=SimpleNamespace(reads=reads),
        root=SimpleNamespace(dim=64),
        executor=SimpleNamespace(layers=3),
        key=BatchKey((root, "1"), "cls" if reads == "cls" else "rows", exact=False),
    )
    windows = [Encoded([0] * n, [0] * n, [None] * n) for n in lengths]
    request = TextRequest(ModelId(tenant, "m"), "x", deadline=deadline, priority=priority)
    return Item(request, cast(Bundle, bundle), windows, Told())


class Machine(RuleBasedStateMachine):
    """Puts items, cuts batches, lets clients leave, and compares with lists."""

    @initialize()
    def begin(self) -> None:
        self.queue = BatchQueue(CAPACITY, Pace())
        self.waiting: defaultdict[str, list[Item]] = defaultdict(list)
        self.cut: list[tuple[int, int]] = []
        self.every: list[Item] = []

    @property
    def all(self) -> list[Item]:
        return [i for items in self.waiting.values() for i in items]

    @rule(
        tenant=st.sampled_from(TENANTS),
        reads=st.sampled_from(["cls", "rows"]),
        texts=st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=3), min_size=1, max_size=4),
        late=st.booleans(),
        priority=st.sampled_from(PRIORITIES),
    )
    def put(self, tenant: str, reads: str, texts: list[list[int]], late: bool, priority: Priority) -> None:
        items = [item(tenant, reads, lengths, 0.0 if late else None, priority) for lengths in texts]
        before = self.queue.tokens
        try:
            self.queue.put(items)
        except (QuotaExceeded, Unavailable):
            assert self.queue.tokens == before, "all or none"
            assert before, "one call is let in, however large"
            return
        for i in items:
            i.queued = float(len(self.every))
            self.every.append(i)
        self.waiting[tenant] += items

    @precondition(lambda self: self.all)
    @rule(pick=st.randoms(use_true_random=False))
    def leave(self, pick: Any) -> None:
        cast(Told, pick.choice(self.all).sink).wanted = False

    @precondition(lambda self: self.all)
    @rule(pick=st.randoms(use_true_random=False))
    def cancel(self, pick: Any) -> None:
        """A call's texts go at once, with their room."""
        gone = pick.sample(self.all, pick.randint(1, len(self.all)))
        before = self.queue.tokens
        self.queue.drop(gone)
        freed = sum(sum(map(len, i.windows[i.cut :])) for i in gone)
        assert self.queue.tokens == before - freed
        self.queue.drop(gone)
        assert self.queue.tokens == before - freed, "once"
        for i in gone:
            self.waiting[i.tenant].remove(i)
            cast(Told, i.sink).wanted = False

    @precondition(lambda self: self.queue.candidates())
    @rule(work=st.floats(30, 300), tokens=st.integers(5, 100), share=st.sampled_from([1.0, 0.5]))
    def take(self, work: float, tokens: int, share: float) -> None:
        pace, candidates = Pace(), self.queue.candidates()
        first = min(candidates)
        seconds = pace.seconds(first.key, work)
        pieces = self.queue.cut(first, BatchLimits(seconds, tokens, share))
        mine = [i for i in self.all if i.tenant == first.tenant and i.key == first.key]
        self.check(pieces, first.key)
        assert pieces or not any(cast(Told, i.sink).wanted for i in mine), "no compute idle while texts wait"
        if len(pieces) > 1:
            assert sum(len(p.window) for p in pieces) <= tokens
            assert pace.seconds(first.key, BATCH_WORK + share * work_in(pieces)) <= seconds * (1 + 1e-9)

    @precondition(lambda self: self.queue.express_candidates())
    @rule(work=st.floats(20, 100))
    def take_express(self, work: float) -> None:
        candidate, pace = min(self.queue.express_candidates()), Pace()
        seconds = pace.seconds(candidate.key, work)
        pieces = self.queue.cut(candidate, BatchLimits(seconds, 100, express=True))
        self.check(pieces, candidate.key)
        assert not pieces or pace.seconds(candidate.key, BATCH_WORK + work_in(pieces)) <= seconds * (1 + 1e-9)

    def check(self, pieces: list[Piece], key: object) -> None:
        for piece in pieces:
            mine = piece.item
            assert mine.key == key
            assert cast(Told, mine.sink).wanted
            assert (id(mine), piece.index) not in self.cut, "cut twice"
            before = [i for (name, i) in self.cut if name == id(mine)]
            assert piece.index == len(before), "windows in order"
            self.cut.append((id(mine), piece.index))
        for tenant, items in self.waiting.items():
            self.waiting[tenant] = [i for i in items if i.cut < len(i.windows) and cast(Told, i.sink).wanted]
            for gone in (i for i in items if i.cut < len(i.windows) and not cast(Told, i.sink).wanted):
                error = cast(Told, gone.sink).error
                assert error is None or isinstance(error, DeadlineExceeded)

    @invariant()
    def room_is_what_waits(self) -> None:
        if hasattr(self, "queue"):
            wanted = sum(sum(map(len, i.windows[i.cut :])) for i in self.all if cast(Told, i.sink).wanted)
            assert self.queue.tokens >= wanted, "what waits has its room"

    def teardown(self) -> None:
        """All items that are still wanted come out, and then the queue is empty."""
        if not hasattr(self, "queue"):
            return
        for _ in range(2000):
            candidates = self.queue.candidates()
            if not candidates:
                break
            self.check(self.queue.cut(min(candidates), BatchLimits(1.0, 1 << 20)), min(candidates).key)
        assert not self.queue.candidates()
        assert self.queue.tokens == 0
        assert not [i for i in self.all if cast(Told, i.sink).wanted]


TestQueue = Machine.TestCase
TestQueue.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("loud", [2, 20])
def test_whoever_waits_is_served_within_as_many_turns_as_there_are_tenants(loud: int) -> None:
    """Whatever busy tenants send: among equal windows, a quiet tenant's comes before any
    tenant has three more turns."""
    queue = BatchQueue(1_000_000, Pace())
    for i in range(loud):
        queue.put([item(f"t{i}", "cls", [20]) for _ in range(50)])
    served: list[str] = []
    for turn in range(8 * loud):
        if turn == loud:
            queue.put([item("quiet", "cls", [20])])
        served += [p.item.tenant for p in queue.cut(min(queue.candidates()), BatchLimits(1e-9, 20))]
    at = served.index("quiet")
    assert at <= 2 * loud + 1, served
