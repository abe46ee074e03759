"""How far a server follows the journal before it answers, what it does while the bucket is silent, and how it
finds others again."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from hmi.api.nodes import servers
from hmi.api.nodes.forward import Forwarder
from hmi.api.nodes.servers import Servers
from hmi.config import Settings
from hmi.errors import Unavailable


class SlowRegistry:
    """A registry whose bucket answers when it is let."""

    def __init__(self) -> None:
        self.at, self.asked, self.answers = 3, 0, threading.Event()
        self.listed: dict[str, str] = {}

    def node(self) -> str:
        return "me"

    def generation(self) -> int:
        return self.at

    def position(self) -> int:
        return self.at

    def secret(self) -> str:
        return "s"

    def servers(self) -> list[Any]:
        return [SimpleNamespace(node=node, url=url) for node, url in self.listed.items()]

    def leave(self, node: str) -> None:
        del self.listed[node]
        self.at += 1

    def catch_up(self) -> bool:
        self.asked += 1
        self.answers.wait(30)
        self.at = 5
        return True


@pytest.fixture
def one() -> tuple[Servers, SlowRegistry]:
    registry = SlowRegistry()
    found = Servers(cast(Any, registry), cast(Any, None), Forwarder(Settings()))
    found._refresh()
    return found, registry


async def elsewhere(one: tuple[Servers, SlowRegistry], answer: Any) -> tuple[bytes, int] | None:
    """Send a call to another server, and return its answer; None if it does not count.

    answer: the handler of the other server.
    """
    found, registry = one
    found._inference = cast(Any, SimpleNamespace(engine=SimpleNamespace(wait_s=lambda tenant: 9.0)))
    app = web.Application()
    app.router.add_post("/there", answer)
    async with TestServer(app) as other:
        registry.listed = {"other": str(other.make_url("")).rstrip("/"), "me": "http://me"}
        registry.at += 1

        async def send(url: str, more: Any) -> Any:
            return await found._forwarder.send(f"{url}/there", dict(more), b"data")

        try:
            async with found.elsewhere("acme", send) as got:
                return None if got is None else (await got.read(), got.status)
        finally:
            await found._forwarder.close()


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


@pytest.mark.parametrize(
    ("status", "knows", "is_answer"),
    [
        (200, True, True),
        (404, True, True),
        (401, False, True),
        (200, False, False),
        (404, False, False),
        (503, True, False),
    ],
)
async def test_an_answer_counts_unless_the_other_cannot_give_it(
    one: tuple[Servers, SlowRegistry], status: int, knows: bool, is_answer: bool
) -> None:
    """One without a word about the tenant is a proxy's, or that of a release that has no such call."""
    seen: list[Any] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append((await request.read(), dict(request.headers)))
        return web.Response(
            status=status, text="said", headers={servers.WAITS: "0", servers.AT: "3"} if knows else {}
        )

    assert await elsewhere(one, answer) == ((b"said", status) if is_answer else None)
    ((body, headers),) = seen
    known = (headers[servers.KEY], headers[servers.AT], headers["X-HMI-Forwarded"])
    assert (body, known) == (b"data", ("s", "4", "1"))
    assert one[0].passed == is_answer


async def test_a_server_that_dies_within_its_answer_gives_none(one: tuple[Servers, SlowRegistry]) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        begun = web.StreamResponse(headers={"Content-Length": "1000", servers.WAITS: "0", servers.AT: "3"})
        await begun.prepare(request)
        await begun.write(b"the beginning")
        assert request.transport is not None
        request.transport.abort()
        return begun

    assert await elsewhere(one, answer) is None
    assert (one[0].passed, set(one[0]._ring.away)) == (0, {"other"})


async def test_a_server_that_is_back_is_found_and_one_that_stays_away_is_taken_off(
    one: tuple[Servers, SlowRegistry], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, registry = one
    monkeypatch.setattr(servers, "GONE_S", 0.0)

    async def healthy(_: web.Request) -> web.Response:
        return web.Response()

    app = web.Application()
    app.router.add_get("/healthz", healthy)
    async with TestServer(app) as back:
        registry.listed = {"back": str(back.make_url("")).rstrip("/"), "gone": "http://127.0.0.1:1"}
        registry.at += 1
        found._refresh()
        for node in registry.listed:
            found._ring.failed(node)
        await found._look_at_others(leads=False)
        assert set(found._ring.away) == {"gone"}
        assert set(registry.listed) == {"back", "gone"}, "only the primary changes the list"
        await found._look_at_others(leads=True)
        assert set(registry.listed) == {"back"}
        assert len(await asyncio.gather(*(found._lives(registry.listed["back"]) for _ in range(50)))) == 50
    await found._forwarder.close()
