"""Texts on their way into the batch queue: checked and tokenised on one thread, in short turns that are fair among
tenants.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

from hmi.core import ModelId
from hmi.engine.bundles import Bundle, Bundles
from hmi.engine.recent import Recent
from hmi.engine.request import InferRequest
from hmi.engine.room import Room
from hmi.engine.turns import Turns
from hmi.errors import InvalidInput
from hmi.model.batching import Encoded
from hmi.model.tokenizer import Text
from hmi.model.windows import encode_texts

SLICE_S = 0.003
"""A turn ends with the first text after this time."""
RESTS = 3
"""While others have sent something lately, a tenant is tokenised for a quarter of the time: after a turn it rests three
times as long. Much of tokenising holds the interpreter's lock, which each step of a batch waits for. A quarter of the
time still gives more tokens than can be computed."""
LEAST_S, MOST_S = 0.001, 0.02
"""A shorter turn needs no rest, a longer one no more than this one."""
MOST_CHARACTERS = 32 << 20
"""Text that may wait to be tokenised, of all tenants."""

Prepared = tuple[Bundle, list[Encoded]]
"""What answers a text, and the text's windows."""


@dataclass
class Share:
    """One tenant's texts of one call, with their places in the call. All texts of a model have one bundle."""

    tenant: str
    texts: list[tuple[int, InferRequest]]
    future: asyncio.Future[list[Prepared]]
    done: list[Prepared] = field(default_factory=list)
    pinned: dict[ModelId, Bundle] = field(default_factory=dict)
    error: Exception | None = None
    """What is wrong with one of the texts."""

    def go_on(self, bundles: Bundles) -> float:
        """Prepare texts for SLICE_S (one at least), to the first that is wrong; the seconds it took."""
        begun = time.monotonic()
        try:
            while len(self.done) < len(self.texts):
                self._prepare(bundles, *self.texts[len(self.done)])
                if time.monotonic() - begun > SLICE_S:
                    break
        except Exception as error:  # no less of a turn: who sends such calls only must not have all turns
            self.error = error
        return time.monotonic() - begun

    def settle(self) -> None:
        """Tell who waits, where there is something to tell."""
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        elif len(self.done) == len(self.texts):
            self.future.set_result(self.done)

    def _prepare(self, bundles: Bundles, place: int, request: InferRequest) -> None:
        bundle = self.pinned.get(request.model) or bundles.resolve(request.model)
        self.pinned[request.model] = bundle
        check_text(request.text, bundle, f"inputs[{place}]")
        self.done.append((bundle, _windows(request.text, bundle)))


class Preparing:
    """Owns the texts that are not tokenised yet, and the thread that does it.

    That thread is not one of those that batches run on: these must not wait for it.
    """

    def __init__(self, bundles: Bundles) -> None:
        self._bundles = bundles
        self._room = Room(MOST_CHARACTERS, "characters")
        self._turns = Turns()
        self._recent = Recent()
        self._resting: dict[str, float] = {}
        """Until when, by `time.monotonic()`."""
        self._waiting: dict[str, deque[Share]] = {}
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="hmi-tokenise")
        self._work: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._work = asyncio.create_task(self._forever())

    def fail_all(self, error: Exception) -> None:
        """Answer everything that waits with `error` (shutdown)."""
        for shares in self._waiting.values():
            for share in shares:
                share.error = error
                share.settle()

    async def stop(self) -> None:
        """Nothing may wait any more."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)
        self._thread.shutdown()

    async def prepare(self, requests: Sequence[InferRequest]) -> list[Prepared]:
        """Bundles and windows of a call's texts, in their order. A call that is cancelled is dropped.

        Raises NotFound, InvalidInput (field `inputs[i]…`), Unavailable where too much text waits.
        """
        characters: Counter[str] = Counter()
        by_tenant: dict[str, list[tuple[int, InferRequest]]] = {}
        for i, request in enumerate(requests):
            tenant = request.model.tenant
            characters[tenant] += _length(request.text)
            by_tenant.setdefault(tenant, []).append((i, request))
        self._room.take(characters)
        loop = asyncio.get_running_loop()
        shares = [Share(tenant, texts, loop.create_future()) for tenant, texts in by_tenant.items()]
        for share in shares:
            self._waiting.setdefault(share.tenant, deque()).append(share)
            self._recent.sent(share.tenant)
        self._arrived.set()
        try:
            await asyncio.gather(*(share.future for share in shares))
        finally:
            for share in shares:
                share.future.cancel()
            for tenant, amount in characters.items():
                self._room.leave(tenant, amount)
        found = {place: done for s in shares for (place, _), done in zip(s.texts, s.done, strict=True)}
        return [found[i] for i in range(len(requests))]

    async def _forever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            share = await self._next()
            self._turns.begin(share.tenant)
            took = await loop.run_in_executor(self._thread, share.go_on, self._bundles)
            self._turns.charge(share.tenant, took)
            if took > LEAST_S and self._recent.other_than((share.tenant,)):
                # Longer only where a root was loaded, which is not the tenant's work.
                self._resting[share.tenant] = time.monotonic() + RESTS * min(took, MOST_S)
            share.settle()

    async def _next(self) -> Share:
        """The share whose turn it is; those that are done, failed or cancelled go."""
        while True:
            for tenant, shares in list(self._waiting.items()):
                while shares and shares[0].future.done():
                    shares.popleft()
                if not shares:
                    del self._waiting[tenant]
            now = time.monotonic()
            self._resting = {tenant: until for tenant, until in self._resting.items() if until > now}
            awake = self._waiting.keys() - self._resting.keys()
            if awake:
                return self._waiting[min(awake, key=self._turns.given)][0]
            self._arrived.clear()
            first = min((self._resting[tenant] for tenant in self._waiting), default=None)
            with suppress(TimeoutError):
                async with asyncio.timeout_at(first):  # the loop's clock is time.monotonic()
                    await self._arrived.wait()


def check_text(text: Text, bundle: Bundle, field: str) -> None:
    """Raise InvalidInput where the input's kind does not fit the model's task or the text is empty."""
    wanted, called = bundle.task.form
    if not isinstance(text, wanted):
        task = bundle.version.task
        article = "an" if task == "embedding" else "a"
        raise InvalidInput(f"{bundle.model} is {article} {task} model: give {called} in {field}", field=field)
    parts = [text] if isinstance(text, str) else list(text)
    if not parts or not all(p.strip() for p in parts):
        raise InvalidInput(f"{field} is empty: give some text", field=field)


def _windows(text: Text, bundle: Bundle) -> list[Encoded]:
    length, windows = bundle.version.max_length, bundle.task.rules.windows
    (found,) = encode_texts(bundle.root.tokenizer, [text], length, windows=windows)
    return found


def _length(text: Text) -> int:
    return len(text) if isinstance(text, str) else sum(map(len, text))
