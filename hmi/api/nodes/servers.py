"""One server among those that share a bucket: which one answers a tenant, and what happens when one comes or
goes.

Every server can answer every call. So a server that another one cannot reach costs time, and no answer.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from hmi.api.infer.inference import Inference
from hmi.api.nodes.forward import FORWARDED, Forwarder, passed_back
from hmi.api.nodes.ring import Ring, ranked
from hmi.api.protocols.base import JSON
from hmi.core import ModelId
from hmi.errors import Forbidden, HmiError, Unavailable
from hmi.manager.following import LOOK_S
from hmi.stores.failures import log_failure
from hmi.stores.records.nodes import Places
from hmi.stores.records.registry import Registry

if TYPE_CHECKING:
    from aiohttp import ClientResponse, web
else:
    from hmi.api.lazy_import import web

log = logging.getLogger("hmi.api")
KEY: Final = "X-HMI-Server-Key"
"""The header by which a server knows another one: the registry's secret, which every server has."""
WAITS: Final = "X-HMI-Wait-Seconds"
"""The header of an answer to another server: how long a text of the tenant would wait."""
AT: Final = "X-HMI-Position"
"""The header with how far a server has followed the journal. The other one does not answer from less, so that
nobody sees an older version after a newer one."""
REACH_S: Final = 1.0
"""Longest time that a call waits until this server has followed the journal far enough."""
ALONE_S: Final = 5.0
"""No call waits for the bucket for this many seconds after one did so in vain."""
RECENT_S: Final = 3600.0
"""Models that answered within this many seconds are loaded by the server that answers them next."""
COMING_S: Final = 20.0
"""Longest time that a server takes to load what it will answer, before calls are passed to it."""
LEAVING_S: Final = 8.0
"""Longest time that a server takes to let others load what it answered."""
SEEN_S: Final = 3 * LOOK_S
"""Time after which all others have seen that a server left."""
HUNG_S: Final = 0.5
"""A server that has not begun to answer after this many seconds is asked whether it lives."""
ALIVE_S: Final = 1.0
"""A server that lives says so within this many seconds."""
LOOK_ROUND_S: Final = 5.0
"""Interval at which each server looks whether it is listed, and whether those live that it could not reach;
the primary looks at all."""
VIEW_S: Final = 2.0
"""Longest wait for another server's view of itself."""
LAG_EVERY_S: Final = 0.1
"""Interval at which a server measures how late its event loop is."""
GONE_S: Final = 30.0
"""A server that has not been reached for this many seconds is taken off the list. It may enter again."""
MOST_MODELS: Final = 10_000
Send: TypeAlias = "Callable[[str, Mapping[str, str]], Awaitable[ClientResponse]]"
"""Sends a call to the server at a URL, with further headers, and returns its answer, which the caller closes.
Raises aiohttp's ClientError, and TimeoutError."""


