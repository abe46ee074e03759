"""The way of a prompt to its text: load, tokenise, wait for a place, write in steps."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial

from hmi.core import DeletedParts
from hmi.engine.admit.bundles import WritingBundle
from hmi.engine.admit.loading import ModelLoader, public_error, version_name
from hmi.engine.schedule.waiting_budget import WaitingBudget
from hmi.engine.watch.threads import in_thread
from hmi.engine.writing import choosing
from hmi.engine.writing.choosing import Choosing
from hmi.engine.writing.draft import Draft
from hmi.engine.writing.pieces import Event
from hmi.engine.writing.places import Places
from hmi.engine.writing.request import (
    CHARACTERS_A_TOKEN,
    DEFAULT_MOST,
    TokenIds,
    UserTurn,
    WriteRequest,
    WrittenText,
)
from hmi.engine.writing.right_of_way import RightOfWay
from hmi.engine.writing.writer import Owner, Writer
from hmi.errors import CutShort, InvalidInput, copy_of
from hmi.execution.decoding.writing import Answer
from hmi.metrics import Metrics
from hmi.model.text.generative import GenerativeTokenizer
from hmi.model.text.guides import Spelling
from hmi.stores.failures import log_failure
from hmi.stores.plot.miss_recorder import MissRecorder

Waits = Callable[[int], None]
"""Says how many tokens of a text wait from now on."""
Write = Callable[[WriteRequest], AbstractAsyncContextManager[Draft | Choosing]]
"""Lets one text of a call be written in a block. Leaving it early frees what the text holds.

