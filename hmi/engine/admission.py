"""Admission to the batch queue: pins the models of texts, checks and tokenises the texts. Tenants take short
turns."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from hmi.core import ModelId
from hmi.engine.bundles import Bundle
from hmi.engine.pins import Pins
from hmi.engine.recent import Recent
from hmi.engine.request import InferRequest
from hmi.engine.room import Room
from hmi.engine.threads import contained, in_thread
from hmi.engine.turns import Turns
from hmi.errors import HmiError, InvalidInput, NotFound, copy_of
from hmi.model.batching import Encoded
from hmi.model.tokenizer import Text
from hmi.model.windows import encode_texts

SLICE_S = 0.003
"""A turn ends with the first text after this time."""
RESTS = 3
"""While others have sent something lately, a tenant is tokenised for a quarter of the time: after a turn it
rests three times as long. Much of tokenising holds the interpreter's lock, which each step of a batch waits
for. A quarter of the time still gives more tokens than can be computed."""
LEAST_S, MOST_S = 0.001, 0.02
"""A shorter turn needs no rest, a longer one no more than this one."""
MOST_CHARACTERS = 32 << 20
"""Text that may wait to be tokenised, of all tenants."""

Admitted = tuple[Bundle, list[Encoded]]
"""What answers a text, and the text's windows."""
Wanted = tuple[ModelId, bool]
"""A model, and whether its lower layers are wanted too, for the exact reference."""


@dataclass
class Share:
    """One tenant's texts of one call, with their places in the call. All texts of a model have one bundle."""

    tenant: str
    texts: list[tuple[int, InferRequest]]
    future: asyncio.Future[list[Admitted]]
    done: list[Admitted] = field(default_factory=list)
    pinned: dict[Wanted, Bundle] = field(default_factory=dict)
    cold: Wanted | None = None
    """What has to be loaded before the next text."""
    error: Exception | None = None
    """What is wrong with one of the texts."""

    @property
    def next(self) -> InferRequest:
        """The text that is to be tokenised next."""
        return self.texts[len(self.done)][1]

    def go_on(self, pins: Pins) -> float:
        """Tokenise texts for SLICE_S (one at least), to the first that is wrong or cold; the seconds it took.
        Never waits for the disk.
        """
        begun = time.monotonic()
        try:
            contained(lambda: self._admit_until(begun + SLICE_S, pins))()
        except Exception as error:  # no less of a turn: who sends such calls only must not have all turns
            self.fail(error)
        return time.monotonic() - begun

    def fail(self, error: Exception) -> None:
        """What is wrong with the next text, or its model."""
        if isinstance(error, NotFound) and self.next.model_place is not None:
            error.details["field"] = self.next.model_place
        self.error = error

    def settle(self) -> None:
        """Tell who waits, where there is something to tell."""
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        elif len(self.done) == len(self.texts):
            self.future.set_result(self.done)

    def _admit_until(self, end: float, pins: Pins) -> None:
        while len(self.done) < len(self.texts) and self._admit(pins) and time.monotonic() <= end:
            pass

    def _admit(self, pins: Pins) -> bool:
        """The next text; whether its model was at hand."""
        request = self.next
        wanted = request.model, request.exact
        bundle = self.pinned.get(wanted) or pins.found(request.model, exact=request.exact)
        if bundle is None:
            self.cold = wanted
            return False
        self.pinned[wanted] = bundle
        check_form(request, bundle)
        self.done.append((bundle, _windows(request.text, bundle)))
        return True


class Admission:
    """Owns the texts that are not tokenised yet, and the thread that does it.

    That thread is no compute thread, so batches need not wait for it. Nor does it wait for loads: a text
    whose model is not in memory stands aside until the model is loaded.
    """

    def __init__(self, pins: Pins) -> None:
        self._pins = pins
        self._room = Room(MOST_CHARACTERS, "characters")
        self._turns = Turns()
        self._recent = Recent()
        self._resting: dict[str, float] = {}
        """Until when, by `time.monotonic()`."""
        self._waiting: dict[str, deque[Share]] = {}
        self._aside: dict[asyncio.Task[None], Share] = {}
        """Those whose models are being loaded."""
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="hmi-tokenise")

    def fail_all(self, error: Exception) -> None:
        """Answer everything that waits with `error` (shutdown)."""
        for share in (
            *(share for shares in self._waiting.values() for share in shares),
            *self._aside.values(),
        ):
            share.error = copy_of(error)
            share.settle()

    async def close(self) -> None:
        """Nothing may wait any more."""
        for task in self._aside:
            task.cancel()
        await asyncio.gather(*self._aside, return_exceptions=True)
        await asyncio.to_thread(self._thread.shutdown)

    async def admit(self, requests: Sequence[InferRequest]) -> list[Admitted]:
        """Bundles and windows of a call's texts, in their order. A call that is cancelled is dropped.

        Raises NotFound, InvalidInput (field: the request's `place`), Unavailable where too much text waits,
        Damaged.
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
            self._recent.sent(share.tenant)
            self._line_up(share)
        try:
            await asyncio.gather(*(share.future for share in shares))
        finally:
            for share in shares:
                share.future.cancel()
            for tenant, amount in characters.items():
                self._room.leave(tenant, amount)
        found = {place: done for s in shares for (place, _), done in zip(s.texts, s.done, strict=True)}
        return [found[i] for i in range(len(requests))]

    async def run(self) -> None:
        """Give turns, for ever."""
        while True:
            share = await self._next()
            self._turns.begin(share.tenant)
            try:
                took = await in_thread(self._thread, partial(share.go_on, self._pins))
            except BaseException:
                share.error = HmiError("tokenising ended unexpectedly; send the request again")
                share.settle()
                raise
            self._turns.charge(share.tenant, took)
            if took > LEAST_S and self._recent.other_than((share.tenant,)):
                self._resting[share.tenant] = time.monotonic() + RESTS * min(took, MOST_S)
            if share.cold is not None and not share.future.done():  # for nobody, nothing is loaded
                self._stand_aside(share)
            share.settle()

    def _line_up(self, share: Share) -> None:
        self._waiting.setdefault(share.tenant, deque()).append(share)
        self._arrived.set()

    def _stand_aside(self, share: Share) -> None:
        """Until what is cold is loaded: others of the tenant have their turns meanwhile."""
        self._waiting[share.tenant].remove(share)
        task = asyncio.create_task(self._warm(share))
        self._aside[task] = share
        task.add_done_callback(self._aside.pop)

    async def _warm(self, share: Share) -> None:
        assert share.cold is not None
        model, exact = share.cold
        try:
            share.pinned[share.cold] = await self._pins.pin(model, exact=exact)
        except Exception as error:
            share.fail(copy_of(error))  # several may wait for the same load
            share.settle()
        else:
            share.cold = None
            self._line_up(share)

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


def check_form(request: InferRequest, bundle: Bundle) -> None:
    """Raise InvalidInput where the input's kind does not fit the model's task."""
    wanted, called = bundle.task.form
    if not isinstance(request.text, wanted):
        task, field = bundle.version.task, request.place
        article = "an" if task == "embedding" else "a"
        raise InvalidInput(f"{bundle.model} is {article} {task} model: give {called} in {field}", field=field)


def _windows(text: Text, bundle: Bundle) -> list[Encoded]:
    length, windows = bundle.version.max_length, bundle.task.rules.windows
    (found,) = encode_texts(bundle.root.tokenizer, [text], length, windows=windows)
    return found


def _length(text: Text) -> int:
    return len(text) if isinstance(text, str) else sum(map(len, text))