class Servers:
    """The servers that answer for each other. Used on the event loop."""

    def __init__(self, registry: Registry, inference: Inference, forwarder: Forwarder) -> None:
        self._registry, self._inference, self._forwarder = registry, inference, forwarder
        self.me = registry.node()
        self.url = self._secret = ""
        """`url`: where others reach this server."""
        self._ring = Ring(self.me)
        self._generation = -1
        self._position = self._heard_at = 0
        self._catching: asyncio.Future[bool] | None = None
        self._alone_until = 0.0
        """Until then, on the monotonic clock, the bucket is not asked for the sake of a call."""
        self._gone_since: dict[str, float] = {}
        self._probes: dict[str, asyncio.Future[bool]] = {}
        """Whether a server lives, by URL, as far as it is being asked."""
        self._lag_s = 0.0
        """How long a call waits until the event loop sees it."""
        self._tasks: list[asyncio.Task[None]] = []
        self._entered, self._replaced_by = False, ""
        """Whether it was listed; and the id of a server that has this one's URL; "" if none has it."""
        self.passed = self.answered = 0
        """Calls that another server answered; and those that were answered for another server."""

    # Calls

    def check_key(self, request: web.BaseRequest) -> None:
        """Raise Forbidden unless another server sent the request."""
        self._refresh()
        if not self._is_from_server(request):
            raise Forbidden("this call is for servers that share a bucket: it needs their key")

    async def answer(
        self, request: web.Request, request_id: str, tenant: str, body: bytes
    ) -> web.StreamResponse | None:
        """Let another server answer a call, if it should. None: this one is to answer it.

        body: the request's body, which has been read.
        """
        if FORWARDED in request.headers:
            return None
        send = partial(self._forwarder.ask, request, request_id, body)
        async with self.elsewhere(tenant, send) as answer:
            return None if answer is None else await passed_back(request, answer)

    @asynccontextmanager
    async def elsewhere(self, tenant: str, send: Send) -> AsyncIterator[ClientResponse | None]:
        """Context manager: another server's answer to a call of a tenant; None: this one is to answer."""
        self._refresh()
        waits_s = self._inference.engine.wait_s(tenant)
        server = self._ring.choose(tenant, waits_s, time.monotonic())
        answer = None if server == self.me else await self._ask(server, send)
        if answer is not None:
            async with answer:
                told = self._hear(server, tenant, answer.headers)
                # A proxy says nothing about the tenant. Neither does an older release that has no such path,
                # nor a server that refuses the key.
                if answer.status != 503 and (told or answer.status == 401):
                    self.passed += 1
                    yield answer
                    return
        with suppress(Unavailable):  # the bucket is away: what this server has is answered
            await self._reach(self._heard_at)
        yield None

    async def follow(self, request: web.Request) -> None:
        """Count a call that another server passed on, and follow the journal as far as that one had.

        Raises Unavailable if that takes long or fails.
        """
        self._refresh()
        if self._is_from_server(request):
            self.answered += 1
            await self._reach(int(request.headers.get(AT, 0)))

    def note_wait(self, tenant: str, headers: Any) -> None:
        """Tell the server that passed on a call of this tenant how this one stands."""
        # For the event loop, and then for a batch.
        headers[WAITS] = f"{self._lag_s + self._inference.engine.wait_s(tenant):.3f}"
        headers[AT] = str(self._position)

    def _is_from_server(self, request: web.BaseRequest) -> bool:
        given = request.headers.get(KEY, "").encode(errors="replace")
        return bool(self._secret) and hmac.compare_digest(given, self._secret.encode())

    def _refresh(self) -> None:
        """Take the servers from the registry, if it has changed."""
        generation = self._registry.generation()
        if generation != self._generation:
            self._generation, self._position = generation, self._registry.position()
            self._secret = self._registry.secret()
            self._ring.set({server.node: server.url for server in self._registry.servers()})

    async def _reach(self, position: int) -> None:
        """Follow the journal at least to a position. Raises Unavailable if that takes long or fails."""
        if position <= self._position:
            return
        if time.monotonic() < self._alone_until:
            raise _behind()
        if self._catching is None or self._catching.done():
            # One for all calls: each holds a thread for as long as the bucket is silent.
            self._catching = asyncio.ensure_future(asyncio.to_thread(self._registry.catch_up))
            self._catching.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            async with asyncio.timeout(REACH_S):
                await asyncio.shield(self._catching)
        except (TimeoutError, HmiError) as error:
            self._alone_until = time.monotonic() + ALONE_S
            raise _behind() from error
        self._refresh()

    def _hear(self, server: str, tenant: str, headers: Mapping[str, str]) -> bool:
        """Take in how a server stands. False if its answer does not say: it is stopping, or an older one."""
        try:
            waits_s, at = float(headers[WAITS]), int(headers[AT])
        except (ValueError, KeyError):
            return False
        self._ring.heard(server, tenant, waits_s, time.monotonic())
        self._heard_at = max(self._heard_at, at)
        return True

    async def _ask(self, server: str, send: Send) -> ClientResponse | None:
        """What `send` returns for a server; None if that gives no answer."""
        import aiohttp

        url, more = self._ring.servers[server], {AT: str(self._position), KEY: self._secret}
        asking = asyncio.ensure_future(send(url, more))
        try:
            while not (await asyncio.wait([asking], timeout=HUNG_S))[0]:
                if not await self._lives(url) and not asking.done():
                    raise TimeoutError
            return await asking
        except (aiohttp.ClientError, TimeoutError) as error:
            if server not in self._ring.away:
                log.warning(
                    "%s does not answer (%s): its tenants are answered elsewhere", url, _reason(error, url)
                )
            self._ring.failed(server)
            return None
        finally:
            asking.cancel()

    async def _lives(self, url: str) -> bool:
        """Return whether a server answers. All calls that wait for it ask once."""
        probe = self._probes.get(url)
        if probe is None:
            probe = self._probes[url] = asyncio.ensure_future(self._probe(url))
            probe.add_done_callback(lambda _: self._probes.pop(url))
        return await asyncio.shield(probe)

    async def _probe(self, url: str) -> bool:
        import aiohttp

        limit = aiohttp.ClientTimeout(total=ALIVE_S)
        while True:
            began = time.monotonic()
            try:
                async with self._forwarder.client().get(f"{url}/healthz", timeout=limit) as answer:
                    return answer.status == 200
            except TimeoutError:
                if time.monotonic() - began < ALIVE_S + LAG_EVERY_S:
                    return False
                # This server itself was late: it asks once more.
            except aiohttp.ClientError:
                return False

    # What operators see

    def urls(self) -> dict[str, str]:
        """The URLs of the servers that answer, by id."""
        self._refresh()
        return dict(self._ring.servers)

    async def ask_for_view(self, url: str, request: web.BaseRequest) -> Any:
        """Another server's view of itself, for the caller of `request`; None if it gives none."""
        given = request.headers.get("Authorization")
        headers = {} if given is None else {"Authorization": given}
        return await self._between("GET", f"{url}/manage/server", headers=headers, within_s=VIEW_S)

    # Coming and going

    async def enter(self, url: str) -> None:
        """Load what this server is about to answer, and let others pass calls on to it.

        url: where they reach it.
        """
        self.url = url
        self._refresh()
        others = {node: at for node, at in self._ring.servers.items() if node != self.me}
        everybody = [*others, self.me]
        try:
            async with asyncio.timeout(COMING_S):
                found = await asyncio.gather(*(self._models_of(at) for at in others.values()))
                mine = [model for models in found for model in models if _is_first(self.me, model, everybody)]
                await self._inference.engine.load(mine[:MOST_MODELS])
        except TimeoutError:
            log.info("calls come before all models are loaded that this server answers from now on")
        await self._enter()
        self._tasks = [asyncio.create_task(self._watch()), asyncio.create_task(self._measure_lag())]

    async def leave(self) -> None:
        """Let others load what this server answered, and get no more of their calls."""
        if not self._tasks:
            return
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._refresh()
        others = {node: at for node, at in self._ring.servers.items() if node != self.me}
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVING_S):
                await self._hand_over(others)
        try:
            await asyncio.to_thread(self._registry.leave, self.me)
        except HmiError as error:
            log_failure(log, "this server stays listed, and others will find it gone", error)
        if others:
            await asyncio.sleep(SEEN_S)

    def recent(self) -> list[ModelId]:
        """The models that this server answered lately, the latest first."""
        return self._inference.tally.recent(time.time() - RECENT_S)[:MOST_MODELS]

    async def _hand_over(self, others: Mapping[str, str]) -> None:
        """Let each of the others load the models that it answers next."""
        models: dict[str, list[str]] = {}
        for model in self.recent() if others else ():
            models.setdefault(ranked(model.tenant, list(others))[0], []).append(str(model))
        await asyncio.gather(*(self._let_load(others[node], names) for node, names in models.items()))

    async def _let_load(self, url: str, models: Sequence[str]) -> None:
        await self._between("POST", f"{url}/server/models", {"models": models})

    async def _models_of(self, url: str) -> list[ModelId]:
        found = await self._between("GET", f"{url}/server/models")
        return [ModelId.parse(model) for model in (found or {}).get("models", [])]

    async def _between(
        self,
        method: str,
        url: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        within_s: float = COMING_S,
    ) -> Any:
        """The answer to a call of one server to another; None if there is none. headers: in place of KEY."""
        import aiohttp

        given = {"Content-Type": JSON, **({KEY: self._secret} if headers is None else headers)}
        limit = aiohttp.ClientTimeout(total=within_s)
        try:
            async with self._forwarder.client().request(
                method, url, json=body, headers=given, timeout=limit
            ) as answer:
                if answer.status == 200:
                    return await answer.json()
                log.warning("%s answered with status %d", url, answer.status)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            log.warning("%s did not answer (%s)", url, _reason(error, url))
        return None

    async def _enter(self) -> None:
        try:
            settings = self._inference.settings
            places = Places(primary=settings.job_workers, replica=settings.replica_jobs)
            await asyncio.to_thread(self._registry.enter, self.url, places)
            self._entered = True
        except HmiError as error:
            log_failure(log, "this server could not be listed; it tries again", error)

    def _is_replaced(self) -> bool:
        """Return whether a server that came later has this one's URL. Both would enter again and again."""
        before, self._replaced_by = self._replaced_by, ""
        for node, url in self._ring.servers.items():
            if url == self.url and node != self.me and self._entered:
                self._replaced_by = node
        if self._replaced_by not in ("", before):
            log.error(
                "server %s came later and is listed under %s, so this one gets no calls from others: give "
                "one of them another node_url",
                self._replaced_by,
                self.url,
            )
        return bool(self._replaced_by)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_ROUND_S)
            try:
                self._refresh()
                await self._look_at_others(leads=self._registry.is_primary())
                if self._ring.servers.get(self.me) != self.url and not self._is_replaced():
                    await self._enter()
            except Exception as error:  # whatever it was, the next look may succeed
                log_failure(log, "the other servers could not be looked at; the next look follows", error)

    async def _measure_lag(self) -> None:
        while True:
            due = time.monotonic() + LAG_EVERY_S
            await asyncio.sleep(LAG_EVERY_S)
            self._lag_s = time.monotonic() - due

    async def _look_at_others(self, *, leads: bool) -> None:
        """Find those again that could not be reached. The primary takes off the list who stays away."""
        servers, away = self._ring.servers, self._ring.away
        asked = [node for node in servers if node != self.me and (leads or node in away)]
        alive = await asyncio.gather(*(self._lives(servers[node]) for node in asked))
        at, before, self._gone_since = time.monotonic(), self._gone_since, {}
        for node, lives in zip(asked, alive, strict=True):
            if lives:
                self._ring.found(node)
            else:
                self._ring.failed(node)
                self._gone_since[node] = before.get(node, at)
        for node, since in self._gone_since.items() if leads else ():
            if at - since >= GONE_S:
                log.warning("%s has not answered for %d s, and is taken off the list", servers[node], GONE_S)
                await asyncio.to_thread(self._registry.leave, node)


def _reason(error: Exception, url: str) -> str:
    """Why the server at a URL did not answer."""
    import aiohttp

    if isinstance(error, aiohttp.ClientSSLError) or "[SSL" in str(error):
        return f"TLS fails, see node_ca and tls_client_ca: {error}"
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    gone = isinstance(error, aiohttp.ServerDisconnectedError)
    if url.startswith("https:") and (gone or isinstance(error.__cause__, ConnectionResetError)):
        # With TLS 1.3 the handshake is over for a client whose certificate the server then refuses.
        return f"{said}: it has died, or refuses this server's certificate, see tls_client_ca there"
    return said


def _behind() -> Unavailable:
    return Unavailable(
        "this server could not follow the bucket just now: another one may answer", retry_after_s=1
    )


def _is_first(server: str, model: ModelId, servers: Iterable[str]) -> bool:
    return ranked(model.tenant, list(servers))[0] == server
