"""Admission to the batch queue: chooses the bundle of each text, checks the text and tokenises it.

Tenants take short turns.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from hmi.core import ModelId
from hmi.engine.admit.bundles import Bundle
from hmi.engine.admit.loading import ModelLoader
from hmi.engine.schedule.turns import Turns
from hmi.engine.schedule.waiting_budget import WaitingBudget
from hmi.engine.texts.request import TextRequest
from hmi.engine.watch.threads import await_all, in_thread
from hmi.errors import HmiError, InvalidInput, NotFound, copy_of, wrap_errors
from hmi.model.text.batching import Encoded
from hmi.model.text.beginnings import CHARACTERS_A_TOKEN, GROWTH
from hmi.model.text.reach import reach
from hmi.model.text.splitting import SplitText, splitter_of
from hmi.model.text.tokenizer import Text
from hmi.model.text.windows import encode_texts, words_read

RECENT_S = 1.0
"""A tenant that sent something within this many seconds is expected to send more at any moment."""


class Recent:
    """The time at which each tenant last sent something. Entries expire after RECENT_S."""

    def __init__(self) -> None:
        self._sent: dict[str, float] = {}
        """`time.monotonic()` by tenant, the latest last."""

    def sent(self, tenant: str) -> None:
        self._sent.pop(tenant, None)
        self._sent[tenant] = time.monotonic()
        self._forget()

    def other_than(self, tenants: Container[str]) -> bool:
        """Return whether a tenant that is not among `tenants` sent something lately."""
        self._forget()
        return any(tenant not in tenants for tenant in self._sent)

    def _forget(self) -> None:
        since = time.monotonic() - RECENT_S
        while self._sent and (first := next(iter(self._sent.items())))[1] < since:
            del self._sent[first[0]]


TURN_S = 0.003
"""Length of a turn, in seconds. The text that is tokenised when this time is up is the turn's last."""
REST_RATIO = 3
"""A tenant's rest divided by the time of its turn. Tenants rest while others have sent something lately.

Tokenising holds the interpreter's lock most of the time, and each step of a batch needs that lock. A tenant
that tokenises for a quarter of the time still gets more tokens than can be computed.
"""
SHORT_TURN_S = 0.001
"""After a turn shorter than this, a tenant does not rest."""
LONG_TURN_S = 0.02
"""A turn longer than this counts as this long when its rest is computed."""
SHORT_CHARACTERS = 1024
"""A call with no more characters is tokenised on the event loop if it would be next: that takes at most a
millisecond or so. Handing it to the thread would often take longer, and it would wait for the turn there."""
MAX_CHARACTERS = 32 << 20
"""Capacity for texts that wait to be tokenised, in characters, of all tenants together."""
FIRST_S = 2.5e-7
"""Seconds per character of tokenising, assumed until texts have been tokenised."""
NEIGHBOURS = 2
"""Words beyond a text's last window that lexical features read (`hmi.model.text.lexical`)."""
SPEED_CHARACTERS = 1 << 18
"""The speed of tokenising is the mean over about this many characters, the latest ones."""


class Admitted(NamedTuple):
    """A text that is ready to wait for a batch."""

    bundle: Bundle
    """The bundle that answers it."""
    windows: list[Encoded]
    split: SplitText | None
    """The words of a text that the caller has not split, for a tagging model; else None."""


Wanted = tuple[ModelId, bool]
"""A model, and whether the exact reference needs its lower layers."""


@dataclass
class TenantCall:
    """One tenant's texts of one call.

    All texts of one model get the same bundle if all of them want the exact reference, or none does. If only
    some want it, a version that is published meanwhile may answer a part of them.
    """

    tenant: str
    texts: list[tuple[int, TextRequest]]
    """Each text's index in the call, and the text."""
    future: asyncio.Future[list[Admitted]]
    done: list[Admitted] = field(default_factory=list)
    """The texts that are tokenised, in the order of `texts`."""
    bundles: dict[Wanted, Bundle] = field(default_factory=dict)
    """The bundles chosen so far."""
    cold: Wanted | None = None
    """The model that must be loaded before the next text."""
    error: Exception | None = None
    """The first error of a text or its model."""
    left: int = 0
    """Characters that are not tokenised yet."""
    counted: int = 0
    """The value of `left` that the event loop has counted. The thread changes `left` during a turn."""

    def __post_init__(self) -> None:
        self.left = self.counted = sum(request.characters for _, request in self.texts)

    @property
    def next(self) -> TextRequest:
        """The first text that is not tokenised yet."""
        return self.texts[len(self.done)][1]

    def run_turn(self, loader: ModelLoader) -> float:
        """Tokenise texts for one turn, at least one, and return the seconds that it took.

        Stops early at an error and at a model that is not in memory. Never waits for the disk.
        """
        begun = time.monotonic()
        try:
            wrap_errors(lambda: self._admit_until(begun + TURN_S, loader))()
        except Exception as error:  # the turn counts, or a tenant with only such calls would get every turn
            self.fail(error)
        return time.monotonic() - begun

    def fail(self, error: Exception) -> None:
        """Record an error of the next text or of its model."""
        if isinstance(error, NotFound) and self.next.model_place is not None:
            error.details["field"] = self.next.model_place
        self.error = error

    def settle(self) -> None:
        """Resolve the future if the call has failed or is done. Hands over the error, see `leave`."""
        error, self.error = self.error, None
        if self.future.done():
            return
        if error is not None:
            self.future.set_exception(error)
        elif len(self.done) == len(self.texts):
            self.future.set_result(self.done)

    def leave(self) -> None:
        """Note that nobody waits any more.

        An error's traceback refers to this call. If the call, or its future, kept the error, the cycle would
        stay in memory until the garbage collector runs.
        """
        self.error, self.future = None, self.future.get_loop().create_future()
        self.future.cancel()

    def _admit_until(self, end: float, loader: ModelLoader) -> None:
        while len(self.done) < len(self.texts) and self._admit(loader) and time.monotonic() <= end:
            pass

    def _admit(self, loader: ModelLoader) -> bool:
        """Tokenise the next text. Returns False, and sets `cold`, if its model is not in memory."""
        request = self.next
        wanted = request.model, request.exact
        bundle = self.bundles.get(wanted) or loader.now(request.model, exact=request.exact)
        if bundle is None:
            self.cold = wanted
            return False
        self.bundles[wanted] = bundle
        check_form(request, bundle)
        self.done.append(_admitted(request.text, bundle))
        self.left -= request.characters
        return True


