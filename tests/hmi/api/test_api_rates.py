"""Limits of tenants on requests and tokens: buckets, charges, refusals, and the answers to clients."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hmi.api.access.buckets import SPARE, Buckets, Rate
from hmi.api.access.caller import ADMINISTRATOR, Caller
from hmi.api.access.rates import RATES, REQUESTS, TOKENS, Rates
from hmi.api.infer.inference import Inference
from hmi.api.protocols.asks import Ask
from hmi.api.protocols.texts import Cost
from hmi.config import Settings
from hmi.core import ModelId
from hmi.engine import TextResult
from hmi.engine.writing.request import WriteRequest
from hmi.errors import CutShort, DeadlineExceeded, InvalidInput, QuotaExceeded, Unavailable
from hmi.tenancy import TenantLimits
from tests.hmi.api.test_inference import Counting, texts

ACME = Caller("acme", frozenset({"infer"}))
TOPIC, OTHER = ModelId("acme", "topic"), ModelId("zeta", "mood")


@dataclass
class Clock:
    """A clock that stands still until it is set."""

    at: float = 100.0

    def __call__(self) -> float:
        return self.at


@dataclass
class Room:
    """Inference with limits, on a clock of its own."""

    limits: dict[str, TenantLimits]
    clock: Clock = field(default_factory=Clock)
    echo: Counting = field(default_factory=Counting)

    def __post_init__(self) -> None:
        buckets = {name: Buckets(self.clock) for name in RATES}
        self.rates = Rates(lambda tenant: self.limits.get(tenant, TenantLimits()), 10.0, buckets)
        self.inference = Inference(self.echo, Settings(data=Path("none")), rates=self.rates)

    async def ask(self, *asks: tuple[ModelId, str], caller: Caller = ACME) -> None:
        wanted = [Ask(model, texts(text)) for model, text in asks]
        await self.inference.answer(wanted, caller, 0.0)

    def left(self, quota: str, tenant: str = "acme") -> float:
        (found,) = (state.left for state in self.rates.states(tenant) if state.quota == quota)
        return found


async def refused(room: Room, *asks: tuple[ModelId, str], caller: Caller = ACME) -> dict[str, Any]:
    """The details of the error that refuses a call."""
    calls = len(room.echo.calls)
    with pytest.raises(QuotaExceeded) as caught:
        await room.ask(*asks, caller=caller)
    assert len(room.echo.calls) == calls, "the engine is not asked"
    return caught.value.details


async def test_a_tenant_may_send_a_burst_and_then_its_rate() -> None:
    room = Room({"acme": TenantLimits(requests_per_s=0.5)})
    for _ in range(5):  # what flows in ten seconds
        await room.ask((TOPIC, "a"))
    assert await refused(room, (TOPIC, "a")) == {"quota": REQUESTS, "limit": 0.5, "retry_after_s": 2}
    room.clock.at += 1.0
    assert (await refused(room, (TOPIC, "a")))["retry_after_s"] == 1
    room.clock.at += 1.0  # as it was told
    await room.ask((TOPIC, "a"))
    assert (await refused(room, (TOPIC, "a")))["retry_after_s"] == 2
    room.clock.at += 1000.0
    assert room.left(REQUESTS) == 5, "after a long pause the tenant has the burst, and no more"


async def test_waiting_as_told_is_always_enough() -> None:
    room = Room({"acme": TenantLimits(requests_per_s=3.3, tokens_per_s=7.7)})
    refusals = 0
    for length in (1, 40, 200, 3, 77, 5000, 1):
        for _ in range(4):
            try:
                await room.ask((TOPIC, "x" * length))
            except QuotaExceeded as error:
                refusals += 1
                room.clock.at += error.details["retry_after_s"]
                await room.ask((TOPIC, "x" * length))
    assert refusals > 3


async def test_real_tokens_replace_the_estimate_and_may_leave_a_debt() -> None:
    room = Room({"acme": TenantLimits(tokens_per_s=10)})
    assert room.left(TOKENS) == 100
    await room.ask((TOPIC, "x" * 130))  # estimated as 35 tokens, but the engine counts 130
    assert room.left(TOKENS) == -30
    told = await refused(room, (TOPIC, "xx"))
    assert told == {"quota": TOKENS, "limit": 10, "retry_after_s": math.ceil((30 + 3) / 10)}
    room.clock.at += told["retry_after_s"]
    await room.ask((TOPIC, "xx"))
    assert room.left(TOKENS) == pytest.approx(10 - 2), "two were counted, three estimated"


async def test_a_call_over_several_tenants_is_charged_to_each_and_refused_as_a_whole() -> None:
    room = Room({"acme": TenantLimits(requests_per_s=1), "zeta": TenantLimits(requests_per_s=0.2)})
    asks = [(TOPIC, "a"), (TOPIC, "b"), (OTHER, "c")]
    await room.ask(*asks, caller=ADMINISTRATOR)
    assert (room.left(REQUESTS), room.left(REQUESTS, "zeta")) == (8, 1)
    await room.ask(*asks, caller=ADMINISTRATOR)
    told = await refused(room, *asks, caller=ADMINISTRATOR)
    assert told["retry_after_s"] == 5, "zeta's, which takes longest"
    assert (room.left(REQUESTS), room.left(REQUESTS, "zeta")) == (6, 0), "acme is charged nothing"
    await room.ask((TOPIC, "a"))


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (Unavailable("full"), False),
        (QuotaExceeded("too much waits"), False),
        (InvalidInput("a pair"), False),
        (ZeroDivisionError(), False),
        (DeadlineExceeded("too late"), True),
        (asyncio.CancelledError(), True),
    ],
)
async def test_a_call_is_charged_if_its_work_may_have_been_done(error: BaseException, kept: bool) -> None:
    room = Room({"acme": TenantLimits(requests_per_s=1, tokens_per_s=10)})

    async def fail(_: object) -> Sequence[TextResult]:
        raise error

    room.echo.infer = fail  # type: ignore[method-assign, assignment]
    with pytest.raises(type(error)):
        await room.ask((TOPIC, "x" * 40))
    assert (room.left(REQUESTS), room.left(TOKENS)) == ((9, 88) if kept else (10, 100))


@pytest.mark.parametrize("error", [CutShort("no form"), InvalidInput("the third prompt is too long")])
@pytest.mark.parametrize("tokens", [0, 30])
def test_what_was_done_by_an_error_is_charged(error: Exception, tokens: int) -> None:
    room = Room({"acme": TenantLimits(requests_per_s=1, tokens_per_s=10)})

    def fail() -> None:
        with room.rates.charged([WriteRequest(TOPIC, "x" * 40, most=20)]) as settle:
            settle([Cost(TOPIC, tokens)])
            raise error

    with pytest.raises(type(error)):
        fail()
    assert (room.left(REQUESTS), room.left(TOKENS)) == ((9, 70) if tokens else (10, 100))


@pytest.mark.parametrize("per_s", [5e-324, 1e-300, 1e-6])
async def test_a_rate_next_to_nothing_has_a_wait_that_clients_can_use(per_s: float) -> None:
    room = Room({"acme": TenantLimits(requests_per_s=per_s)})
    await room.ask((TOPIC, "a"))
    with pytest.raises(QuotaExceeded) as caught:
        await room.ask((TOPIC, "b"))
    assert caught.value.details["retry_after_s"] <= 1000


async def test_limits_hold_from_the_next_call_on() -> None:
    room = Room({"acme": TenantLimits(requests_per_s=0.1)})
    await room.ask((TOPIC, "a"))
    await refused(room, (TOPIC, "a"))
    room.limits["acme"] = TenantLimits(requests_per_s=100)
    room.clock.at += 0.1
    await room.ask((TOPIC, "a"))
    room.limits["acme"] = TenantLimits()
    await room.ask((TOPIC, "a"))
    assert room.rates.states("acme") == []


def test_memory_holds_only_those_who_were_here_lately() -> None:
    clock = Clock()
    buckets, rate = Buckets(clock), Rate(1.0, 10.0)
    for i in range(100_000):
        buckets.take(f"t{i}", rate, 5.0)
        clock.at += 0.01  # full again after 500 others
        assert len(buckets) <= SPARE + 2 * 501
    assert len(buckets) >= 500
    assert buckets.left("t99999", rate) == pytest.approx(5.01)
    assert buckets.left("t0", rate) == 10.0


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 30)), min_size=1, max_size=40))
def test_no_more_is_taken_than_flows_and_the_burst(steps: list[tuple[float, float]]) -> None:
    clock = Clock(0.0)
    buckets, rate, taken = Buckets(clock), Rate(2.0, 10.0), 0.0
    for pause, amount in steps:
        clock.at += pause
        if not buckets.wait_s("t", rate, amount):
            buckets.take("t", rate, amount)
            taken += min(amount, 10.0)
        assert taken <= 10.0 + 2.0 * clock.at + 1e-6
