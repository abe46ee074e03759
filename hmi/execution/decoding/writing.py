"""Answers of many sequences, written in steps. Chunks of prompts run beside sequences that decode."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from heapq import heapify, heappop, heapreplace
from itertools import islice
from typing import Literal, Protocol, TypeVar

from torch import Tensor

from hmi.errors import InvalidInput, wrap_errors
from hmi.execution.decoding.arena import Arena
from hmi.execution.decoding.base import PAGE, Between, PagesLost, Part, StepExecutor
from hmi.execution.decoding.guesses import MOST, Guesses, worth
from hmi.execution.decoding.sampling import Chosen, Sampler
from hmi.execution.decoding.scores import ScoreRow
from hmi.model.tenant.modules import TenantModule
from hmi.model.text.guides import Guide
from hmi.model.text.sampling import Sampling

V = TypeVar("V")
STEP_ROWS = 128
"""The most rows of a step. Sequences that decode come first; rows of prompts fill up."""
READING = 4
"""While there are prompts to read, they have the rows of a step over this at least, however many decode."""
LONG_STEP = 32
"""Between the layers of a step of this many rows or more, short prompts of other tenants may run."""


@dataclass(eq=False)
class Answer:
    """One sequence: a prompt, and the tokens that are written after it."""

    owner: Hashable
    """See `Arena`."""
    prompt: Sequence[int]
    """Its ids, the begin token first."""
    most: int
    """The most tokens to write."""
    ends: frozenset[int] = frozenset()
    """Ids that end the answer."""
    module: TenantModule | None = None
    sampling: Sampling = field(default_factory=Sampling)
    tenant: str = ""
    """The tenant whose share of the steps it takes."""
    kept: bool = True
    """True if its full pages stay after its end, for later sequences of its owner that begin alike."""
    guide: Guide | None = None
    """Allows the tokens that keep a form. The answer ends when nothing may follow. None: all may come."""
    ids: list[int] = field(init=False)
    """The prompt's ids, then the written ones."""
    pages: list[int] = field(init=False, default_factory=list)
    """The numbers of the pages that it holds."""
    done: int = field(init=False, default=0)
    """The number of ids whose keys and values are in the pages."""
    guessed: list[int] = field(init=False, default_factory=list)
    """Guessed ids. The running step reads them after the others."""
    cached: int | None = field(init=False, default=None)
    """The number of the prompt's ids that the arena had at the first step. None before that step."""
    ended: Literal["end", "length", "failed"] | None = field(init=False, default=None)
    """Why the answer ended. end: one of `ends` was chosen, or the guide allows nothing more. length: `most`
    tokens are written. failed: its scores are no numbers, or its guide failed. None: it goes on."""
    error: Exception | None = field(init=False, default=None)
    """The error that its guide raised, or the choice of its next token. The answer fails when its next token
    is due."""

    def __post_init__(self) -> None:
        self.ids = list(self.prompt)
        self._sampler = Sampler(self.sampling, self.prompt)
        self._guesses: Guesses | None = None

    @property
    def written(self) -> list[int]:
        """The ids after the prompt."""
        return self.ids[len(self.prompt) :]

    @property
    def scale(self) -> float:
        """See `Part.scale`."""
        return self._sampler.scale

    def span(self, begin: int, end: int) -> list[int]:
        """The ids from one place to another, of those that are known and then those that are guessed."""
        known = len(self.ids)
        return self.ids[begin:end] + self.guessed[max(begin - known, 0) : max(end - known, 0)]

    def guess(self, most: int, least: float) -> list[int]:
        """At most `most` tokens that may come next. least: see `Guesses.of`."""
        if self._guesses is None:
            self._guesses = Guesses(len(self.prompt) + self.most)
        left = len(self.prompt) + self.most - len(self.ids)
        most = min(most, left - 1)  # the last token's keys are not needed
        form = None if self.guide is None or most < 1 else self._asked(self.guide.ahead)
        return self._guesses.of(self.ids, form or (), most, least) if most > 0 else []

    def look(self) -> None:
        """See `Guide.look`."""
        if self.guide is not None:
            self._asked(self.guide.look)

    def take_all(self, rows: Sequence[ScoreRow]) -> list[Chosen | None]:
        """Choose the next token by the first row and, as long as a choice is the guessed token, one more by
        the next row. Returns what `take` does of each. Rows of guesses that were given up are not read."""
        guessed, known, found = self.guessed, len(self.ids), list[Chosen | None]()
        self.guessed = []
        for row, guess in zip(rows, [*guessed, None], strict=False):
            chosen = self.take(row)
            if chosen is None and found and self.error is None:
                self.ended = None  # the row may be at fault, and is read again as the text's own
                break
            found.append(chosen)
            if chosen is None or self.ended is not None or chosen.id != guess:
                break
        self.done = known + len(found) - 1
        if guessed:
            assert self._guesses is not None
            self._guesses.told(len(found) - 1)
        return found

    def take(self, row: ScoreRow) -> Chosen | None:
        """Choose the next token by the scores of a row, append its id, and return it.

        Returns None if the scores are no numbers or the guide fails; the answer has then failed.
        """
        chosen = None if self.error is not None else self._asked(partial(self._take, row))
        if chosen is None:
            self.ended = "failed"
        return chosen

    def _take(self, row: ScoreRow) -> Chosen | None:
        guide = self.guide
        try:
            chosen = self._sampler.choose(row, guide)
        except ValueError:
            return None
        if guide is not None:
            guide.take(chosen.id)
        self.ids.append(chosen.id)
        if chosen.id in self.ends or (guide is not None and guide.ended):
            self.ended = "end"
        elif len(self.ids) == len(self.prompt) + self.most:
            self.ended = "length"
        return chosen

    def _asked(self, work: Callable[[], V]) -> V | None:
        """Do what is this answer's alone. Its error, or its library's panic, fails no other answer of the
        step."""
        try:
            return wrap_errors(work)()
        except Exception as error:
            self.error = self.error or error
            return None