class Admission:
    """Owns the texts that are not tokenised yet, and the thread that tokenises.

    Batches do not wait for that thread. The thread does not wait for loads: a call whose model is not in
    memory stands aside until the model is loaded.
    """

    def __init__(self, loader: ModelLoader) -> None:
        self._loader = loader
        self._room = WaitingBudget(MAX_CHARACTERS, "characters", self._wait_s)
        self._left: Counter[str] = Counter()
        """Characters by tenant that are not tokenised yet."""
        self._s_per_character = FIRST_S
        self._turns = Turns()
        self._recent = Recent()
        self._resting: dict[str, float] = {}
        """The `time.monotonic()` at which each tenant's rest ends."""
        self._waiting: dict[str, deque[TenantCall]] = {}
        self._aside: dict[asyncio.Task[None], TenantCall] = {}
        """The calls whose models are being loaded."""
        self._ran_here: set[str] = set()
        """The tenants that had a turn on the event loop in its present pass. If a tenant sends many calls at
        once, the first runs there, and the others take turns."""
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="hmi-tokenise")

    def fail_all(self, error: Exception) -> None:
        """Fail everything that waits with `error`, at a shutdown."""
        for call in (*(call for calls in self._waiting.values() for call in calls), *self._aside.values()):
            call.error = copy_of(error)
            call.settle()

    async def close(self) -> None:
        """Drop the loads under way and end the thread. The caller must make sure that no call waits."""
        for task in self._aside:
            task.cancel()
        await asyncio.gather(*self._aside, return_exceptions=True)
        await asyncio.to_thread(self._thread.shutdown)

    async def admit(self, requests: Sequence[TextRequest]) -> list[Admitted]:
        """Return the bundle and windows of each text of a call, in order. Cancelling the call drops it.

        Raises NotFound, InvalidInput (field: the request's `place`), Damaged; if too much text waits,
        QuotaExceeded (the tenant's own) or Unavailable (everybody's).
        """
        characters: Counter[str] = Counter()
        by_tenant: dict[str, list[tuple[int, TextRequest]]] = {}
        for i, request in enumerate(requests):
            tenant = request.model.tenant
            characters[tenant] += request.characters
            by_tenant.setdefault(tenant, []).append((i, request))
        self._room.take(characters)
        self._left.update(characters)
        loop = asyncio.get_running_loop()
        calls = [TenantCall(tenant, texts, loop.create_future()) for tenant, texts in by_tenant.items()]
        for call in calls:
            self._recent.sent(call.tenant)
            if self._may_run_here(call, characters):
                self._run_here(call)
            else:
                self._line_up(call)
        try:
            await await_all([call.future for call in calls])
        finally:
            for call in calls:
                call.future.cancel()  # if it is not done
                call.leave()
                self._count_left(call, 0)
            for tenant, amount in characters.items():
                self._room.release(tenant, amount)
        found = {i: done for c in calls for (i, _), done in zip(c.texts, c.done, strict=True)}
        return [found[i] for i in range(len(requests))]

    async def run(self) -> None:
        """Give turns to tenants, forever."""
        while True:
            call = await self._next()
            self._turns.begin(self._waiting)
            before = call.left
            try:
                took = await in_thread(self._thread, partial(call.run_turn, self._loader))
            except BaseException:
                call.error = HmiError("tokenising ended unexpectedly; send the request again")
                call.settle()
                raise
            self._ran(call, took, before - call.left)
            del call  # or it, and its models, would stay in memory until another call comes

    def _ran(self, call: TenantCall, took: float, characters: int) -> None:
        """Charge a turn of this many seconds, for this many characters. Then load the call's model if it is
        missing, or settle the call."""
        self._turns.charge(call.tenant, took)
        if characters:
            seconds = SPEED_CHARACTERS * self._s_per_character + took
            self._s_per_character = seconds / (SPEED_CHARACTERS + characters)
        if not call.future.done():  # else its caller has gone, and counted it
            self._count_left(call, call.left)
        if took > SHORT_TURN_S and self._recent.other_than((call.tenant,)):
            self._resting[call.tenant] = time.monotonic() + REST_RATIO * min(took, LONG_TURN_S)
        if call.cold is not None and not call.future.done():  # no load for a call that is gone
            self._stand_aside(call)
        call.settle()

    def _count_left(self, call: TenantCall, left: int) -> None:
        self._left[call.tenant] -= call.counted - left
        call.counted = left
        if not self._left[call.tenant]:
            del self._left[call.tenant]

    def _wait_s(self, tenant: str | None) -> float:
        """Predicted seconds until what waits is tokenised: everything, or one tenant's texts.

        A tenant gets an equal share of the time, and rests after its turns while others send something.
        """
        all_s = sum(self._left.values()) * self._s_per_character
        if tenant is None:
            return all_s
        own_s = self._left[tenant] * self._s_per_character
        rests = 1 + REST_RATIO if self._recent.other_than((tenant,)) else 1
        return max(min(all_s, own_s * len(self._left)), own_s * rests)

    def _may_run_here(self, call: TenantCall, characters: Mapping[str, int]) -> bool:
        """Return whether a new call is short, and no call waits that should go first."""
        if len(characters) > 1 or characters[call.tenant] > SHORT_CHARACTERS:
            return False
        if call.tenant in self._ran_here or call.tenant in self._waiting:
            return False
        given = self._turns.given(call.tenant)
        if any(given > self._turns.given(tenant) for tenant in self._waiting):
            return False
        return self._resting.get(call.tenant, 0.0) <= time.monotonic()

    def _run_here(self, call: TenantCall) -> None:
        """Give a call its turn at once, on the event loop."""
        if not self._ran_here:
            asyncio.get_running_loop().call_soon(self._ran_here.clear)
        self._ran_here.add(call.tenant)
        self._turns.begin((call.tenant, *self._waiting))
        before = call.left
        took = call.run_turn(self._loader)
        self._ran(call, took, before - call.left)
        if not (call.future.done() or call.cold):
            self._line_up(call)  # its turn ended early

    def _line_up(self, call: TenantCall) -> None:
        self._waiting.setdefault(call.tenant, deque()).append(call)
        self._arrived.set()

    def _stand_aside(self, call: TenantCall) -> None:
        """Load the call's model in a task; the tenant's other calls take its turns meanwhile."""
        if call in self._waiting.get(call.tenant, ()):
            self._waiting[call.tenant].remove(call)
        task = asyncio.create_task(self._warm(call))
        self._aside[task] = call
        task.add_done_callback(self._aside.pop)

    async def _warm(self, call: TenantCall) -> None:
        assert call.cold is not None
        model, exact = call.cold
        try:
            call.bundles[call.cold] = await self._loader.load(model, exact=exact)
        except Exception as error:
            call.fail(copy_of(error))  # several calls may wait for the same load
            call.settle()
        else:
            call.cold = None
            self._line_up(call)

    async def _next(self) -> TenantCall:
        """Wait for the call whose turn it is. Forgets calls that are done, failed or cancelled."""
        while True:
            for tenant, calls in list(self._waiting.items()):
                while calls and calls[0].future.done():
                    calls.popleft()
                if not calls:
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


