"""Writes the answers of one root: the sequences, look-ups and texts of a compute thread."""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hmi.core import DeletedParts
from hmi.engine.schedule.turns import Turns
from hmi.engine.writing.draft import Draft
from hmi.engine.writing.pieces import Event
from hmi.engine.writing.request import WrittenPiece
from hmi.engine.writing.right_of_way import RightOfWay
from hmi.errors import copy_of, wrap_errors
from hmi.execution.decoding.base import PAGE, Between, StepExecutor
from hmi.execution.decoding.sampling import Chosen
from hmi.execution.decoding.writing import Answer, Writing
from hmi.model.sources.generative_root import GenerativeRoot
from hmi.model.text.guides import Guides

Deliver = Callable[[list[tuple[Draft, Event]]], None]
"""Takes events from the compute thread to the event loop."""


class Owner(NamedTuple):
    """All that decides on a sequence's keys and values, but its ids."""

    artefact: str
    plot_version: str


@dataclass
class Spent:
    """The cost of a step: rows by tenant, written tokens, CPU seconds, sequences that were set back; the
    tokens that were guessed, and those of them that came true."""

    rows: Counter[str] = field(default_factory=Counter)
    written: int = 0
    seconds: float = 0.0
    set_back: int = 0
    guessed: int = 0
    true: int = 0