Raises NotFound, InvalidInput (names the request's field), Damaged, Unavailable."""

log = logging.getLogger("hmi.engine")

MOST_WRITTEN = 256
"""The texts that are written at a time, see `Places`. Each holds its module in memory."""
NICE = 5
"""The nice value of the thread that writes. A text takes seconds, a label milliseconds: where both want the
same core, the label gets three quarters of it."""


class Writers:
    """Writes texts for all tenants, on a thread of its own.

    Used on the event loop, but `forget` on any thread.
    """

    def __init__(
        self,
        loader: ModelLoader,
        metrics: Metrics,
        misses: MissRecorder | None,
        way: RightOfWay,
        waiting_tokens: int,
    ) -> None:
        """waiting_tokens: the most tokens of prompts and of texts, as long as they may become, of all calls
        that are not answered."""
        self._loader, self._metrics, self._misses, self._way = loader, metrics, misses, way
        self._room = WaitingBudget(waiting_tokens, "tokens of texts")
        self._places = Places(MOST_WRITTEN)
        self._encoding = ThreadPoolExecutor(1, "hmi-prompts")
        self._compiling = ThreadPoolExecutor(1, "hmi-forms")
        """A thread of its own: a form may take as long as a thousand prompts."""
        self._writing = _thread()
        self._arrived = asyncio.Event()
        self._ended: Exception | None = None
        """The error of texts that have not begun, once all have failed."""
        self._set_back = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._active: set[Writer] = set()
        """The writers that have, or lately had, something to do. They may have left the loader's cache."""
        metrics.watch_writing(self._state)

    @contextmanager
    def admitted(self, wants: Sequence[WriteRequest]) -> Iterator[Write]:
        """Context manager: the texts of a call of one model wait, or are written, in the block. Each counts
        until it has ended. They are admitted together: a tenant that has no others may have any number.

        Raises QuotaExceeded and Unavailable, as `WaitingBudget.take`.
        """
        tenant = wants[0].model.tenant
        left = {want.index: want.characters // CHARACTERS_A_TOKEN for want in wants}
        self._room.take(Counter({tenant: sum(left.values())}))

        def waits(index: int, tokens: int) -> None:
            self._room.release(tenant, left[index] - tokens)
            left[index] = tokens

        try:
            yield lambda want: self._write(want, partial(waits, want.index))
        finally:
            self._room.release(tenant, sum(left.values()))

    @asynccontextmanager
    async def _write(self, request: WriteRequest, waits: Waits) -> AsyncIterator[Draft | Choosing]:
        bundle = await self._loader.load_writing(request.model)
        if request.form is not None and request.form.probabilities:
            async with self._choosing(request, bundle, waits) as choosing:
                yield choosing
            return
        answer = await in_thread(self._encoding, partial(_answer, request, bundle))
        waits(len(answer.prompt) + answer.most)
        if request.form is not None:
            guide = partial(bundle.writer.guides.guide, request.form)
            answer.guide = await in_thread(self._compiling, guide)
        async with self._held(request, bundle, answer, partial(waits, 0)) as draft:
            yield draft

    @asynccontextmanager
    async def _choosing(
        self, request: WriteRequest, bundle: WritingBundle, waits: Waits
    ) -> AsyncIterator[Choosing]:
        """Context manager: the choices are read after the prompt. The first one reads the prompt, and the
        others find its pages."""
        told = choosing.told(request)
        answers = await in_thread(self._encoding, partial(_spelled, told, bundle))
        waits(len(answers[0].prompt) + sum(answer.most for answer in answers))
        choice = Choosing(request, bundle.version)
        reading = asyncio.ensure_future(self._choose(choice, told, bundle, answers))

        def release() -> None:
            waits(0)
            reading.cancel()

        choice.release = release
        try:
            yield choice
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _choose(
        self, choice: Choosing, told: WriteRequest, bundle: WritingBundle, answers: Sequence[Answer]
    ) -> None:
        async def text_of(answer: Answer, *, again: bool) -> WrittenText:
            async with self._held(told, bundle, answer, again=again) as draft:
                choice.read.append(draft)
                *_, text = [piece async for piece in draft]
            assert isinstance(text, WrittenText)
            return text

        try:
            texts = [await text_of(answers[0], again=False)]
            for begin in range(1, len(answers), choosing.AT_ONCE):
                some = answers[begin : begin + choosing.AT_ONCE]
                reading = [asyncio.ensure_future(text_of(answer, again=True)) for answer in some]
                try:
                    texts += await asyncio.gather(*reading)
                finally:
                    for each in reading:
                        each.cancel()
        except Exception as error:
            choice.send(error)
        else:
            choice.choose(texts)

    @asynccontextmanager
    async def _held(
        self,
        request: WriteRequest,
        bundle: WritingBundle,
        answer: Answer,
        ended: Callable[[], object] = lambda: None,
        *,
        again: bool = False,
    ) -> AsyncIterator[Draft]:
        """Context manager: an answer waits for a place and for its module, and is then being written. `ended`
        is called when it is whole, or as the block is left."""
        artefact, tenant = bundle.version.artefact, request.model.tenant
        with ExitStack() as held:
            held.callback(ended)
            held.enter_context(self._loader.needing([artefact]))
            await self._places.take(tenant)
            held.callback(self._places.give_back, tenant)
            await self._get_module(answer, bundle)
            held.callback(self._loader.let_go, [artefact])
            yield self._begun(request, bundle, answer, held, again)

    async def run(self) -> None:
        """Run steps of all roots that have texts to write, in turns, forever."""
        self._loop = asyncio.get_running_loop()
        while True:
            busy = [writer for writer in self._all() if writer.busy]
            self._active = set(busy)
            if not busy:
                self._arrived.clear()
                await self._arrived.wait()
            for writer in busy:
                await self._step(writer)

    def fail_all(self, error: Exception) -> None:
        """Fail every text that is being written, and those that will come."""
        self._ended = error
        for writer in self._all():
            writer.fail_all(error)

    def forget(self, gone: DeletedParts) -> None:
        """Free the keys and values of what has been deleted. May be called on any thread."""
        for writer in self._all():
            writer.forget(gone)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._arrived.set)

    async def close(self) -> None:
        """Wait for the step that runs. The caller must make sure that nobody waits for a text."""
        await asyncio.to_thread(self._writing.shutdown)
        await asyncio.to_thread(self._encoding.shutdown)
        await asyncio.to_thread(self._compiling.shutdown)

    async def _get_module(self, answer: Answer, bundle: WritingBundle) -> None:
        """Give the answer its module, to hold in memory until `let_go`."""
        try:
            part = await self._loader.hold_for_writing(bundle.version.artefact, bundle.writer.executor)
        except Exception as error:
            raise public_error(error, bundle.model, bundle.version) from error
        answer.module = part.module

    def _begun(
        self, request: WriteRequest, bundle: WritingBundle, answer: Answer, held: ExitStack, again: bool
    ) -> Draft:
        """Let a text join. held: what it gives back as it ends, or when its reader has gone."""
        if self._ended is not None:
            raise copy_of(self._ended)
        version, writer = bundle.version, bundle.writer
        draft = Draft(request, version, bundle.reader, writer.root.tokenizer, answer, self._misses, again)
        held.callback(self._leave, draft, writer)
        draft.release = held.close
        self._active.add(writer)
        writer.add(draft, self._loader.weight(request.model.tenant))
        if not self._loader.has(request.model, version):  # it was deleted while its text waited
            writer.forget(DeletedParts(artefacts=frozenset([version.artefact])))
        self._arrived.set()
        return draft

    def _all(self) -> list[Writer]:
        return list(dict.fromkeys([*self._loader.writers(), *self._active]))

    async def _step(self, writer: Writer) -> None:
        loop = asyncio.get_running_loop()

        def deliver(events: list[tuple[Draft, Event]]) -> None:
            if events:
                loop.call_soon_threadsafe(writer.send, [_public(*event) for event in events])

        try:
            spent = await in_thread(self._writing, partial(writer.step, deliver, self._way))
        except Exception as error:
            writer.fail_all(error)
            writer.begin_anew()
            return
        self._metrics.wrote(spent.written, spent.guessed, spent.true)
        self._set_back += spent.set_back
        for tenant, rows in spent.rows.items():
            share = rows / spent.rows.total()
            self._metrics.usage.add(tenant, compute_ms=1e3 * spent.seconds * share)

    def _leave(self, draft: Draft, writer: Writer) -> None:
        """Count a text that has ended, or whose reader has gone: it is written no further."""
        writer.remove(draft)
        self._arrived.set()
        written = draft.outcome if isinstance(draft.outcome, WrittenText) else None
        self._metrics.usage.add(
            draft.model.tenant, inputs=int(written is not None and not draft.again), tokens=draft.tokens
        )
        if written is None:
            return
        first_ms, rest_ms = written.timing["first_token_ms"], written.timing["rest_ms"]
        each_s = rest_ms / 1e3 / (written.written_tokens - 1) if written.written_tokens > 1 else None
        self._metrics.text(written.prompt_tokens, written.cached_tokens, first_ms / 1e3, each_s)
        self._metrics.plot_hits(draft.reader.version.ref, written.plot)

    def _state(self) -> dict[str, int]:
        """What the metrics show at a scrape. Called on the scrape's thread."""
        writers = self._all()
        pages = [(writer.executor.pages, *writer.pages) for writer in writers]
        return {
            "running": self._places.taken,
            "waiting": self._places.waiting,
            "pages": sum(whole for whole, _, _ in pages),
            "held": sum(held for _, held, _ in pages),
            "kept": sum(kept for _, _, kept in pages),
            "set_back": self._set_back,
        }


def _public(draft: Draft, event: Event) -> tuple[Draft, Event]:
    """An event as its reader may see it. The log gets an error as it is."""
    if not isinstance(event, Exception) or isinstance(event, CutShort):
        return draft, event
    log_failure(log, f"a text of {version_name(draft.model, draft.version)} failed", event)
    return draft, copy_of(public_error(event, draft.model, draft.version))


def _thread() -> ThreadPoolExecutor:
    """One thread of a lower priority than those of batches."""

    def lower() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)  # on Linux of this thread alone

    return ThreadPoolExecutor(1, "hmi-writing", initializer=lower)


