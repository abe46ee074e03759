"""The arena against a plain model of what each page holds: no page is lost, and none is shared wrongly."""

from __future__ import annotations

import random

import pytest

from hmi.execution.decoding.arena import Arena
from hmi.execution.decoding.base import PAGE

PAGES = 24


class Model:
    """Sequences as they run, and what was last written into each page."""

    def __init__(self, seed: int) -> None:
        self.draw, self.arena = random.Random(seed), Arena(PAGES)
        self.content: dict[int, tuple[object, tuple[int, ...]]] = {}
        """By page: owner, and all ids of its sequence up to its end."""
        self.running: list[tuple[str, list[int], list[int], list[int]]] = []
        """Owner, ids, pages, and the number of ids that are written."""
        self.dropped: set[str] = set()
        self.seen_shared = self.seen_full = 0

    def join(self) -> None:
        owner = f"v{self.draw.randrange(3)}-{len(self.dropped)}"
        ids = [self.draw.randrange(2) for _ in range(PAGE)] * self.draw.randrange(1, 4)
        ids = [7] * (PAGE * self.draw.randrange(3)) + ids + [self.draw.randrange(3)]
        pages = self.arena.begin(owner, ids)
        for i, page in enumerate(pages):
            assert self.content[page] == (owner, tuple(ids[: (i + 1) * PAGE])), "another's keys and values"
        self.seen_shared += len(pages)
        self.running.append((owner, ids, pages, [len(pages) * PAGE]))

    def write(self) -> None:
        owner, ids, pages, done = self.draw.choice(self.running)
        count = min(self.draw.randrange(1, 3 * PAGE), len(ids) - done[0])
        if not count:
            ids += [self.draw.randrange(3) for _ in range(self.draw.randrange(20))]
            return
        room = self.arena.room
        if not self.arena.extend(pages, done[0] + count):
            assert -(-(done[0] + count) // PAGE) - len(pages) > room == self.arena.room
            self.seen_full += 1
            return
        for at in range(done[0], done[0] + count):
            page = pages[at // PAGE]
            sharing = [other for other in self.running if page in other[2]]
            assert len(sharing) == 1, "a page that others read is written"
            self.content[page] = owner, tuple(ids[: at + 1])
        done[0] += count
        self.arena.keep(owner, ids[: done[0]], pages)

    def leave(self) -> None:
        owner, _, pages, _ = self.running.pop(self.draw.randrange(len(self.running)))
        self.arena.end(owner, pages)
        if owner in self.dropped and owner not in {each[0] for each in self.running}:
            before = self.arena.kept
            self.arena.drop(owner)
            assert self.arena.kept == before, "something is kept of an owner that is gone"

    def drop(self) -> None:
        """A version that runs, or nobody's."""
        owner = self.draw.choice([*(each[0] for each in self.running), f"v0-{len(self.dropped)}"])
        self.arena.drop(owner)
        self.dropped.add(owner)

    def check(self) -> None:
        held = {page for _, _, pages, _ in self.running for page in pages}
        assert self.arena.room == PAGES - len(held), "a page is lost, or handed out twice"
        for owner, ids, pages, done in self.running:
            assert len(set(pages)) == len(pages)
            for i, page in enumerate(pages[: -(-done[0] // PAGE)]):
                end = min((i + 1) * PAGE, done[0])
                assert self.content[page] == (owner, tuple(ids[:end]))


@pytest.mark.parametrize("seed", range(30))
def test_no_page_is_lost_or_shared_wrongly(seed: int) -> None:
    model = Model(seed)
    for _ in range(600):
        steps = [model.join] if not model.running else [model.write] * 8 + [model.leave, model.join]
        if len(model.running) > 8:
            steps = [model.leave]
        if model.draw.random() < 0.02:
            steps = [model.drop]
        model.draw.choice(steps)()
        model.check()
    assert model.seen_shared > 3
    assert model.seen_full > 3
    for owner, _, pages, _ in model.running:
        model.arena.end(owner, pages)
    for owner in {each[0] for each in model.content.values()}:
        model.arena.drop(str(owner))
    assert (model.arena.room, model.arena.kept) == (PAGES, 0)


def test_what_is_kept_is_found_until_its_place_is_needed_or_its_owner_goes() -> None:
    arena, ids = Arena(4), list(range(3 * PAGE))
    pages = arena.begin("a", ids)
    assert pages == []
    assert arena.extend(pages, len(ids))
    arena.keep("a", ids, pages)
    arena.end("a", pages)
    assert (arena.room, arena.kept) == (4, 3)
    assert arena.begin("b", ids) == []
    assert arena.begin("a", ids) == pages[:2], "the last token runs always"
    arena.end("a", pages[:2])
    assert arena.begin("a", [*ids, 1]) == pages
    arena.end("a", pages)
    other: list[int] = []
    assert arena.extend(other, 2 * PAGE)
    assert other[1] == pages[2], "the end of what is kept goes first"
    assert arena.begin("a", [*ids, 1]) == pages[:2]
    arena.drop("a")
    arena.end("a", pages[:2])
    assert arena.kept == 0
    assert arena.begin("a", ids) == []


def test_nothing_is_kept_of_an_owner_that_went_while_its_sequences_ran() -> None:
    arena, ids = Arena(4), list(range(20))
    first, second = (arena.begin("a", ids) for _ in range(2))
    assert arena.extend(first, 20)
    arena.keep("a", ids, first)
    arena.drop("a")
    arena.end("a", first)
    assert arena.extend(second, 20)
    arena.keep("a", ids, second)
    arena.end("a", second)
    assert (arena.kept, arena.room) == (0, 4)