def check_form(request: TextRequest, bundle: Bundle) -> None:
    """Raise InvalidInput if the model's task does not take an input of this form."""
    wanted, called = bundle.task.forms
    if not isinstance(request.text, wanted):
        task, field = bundle.version.task, request.place
        article = "an" if task == "embedding" else "a"
        raise InvalidInput(f"{bundle.model} is {article} {task} model: give {called} in {field}", field=field)


def _admitted(text: Text, bundle: Bundle) -> Admitted:
    if bundle.task.name == "tagging" and isinstance(text, str):
        return _split(text, bundle)
    return Admitted(bundle, _windows(text, bundle), None)


def _split(text: str, bundle: Bundle) -> Admitted:
    """Split a text into words and tokenise these. What lies far beyond the windows is not split, so that a
    tenant's turn stays short."""
    rules = bundle.task.rules
    splitter, end = splitter_of(rules.words), CHARACTERS_A_TOKEN * reach(bundle.version.max_length)
    while True:
        split, whole = splitter.split(text[:end]), end >= len(text)
        split = split if whole else split.upto(len(split.words) - 1)  # the last word may be cut
        windows = _windows(split.words, bundle)
        if whole or any(window.truncated for window in windows):
            return Admitted(bundle, windows, split.upto(words_read(windows) + NEIGHBOURS))
        end *= GROWTH


def _windows(text: Text, bundle: Bundle) -> list[Encoded]:
    length, windows = bundle.version.max_length, bundle.task.rules.windows
    (found,) = encode_texts(bundle.root.tokenizer, [text], length, windows=windows)
    return found