def _spelled(request: WriteRequest, bundle: WritingBundle) -> list[Answer]:
    """An answer for each choice, which writes its tokens and an end. Raises as `_answer`."""
    assert request.form is not None
    assert request.form.choices is not None
    tokenizer = bundle.writer.root.tokenizer
    if not tokenizer.ends:
        raise InvalidInput(
            f"{bundle.model} has no token that ends a text, which {request.form.place}.probabilities needs",
            field=f"{request.form.place}.probabilities",
        )
    spelled = []
    for choice in request.form.choices:
        (encoded,) = tokenizer.encode([choice], len(choice.encode()) + 2)
        spelled.append([*encoded.ids[1:], tokenizer.ends[0]])
    longest = max(map(len, spelled))
    if request.most is not None and request.most < longest:
        field = request.name("max_tokens")
        raise InvalidInput(
            f"the longest choice has {longest} tokens with its end, and {request.form.place}.probabilities "
            f"reads all: raise {field}, which is {request.most}, or leave it out",
            field=field,
        )
    first = _answer(replace(request, most=longest, form=None), bundle)
    return [replace(first, most=len(ids), guide=Spelling(ids)) for ids in spelled]


def _answer(request: WriteRequest, bundle: WritingBundle) -> Answer:
    """Tokenise a prompt. Raises InvalidInput, with numbers, if prompt and text do not fit the context."""
    writer, version = bundle.writer, bundle.version
    tokenizer, context = writer.root.tokenizer, writer.context
    ids = _prompt_ids(request, tokenizer)
    room = context - len(ids)
    if room < (request.most or 1):
        wanted = "a text" if request.most is None else f"{request.most} to write"
        raise InvalidInput(
            f"{request.place} has {len(ids)} tokens, which with {wanted} do not fit into the {context} that "
            f"{bundle.model} reads and writes: shorten it, or lower {request.name('max_tokens')}",
            field=request.place if room < 1 else request.name("max_tokens"),
        )
    most = request.most or min(DEFAULT_MOST, room)
    if request.form is not None and request.form.choices is not None:
        _check_shortest(request, most, tokenizer)
    return Answer(
        Owner(version.artefact, version.plot_version),
        ids,
        most,
        frozenset(tokenizer.ends),
        sampling=request.sampling,
        tenant=request.model.tenant,
    )