RowsOf = Callable[[Sequence[tuple[Answer, int, int]]], Tensor]
"""A function that looks up or computes rows. It takes sequences, each with the range of its ids (begin, end).
It returns the rows of those ids (`Answer.span`), float32 [ids, dim], one sequence after another. It may
give guesses up, by emptying `Answer.guessed`, and return any finite rows for them."""


class Shares(Protocol):
    """What each tenant has received, in rows divided by its weight (`hmi.engine.schedule.turns`)."""

    def begin(self, waiting: Collection[str]) -> None:
        """A step begins, and these tenants have sequences."""
        ...

    def given(self, tenant: str) -> float: ...

    def charge(self, tenant: str, rows: float) -> None: ...

    def leave(self, tenant: str) -> None:
        """The tenant has got all rows that it wanted."""
        ...


class _NoShares:
    """All sequences count as one tenant's."""

    def begin(self, waiting: Collection[str]) -> None:
        pass

    def given(self, tenant: str) -> float:
        return 0.0

    def charge(self, tenant: str, rows: float) -> None:
        pass

    def leave(self, tenant: str) -> None:
        pass


def _nothing() -> None:
    pass


class Writing:
    """The sequences of one executor, on one thread.

    A step takes one token of each sequence that decodes. Chunks of prompts fill it up: next is the first
    sequence of the tenant that has received least. If pages run out, a sequence of the tenant that has most
    is set back, the one that came last: its pages are freed. It runs again when there is room. Its text
    stays the same, since choices depend on its own seed. If the executor loses all pages, all sequences are
    set back.
    """

    def __init__(
        self,
        executor: StepExecutor,
        rows_of: RowsOf,
        *,
        step_rows: int = STEP_ROWS,
        shares: Shares | None = None,
        guesses: bool = True,
    ) -> None:
        """shares: None lets sequences go in the order of their arrival. guesses: whether steps may read
        guessed tokens. That changes no text."""
        self._executor, self._rows_of, self._step_rows = executor, rows_of, step_rows
        self._shares = _NoShares() if shares is None else shares
        self._guesses = guesses
        self.arena = Arena(executor.pages)
        self._answers: list[Answer] = []
        """The sequences that have not ended, in the order of arrival."""
        self._started: set[Answer] = set()
        """Those of them that are between the arena's `begin` and `end`."""
        self._running: Mapping[Answer, int] = {}
        """The step that runs: its sequences, with the number of tokens of each."""
        self._beside = 0
        """The rows that may still run between the layers of that step."""
        self.set_back = 0
        """How often a sequence was set back."""
        self.guessed = self.true = 0
        """The number of tokens that were guessed, and of those that came true."""
        self._looking = ThreadPoolExecutor(1, "hmi-guides")
        """Guides look on it while the layers run. It has no thread before the first guide."""

    def __len__(self) -> int:
        """The number of sequences that have not ended."""
        return len(self._answers)

    def add(self, answer: Answer) -> None:
        """Let a sequence join.

        Raises InvalidInput if it has nothing to read or to write, or if all pages together cannot hold it.
        Raises ValueError if its module does not fit the layers.
        """
        if not answer.prompt:
            raise InvalidInput("the prompt has no tokens", field="prompt")
        if answer.most < 1:
            raise InvalidInput("at least one token must be written", field="max_tokens")
        most = self._executor.pages * PAGE
        wanted = len(answer.prompt) + answer.most - 1  # the last token's keys are not needed
        if wanted > most:
            raise InvalidInput(
                f"{len(answer.prompt)} tokens of prompt and {answer.most} to write need room for {wanted}; "
                f"there is room for {most}",
                field="max_tokens",
            )
        if answer.module is not None:
            self._executor.prepare(answer.module)
        self._answers.append(answer)

    def remove(self, answer: Answer) -> None:
        """Let a sequence leave before its end, and free its pages. Does nothing if it has left already."""
        if answer in self._answers:
            self._answers.remove(answer)
            self._stop(answer)

    def drop(self, gone: Callable[[Hashable], bool]) -> None:
        """Keep nothing of these owners. Their sequences go on, and what they hold is free as they end."""
        for answer in self._answers:
            answer.kept = answer.kept and not gone(answer.owner)
        self.arena.drop(gone)

    def step(
        self, in_long: Between | None = None, in_short: Between | None = None
    ) -> list[tuple[Answer, Chosen | None]]:
        """Run one step. Sequences that end in it leave.

        in_long: done between the layers of a long step. It may call `add` and `let_in`, nothing else.
        in_short: done between those of another step. It may call nothing.
        Returns each sequence that has a new token, with that token, and each that failed, with None. A
        sequence whose guesses came true has several, one after another.
        """
        self._running = chunks = self._plan()
        rows = sum(chunks.values())
        self._beside = self._step_rows
        try:
            return self._run(chunks, in_long if rows >= LONG_STEP else in_short)
        finally:
            self._running = {}

    def let_in(self) -> list[tuple[Answer, Chosen | None]]:
        """Run a step between two layers of the one that runs: whole prompts of tenants that have none in it.

        So a short prompt does not wait for a long one. All such steps together have at most as many rows
        as a step. Returns what `step` does.
        """
        running = self._running.items()
        reading = {answer.tenant for answer, count in running if count - len(answer.guessed) > 1}
        chunks: dict[Answer, int] = {}
        for answer in self._answers:
            count = len(answer.ids) - answer.done
            new = answer not in self._started and answer not in self._running
            if new and count <= self._beside and answer.tenant not in reading:
                fixed = self._running.keys() | chunks.keys()
                if self._with_room(answer, count, fixed) == len(answer.ids) - answer.done:
                    self._take(chunks, answer, len(answer.ids) - answer.done)
        self._beside -= sum(chunks.values())
        return self._run(chunks, None)

    def _run(
        self, chunks: Mapping[Answer, int], between: Between | None
    ) -> list[tuple[Answer, Chosen | None]]:
        """Run a step of these sequences, with so many tokens of each. They have the pages for them."""
        if not chunks:
            return []
        parts = [
            Part(
                answer.done,
                count,
                answer.pages,
                answer.module,
                scored=max(answer.done + count - len(answer.ids) + 1, 0),
                scale=answer.scale,
            )
            for answer, count in chunks.items()
        ]
        scored = [answer for answer, part in zip(chunks, parts, strict=True) if part.scored]
        looked = self._look([answer for answer in scored if answer.guide is not None])
        rows = self._rows_of([(answer, answer.done, answer.done + count) for answer, count in chunks.items()])
        arena, found = self.arena, list[tuple[Answer, Chosen | None]]()
        try:
            scores = iter(self._executor.step(rows, parts, between))
        except PagesLost:
            self._set_all_back()
        finally:
            looked()
        if self.arena is not arena:  # set back, here or between two layers
            return []
        for (answer, count), part in zip(chunks.items(), parts, strict=True):
            before, answer.done = answer.done, answer.done + count
            if part.scored:
                found += [
                    (answer, chosen) for chosen in self._taken(answer, list(islice(scores, part.scored)))
                ]
            if answer.kept and answer.done // PAGE > before // PAGE:
                self.arena.keep(answer.owner, answer.ids[: answer.done], answer.pages)
            if answer.ended is not None:
                self.remove(answer)
        return found

    def _taken(self, answer: Answer, rows: Sequence[ScoreRow]) -> list[Chosen | None]:
        """Let a sequence choose by its rows. Guesses are its tenant's rows only if they have come true."""
        chosen = answer.take_all(rows)
        true = len(chosen) - 1
        self.guessed, self.true = self.guessed + len(rows) - 1, self.true + true
        if true:
            self._shares.charge(answer.tenant, true)
        return chosen

    def _look(self, answers: Sequence[Answer]) -> Callable[[], object]:
        """Let guides look on a thread of their own. Returns a function that waits until they have."""
        if not answers:
            return _nothing

        def look() -> None:
            for answer in answers:
                answer.look()

        return self._looking.submit(look).result

    def _plan(self) -> dict[Answer, int]:
        """Choose the next step's sequences, and get their pages. Returns each with its number of tokens."""
        if not self._answers:
            return {}
        self._shares.begin({answer.tenant for answer in self._answers})
        chunks: dict[Answer, int] = {}
        decoding = [each for each in self._answers if self._decodes(each)]
        kept = self._step_rows // READING if len(decoding) < len(self._answers) else 0
        turns = self._by_turn(decoding)
        left = kept + self._decode(chunks, turns, self._step_rows - kept)
        left -= self._guess(chunks, decoding, left - kept)
        left = self._read(chunks, left)
        left = self._decode(chunks, turns, left)
        if not chunks:  # each waits for the pages of another: the first can set back all others
            left -= self._join(chunks, self._answers[0], left)
        assert chunks, "the first sequence can always go on"
        self._guess(chunks, [each for each in chunks if each not in decoding], left)
        wait = {each.tenant for each in self._answers if chunks.get(each, 0) < len(each.ids) - each.done}
        for tenant in {each.tenant for each in self._answers} - wait:
            self._shares.leave(tenant)
        return chunks

    def _decodes(self, answer: Answer) -> bool:
        return answer in self._started and len(answer.ids) - answer.done == 1

    def _decode(self, chunks: dict[Answer, int], turns: Iterator[Answer], left: int) -> int:
        """Let sequences that decode join the step while rows are left. Returns the number that still are."""
        while left and (answer := next(turns, None)) is not None:
            if answer in self._started and answer not in chunks:  # else it was set back for one before it
                left -= self._join(chunks, answer, left)
        return left

    def _read(self, chunks: dict[Answer, int], left: int) -> int:
        """Let chunks of prompts join the step while rows are left. Returns the number that still are."""
        short = set[str]()
        """Tenants with a sequence that has no room to begin: those after it must not take its pages for
        good."""
        for answer in self._by_turn([each for each in self._answers if not self._decodes(each)]):
            if not left:
                break
            if answer.tenant not in short or answer in self._started:
                count = self._join(chunks, answer, left)
                left -= count
                if not count:
                    short.add(answer.tenant)
        return left

    def _guess(self, chunks: dict[Answer, int], some: Iterable[Answer], left: int) -> int:
        """Let guesses join behind those of some sequences that are read to their end, in at most a quarter of
        the rows that are `left`. Returns their number.

        They set nothing back. Beside other tenants' texts a guess must be likelier than not, and there are at
        most as many as texts: so a step takes at most twice its rows, and no tenant waits long for another's
        guesses.
        """
        if not self._guesses:
            return 0
        texts = [each for each, count in chunks.items() if each.done + count >= len(each.ids)]
        left = before = left // 4  # prompts that wait are read all the same
        least = worth(len(texts))
        if len({each.tenant for each in texts}) > 1:
            least, left = max(least, 0.5), min(left, len(texts))
        for answer in self._by_turn([each for each in some if each in texts]):
            if left:
                guessed = answer.guess(min(left, MOST), least)
                count = chunks[answer] + len(guessed)
                if guessed and self.arena.extend(answer.pages, answer.done + count):
                    answer.guessed, chunks[answer] = guessed, count
                    left -= len(guessed)
        return before - left

    def _by_turn(self, answers: Iterable[Answer]) -> Iterator[Answer]:
        """Yield each sequence once: next is the first one of the tenant that has received least by then."""
        lines: dict[str, deque[Answer]] = {}
        for answer in answers:
            lines.setdefault(answer.tenant, deque()).append(answer)
        given = self._shares.given
        heap = [(given(tenant), i, tenant) for i, tenant in enumerate(lines)]
        heapify(heap)
        while heap:
            _, i, tenant = heap[0]
            yield lines[tenant].popleft()
            if lines[tenant]:
                heapreplace(heap, (given(tenant), i, tenant))
            else:
                heappop(heap)

    def _take(self, chunks: dict[Answer, int], answer: Answer, count: int) -> None:
        chunks[answer] = count
        self._shares.charge(answer.tenant, count)

    def _join(self, chunks: dict[Answer, int], answer: Answer, most: int) -> int:
        """Let a sequence's next tokens join the step: at most `most`, and as many as get pages. Returns their
        number."""
        count = self._with_room(answer, most, chunks)
        if count:
            self._take(chunks, answer, count)
        return count

    def _with_room(self, answer: Answer, most: int, fixed: Container[Answer]) -> int:
        """Get pages for a sequence's next tokens, at most `most`. Returns for how many of them it has pages.

        It may set back other sequences, but none of `fixed`.
        """
        if answer not in self._started:
            answer.pages = self.arena.begin(answer.owner, answer.ids)
            answer.done = len(answer.pages) * PAGE
            answer.cached = answer.done if answer.cached is None else answer.cached
            self._started.add(answer)
        count = min(most, len(answer.ids) - answer.done)
        while not self.arena.extend(answer.pages, answer.done + count):
            other = self._gives_way(answer, fixed)
            if other is not None:
                self._stop(other)
                self.set_back += 1
            else:
                count = (len(answer.pages) + self.arena.room) * PAGE - answer.done
        return count

    def _gives_way(self, answer: Answer, fixed: Container[Answer]) -> Answer | None:
        """The sequence to set back when another needs pages, None if there is none.

        It is of the tenant that has most pages, if that has more than the other's would have: the one that
        came last, but not the tenant's first. Else it is one of the tenant's own that came later; for a
        tenant's first sequence it may be anybody's. So the first of all gets pages from all others.
        """
        firsts, held = dict[str, Answer](), Counter[str]()
        for each in self._answers:
            firsts.setdefault(each.tenant, each)
            held[each.tenant] += len(each.pages)
        wanted = held[answer.tenant] + -(-len(answer.ids) // PAGE) - len(answer.pages)
        last = [each for each in reversed(self._answers) if each.pages and each not in fixed]
        rich = [each for each in last if held[each.tenant] > wanted and each is not firsts[each.tenant]]
        others = [each for each in rich if each.tenant != answer.tenant]
        if others:
            return max(others, key=lambda each: held[each.tenant])
        came = {each: i for i, each in enumerate(self._answers)}
        later = [each for each in last if came[each] > came[answer]]
        own = [each for each in later if each.tenant == answer.tenant]
        return next(iter(own or (later if answer is firsts[answer.tenant] else [])), None)

    def _set_all_back(self) -> None:
        """Begin with new pages. Nothing of any sequence counts as done."""
        for answer in self._started:
            answer.pages, answer.done, answer.guessed = [], 0, []
        self.set_back += len(self._started)
        self._started.clear()
        self.arena = Arena(self._executor.pages)

    def _stop(self, answer: Answer) -> None:
        """Free a sequence's pages. Nothing of it counts as done."""
        if answer in self._started:
            self._started.remove(answer)
            self.arena.end(answer.pages, kept=answer.kept)
            answer.pages, answer.done = [], 0