class Writer:
    """The answers of one root. `step` and what it calls run on a compute thread, one step at a time. The
    rest is used on the event loop, but `forget` on any thread."""

    def __init__(self, root: GenerativeRoot, executor: StepExecutor, *, guesses: bool = True) -> None:
        """guesses: see `Writing`."""
        self.root, self.executor, self._guesses = root, executor, guesses
        self.context = min(root.info.shape.positions, executor.pages * PAGE)
        """The most tokens of a prompt and its answer."""
        self.guides = Guides(root.tokenizer)
        self.drafts: set[Draft] = set()
        """Those that have not ended."""
        self._arriving: deque[tuple[Draft, float]] = deque()
        """New drafts, with their tenants' weights."""
        self._leaving: deque[Draft] = deque()
        self._gone: deque[DeletedParts] = deque()
        self._fresh()

    def _fresh(self) -> None:
        self._turns, self._written = Turns(), dict[Answer, Draft]()
        self._writing = Writing(self.executor, self._rows_of, shares=self._turns, guesses=self._guesses)
        self._spent = Spent()

    @property
    def busy(self) -> bool:
        """True if a step has something to do."""
        return bool(self.drafts or self._leaving or self._gone)

    @property
    def pages(self) -> tuple[int, int]:
        """The pages that sequences hold, and those that are kept for texts which begin alike."""
        arena = self._writing.arena
        return self.executor.pages - arena.room, arena.kept

    def add(self, draft: Draft, weight: float) -> None:
        self.drafts.add(draft)
        self._arriving.append((draft, weight))

    def remove(self, draft: Draft) -> None:
        """Stop writing for a reader that has gone. Its pages are free before the next step."""
        if draft in self.drafts:
            self.drafts.discard(draft)
            self._leaving.append(draft)

    def forget(self, gone: DeletedParts) -> None:
        """Free the pages of what has been deleted."""
        self._gone.append(gone)

    def send(self, events: Iterable[tuple[Draft, Event]]) -> None:
        """Give events to their readers."""
        for draft, event in events:
            if not isinstance(event, WrittenPiece):
                self.drafts.discard(draft)
            draft.send(event)

    def fail_all(self, error: Exception) -> None:
        """Fail all drafts. After an error of a step nothing is known of the pages, so all begin anew."""
        self.send([(draft, copy_of(error)) for draft in list(self.drafts)])

    def begin_anew(self) -> None:
        """Forget all sequences and pages. Called after a step that raised, while none runs."""
        self._arriving.clear()
        self._leaving.clear()
        self._fresh()

    @torch.inference_mode()
    def step(self, deliver: Deliver, way: RightOfWay) -> Spent:
        """Run one step, and return what it took. Answers go to `deliver` as soon as they are there."""
        cpu, writing, self._spent = time.thread_time(), self._writing, Spent()
        before = writing.set_back, writing.guessed, writing.true
        while self._leaving:
            draft = self._leaving.popleft()
            self._writing.remove(draft.answer)
            self._written.pop(draft.answer, None)
        deliver(self._taken_in())
        while self._gone:  # after those that have come before it
            self._drop(self._gone.popleft())

        def between() -> None:
            way.give()
            if self._arriving:
                deliver(self._taken_in())
                deliver(self._heard(self._writing.let_in()))

        way.begin()
        found = self._writing.step(Between(between), Between(way.give, way.flag))
        way.give()
        deliver(self._heard(found))
        self._spent.seconds = time.thread_time() - cpu
        spent, (set_back, guessed, true) = self._spent, before
        spent.set_back = writing.set_back - set_back
        spent.guessed, spent.true = writing.guessed - guessed, writing.true - true
        return spent

    def _taken_in(self) -> list[tuple[Draft, Event]]:
        """Let new drafts join. Returns the errors of those that cannot."""
        events: list[tuple[Draft, Event]] = []
        while self._arriving:
            draft, weight = self._arriving.popleft()
            if draft not in self.drafts:
                continue  # its reader has gone already
            self._turns.weigh(draft.answer.tenant, weight)
            self._written[draft.answer] = draft
            try:
                self._writing.add(draft.answer)
            except Exception as error:
                del self._written[draft.answer]
                events.append((draft, error))
        return events

    def _heard(self, found: Sequence[tuple[Answer, Chosen | None]]) -> list[tuple[Draft, Event]]:
        """Let drafts take their next tokens. Returns their events; those that have ended leave."""
        events: list[tuple[Draft, Event]] = []
        for i, (answer, chosen) in enumerate(found):
            draft = self._written.get(answer)
            if draft is None:
                continue  # an earlier one of its tokens in this step ended its text
            self._spent.written += 1
            if i and found[i - 1][0] is answer:
                self._spent.rows[answer.tenant] += 1  # it was a guess, and has come true
            try:
                mine = wrap_errors(partial(draft.heard, chosen))()
            except Exception as error:  # such as damage that its last look-up finds: it is its own
                mine = [error]
            events += [(draft, event) for event in mine]
            if mine and not isinstance(mine[-1], WrittenPiece):
                self._writing.remove(answer)  # it goes on if a stop string ended the text
                del self._written[answer]
        return events

    def _drop(self, gone: DeletedParts) -> None:
        def of(owner: Hashable) -> bool:
            assert isinstance(owner, Owner)
            return owner.artefact in gone.artefacts or owner.plot_version in gone.plots

        self._writing.drop(of)

    def _rows_of(self, wanted: Sequence[tuple[Answer, int, int]]) -> Tensor:
        """Look up the rows of these ids. If a look-up fails, its rows are no numbers, so its drafts fail."""
        made = torch.empty(sum(end - begin for _, begin, end in wanted), self.root.info.shape.dim)
        by_plot: defaultdict[str, list[tuple[Draft, int, int, int]]] = defaultdict(list)
        at = 0
        for answer, begin, end in wanted:
            draft, count = self._written[answer], end - begin
            draft.begun = draft.begun or time.monotonic()
            self._spent.rows[answer.tenant] += min(end, len(answer.ids)) - begin
            if not begin:
                made[at] = self.root.upper.first
            if end > 1:
                by_plot[draft.version.plot_version].append((draft, max(begin, 1), end, at + count))
            at += count
        for parts in by_plot.values():
            try:
                self._look_up(parts, made)
            except Exception:  # it may be of one draft's n-grams only
                for part in parts:
                    self._look_up_alone(part, made)
        return made

    def _look_up_alone(self, part: tuple[Draft, int, int, int], made: Tensor) -> None:
        draft, begin, end, last = part
        known = min(end, len(draft.answer.ids))
        try:
            self._look_up([part], made)
        except Exception as error:
            if known < end:  # it may be of what is only guessed
                draft.answer.guessed = []  # nothing is chosen by their rows
                made[last - (end - known) : last] = 0  # not-a-number could reach the rows before them
                self._look_up_alone((draft, begin, known, last - (end - known)), made)
                return
            draft.error = copy_of(error)
            draft.answer.kept = False  # its keys and values are no numbers
            made[last - (end - begin) : last] = torch.nan

    def _look_up(self, parts: Sequence[tuple[Draft, int, int, int]], made: Tensor) -> None:
        """Write the rows of one PLOT version. A part is a draft's ids from one place to another, and the end
        of their rows in `made`."""
        before = self.root.info.n - 1
        spans = [(max(1, begin - before), end) for _, begin, end, _ in parts]
        texts = [draft.answer.span(a, b) for (draft, *_), (a, b) in zip(parts, spans, strict=True)]
        offsets = np.cumsum([0, *map(len, texts)], dtype=np.int64)
        rows, _ = parts[0][0].reader.lookup(np.concatenate(texts).astype(np.int32), offsets)
        for (_, begin, end, last), stop in zip(parts, offsets[1:].tolist(), strict=True):
            made[last - (end - begin) : last] = torch.from_numpy(rows[stop - (end - begin) : stop])