def _check_shortest(request: WriteRequest, most: int, tokenizer: GenerativeTokenizer) -> None:
    """Raise InvalidInput if no choice has as few tokens as may be written."""
    assert request.form is not None
    choices = request.form.choices or ()
    if any(len(choice.encode()) < most for choice in choices):  # a token has a byte at least
        return
    encoded = tokenizer.encode(choices, max(map(len, choices)) * 4 + 2)
    shortest = min(len(each.ids) for each in encoded) - 1  # without the begin token
    if shortest > most:
        field = request.name("max_tokens")
        raise InvalidInput(
            f"the shortest choice has {shortest} tokens, more than {field}, which is {most}: raise it",
            field=field,
        )


def _prompt_ids(request: WriteRequest, tokenizer: GenerativeTokenizer) -> list[int]:
    """Our ids of a prompt. Raises InvalidInput for a chat that the root's template refuses, and for an id
    that is no token's."""
    given = request.prompt
    if isinstance(given, TokenIds):
        size = tokenizer.fast.get_vocab_size()
        for i, id in enumerate(given.ids):
            if not 0 <= id < size:
                field = f"{request.place}[{i}]"
                raise InvalidInput(
                    f"{field} is {id}, and this model's tokens go up to {size - 1}", field=field
                )
        return tokenizer.begun([id + 1 for id in given.ids])
    if isinstance(given, UserTurn):
        given = given.text if tokenizer.template is None else [{"role": "user", "content": given.text}]
    try:
        text = given if isinstance(given, str) else tokenizer.chat(given)
    except InvalidInput as error:
        if request.place == "messages":
            raise
        message = error.message.replace("messages[0].content", request.place)
        raise InvalidInput(message, field=request.place) from error
    (encoded,) = tokenizer.encode([text], len(text) + 2, specials=not isinstance(given, str))
    return encoded.ids
