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
        self.seen_shared = self.seen_full = self.seen_wrong = 0

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
        guessed = list[int]()
        if done[0] + count == len(ids):
            guessed = [self.draw.randrange(3) for _ in range(self.draw.choice([0, 0, 1, 4, 20]))]
        room, most = self.arena.room, done[0] + count + len(guessed)
        if not self.arena.extend(pages, most):
            assert -(-most // PAGE) - len(pages) > room == self.arena.room
            self.seen_full += 1
            return
        read = ids + guessed
        for at in range(done[0], most):
            page = pages[at // PAGE]
            sharing = [other for other in self.running if page in other[2]]
            assert len(sharing) == 1, "a page that others read is written"
            self.content[page] = owner, tuple(read[: at + 1])
        true = self.draw.randint(0, len(guessed))
        self.seen_wrong += (done[0] + count + true) // PAGE < (most - 1) // PAGE
        ids += guessed[:true]
        done[0] += count + true
        if owner not in self.dropped:
            self.arena.keep(owner, ids[: done[0]], pages)

    def leave(self) -> None:
        owner, _, pages, _ = self.running.pop(self.draw.randrange(len(self.running)))
        self.arena.end(pages, kept=owner not in self.dropped)
        if owner in self.dropped and owner not in {each[0] for each in self.running}:
            before = self.arena.kept
            self.arena.drop(owner.__eq__)
            assert self.arena.kept == before, "something is kept of an owner that is gone"

    def drop(self) -> None:
        """A version that runs, or nobody's."""
        owner = self.draw.choice([*(each[0] for each in self.running), f"v0-{len(self.dropped)}"])
        self.arena.drop(owner.__eq__)
        self.dropped.add(owner)

    def check(self) -> None:
        held = {page for _, _, pages, _ in self.running for page in pages}
        assert self.arena.room == PAGES - len(held), "a page is lost, or handed out twice"
        for owner, ids, pages, done in self.running:
            assert len(set(pages)) == len(pages)
            for i, page in enumerate(pages[: -(-done[0] // PAGE)]):
                end = min((i + 1) * PAGE, done[0])
                whose, there = self.content[page]
                assert (whose, there[:end]) == (owner, tuple(ids[:end]))
                assert len(there) == end or end == done[0], (
                    "only what was guessed wrongly lies behind the ids"
                )


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
    assert model.seen_wrong > 3, "wrong guesses have filled pages"
    for _, _, pages, _ in model.running:
        model.arena.end(pages)
    model.arena.drop(lambda owner: True)
    assert (model.arena.room, model.arena.kept) == (PAGES, 0)


def test_what_is_kept_is_found_until_its_place_is_needed_or_its_owner_goes() -> None:
    arena, ids = Arena(4), list(range(3 * PAGE))
    pages = arena.begin("a", ids)
    assert pages == []
    assert arena.extend(pages, len(ids))
    arena.keep("a", ids, pages)
    arena.end(pages)
    assert (arena.room, arena.kept) == (4, 3)
    assert arena.begin("b", ids) == []
    assert arena.begin("a", ids) == pages[:2], "the last token runs always"
    arena.end(pages[:2])
    assert arena.begin("a", [*ids, 1]) == pages
    arena.end(pages)
    other: list[int] = []
    assert arena.extend(other, 2 * PAGE)
    assert other[1] == pages[2], "the end of what is kept goes first"
    assert arena.begin("a", [*ids, 1]) == pages[:2]
    arena.drop("a".__eq__)
    arena.end(pages[:2], kept=False)
    assert arena.kept == 0
    assert arena.begin("a", ids) == []


def test_pages_that_are_not_to_be_kept_are_free_once_nobody_holds_them() -> None:
    arena, ids = Arena(4), list(range(20))
    first = arena.begin("a", ids)
    assert arena.extend(first, 20)
    arena.keep("a", ids, first)
    second = arena.begin("a", ids)
    assert second == first[:1]
    arena.drop("a".__eq__)
    arena.end(first, kept=False)
    assert (arena.kept, arena.room) == (0, 3)
    third = arena.begin("a", [*ids[:PAGE], *ids])
    assert third == second
    assert arena.extend(third, 36)
    arena.keep("a", [*ids[:PAGE], *ids], third)
    arena.end(second, kept=False)
    arena.end(third)
    assert (arena.kept, arena.room) == (2, 4)
