"""Texts with a deadline or a utility in groups; ordinary texts as if there were none."""

from __future__ import annotations

import hashlib
import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hmi.engine.item import Item
from hmi.engine.pace import Pace
from hmi.engine.queue import BatchLimits, BatchQueue
from hmi.engine.request import PRIORITIES
from hmi.errors import HmiError
from tests.hmi.test_queue_model import Told, item

BEFORE = {1: "", 2: "", 3: ""}


class Clock:
    """The time of a trace, in place of that of the queue and its items."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        for module in ("queue", "item"):
            monkeypatch.setattr(f"hmi.engine.{module}.time", SimpleNamespace(monotonic=lambda: self.now))


def digest_of_cuts(seed: int, clock: Clock, deadlines: bool, **given: Any) -> str:
    """Put, drop and cut texts at random. Returns a hash of the windows of every batch and of all failures."""
    rng, pace = random.Random(seed), Pace()
    queue = BatchQueue(6000, pace, longest_s=0.5, weight_of=lambda t: 1.0 + (t == "b"), **given)
    every, alive, seen = list[Item](), list[Item](), list[str]()

    def sent() -> Item:
        lengths = [rng.randint(1, 60) for _ in range(rng.choice([1, 1, 1, 3]))]
        late = clock.now + rng.uniform(0.001, 0.3) if deadlines and rng.random() < 0.5 else None
        one = item(rng.choice("aaabcd"), rng.choice(["cls", "cls", "rows"]), lengths, late)
        one.request = SimpleNamespace(  # type: ignore[assignment]
            **{**vars(one.request), "priority": rng.choice(PRIORITIES), "beside": rng.random() < 0.1},
            has_aim=late is not None,
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
    seen += [str(cast(Told, one.sink).error) for one in every]
    return hashlib.sha256("\n".join(seen).encode()).hexdigest()[:16]
