"""How far a server follows the journal before it answers, and what it does while the bucket is silent."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast

import pytest

from hmi.api.nodes import servers
from hmi.api.nodes.servers import Servers
from hmi.config import Settings
from hmi.errors import Unavailable


class SlowRegistry:
    """A registry whose bucket answers when it is let."""

    def __init__(self) -> None:
        self.at, self.asked, self.answers = 3, 0, threading.Event()

    def node(self) -> str:
        return "me"

    def generation(self) -> int:
        return self.at

    def position(self) -> int:
        return self.at

    def secret(self) -> str:
        return "s"

    def servers(self) -> list[Any]:
        return []

    def catch_up(self) -> bool:
        self.asked += 1
        self.answers.wait(30)
        self.at = 5
        return True


@pytest.fixture
def one() -> tuple[Servers, SlowRegistry]:
    registry = SlowRegistry()
    found = Servers(cast(Any, registry), cast(Any, None), cast(Any, Settings()))
    found._refresh()
    return found, registry


async def test_calls_wait_together_until_the_server_has_followed(one: tuple[Servers, SlowRegistry]) -> None:
    found, registry = one
    calls = [asyncio.ensure_future(found._reach(5)) for _ in range(50)]
    await asyncio.sleep(0)
    registry.answers.set()
    await asyncio.gather(*calls)
    assert registry.asked == 1
    await found._reach(5)
    assert registry.asked == 1, "it is there already"


async def test_no_call_waits_long_for_a_bucket_that_is_silent(
    one: tuple[Servers, SlowRegistry], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, registry = one
    monkeypatch.setattr(servers, "REACH_S", 0.05)
    outcomes = await asyncio.gather(*(found._reach(5) for _ in range(50)), return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {Unavailable}
    for _ in range(20):  # these do not wait at all
        with pytest.raises(Unavailable):
            await found._reach(5)
    assert registry.asked == 1, "a silent bucket holds one thread"
    await found._reach(3)
    registry.answers.set()
