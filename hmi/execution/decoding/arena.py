"""Which page of the arena holds what: pages are counted, shared, kept for texts that begin alike, and freed.

The pages themselves are an executor's (`StepExecutor`). A page is full or is written by one sequence only, so
sequences that begin alike share their full pages and nothing else.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from hmi.execution.decoding.base import PAGE


@dataclass(eq=False)
class _Node:
    """A full page whose tokens are known: the next PAGE ids after those of the nodes above it."""

    page: int
    above: _Node | None
    ids: tuple[int, ...]
    owner: Hashable
    below: dict[tuple[int, ...], _Node] = field(default_factory=dict)
    readers: int = 0
    """The sequences that hold the page."""


class Arena:
    """The pages of one executor. Only the thread that decodes uses it.

    A sequence holds its pages from `begin` or `extend` until `end`. Its full pages may then be kept, for
    sequences of the same owner that begin with the same ids, until their place is needed. An owner is all
    that decides on a sequence's keys and values but its ids, such as the versions that compute it: nothing
    is shared across owners.
    """

    def __init__(self, pages: int) -> None:
        self._free = list(range(pages - 1, -1, -1))
        self._roots: dict[Hashable, dict[tuple[int, ...], _Node]] = {}
        self._nodes: dict[int, _Node] = {}
        """By page."""
        self._idle: OrderedDict[int, _Node] = OrderedDict()
        """Kept pages that no sequence holds, the next to be freed first: a page before those above it."""

    @property
    def room(self) -> int:
        """The number of pages that `extend` can hand out."""
        return len(self._free) + len(self._idle)

    @property
    def kept(self) -> int:
        """The number of pages that only wait for a sequence that begins alike."""
        return len(self._idle)

    def begin(self, owner: Hashable, ids: Sequence[int]) -> list[int]:
        """The pages of a new sequence whose keys and values are known already, for it to hold.

        They end before the last of `ids`: its row must run, since its scores are wanted.
        """
        level, pages = self._roots.get(owner, {}), list[int]()
        for end in range(PAGE, len(ids), PAGE):
            node = level.get(tuple(ids[end - PAGE : end]))
            if node is None:
                break
            self._held(node)
            pages.append(node.page)
            level = node.below
        return pages

    def extend(self, pages: list[int], tokens: int) -> bool:
        """Let a sequence's pages have room for `tokens` tokens. Returns False, and does nothing, if there
        are not enough pages."""
        more = -(-tokens // PAGE) - len(pages)
        if more > self.room:
            return False
        pages += [self._taken() for _ in range(more)]
        return True

    def keep(self, owner: Hashable, ids: Sequence[int], pages: list[int]) -> None:
        """Note which ids the full pages of a running sequence hold. ids: those whose keys and values are
        written.

        If another sequence has written the same ids in the meantime, both keep their own pages, and its
        pages are the ones that are found.
        """
        if len(ids) < PAGE:
            return
        level, above = self._roots.setdefault(owner, {}), None
        for i, page in enumerate(pages[: len(ids) // PAGE]):
            here = tuple(ids[i * PAGE : (i + 1) * PAGE])
            node = level.get(here)
            if node is None:
                node = _Node(page, above, here, owner, readers=1)
                self._nodes[page] = level[here] = node
            elif node.page != page:
                return
            level, above = node.below, node

    def end(self, pages: Sequence[int], *, kept: bool = True) -> None:
        """Take back a sequence's pages. Those that `keep` has noted wait for a sequence that begins alike,
        unless `kept` is unset."""
        for page in reversed(pages):
            node = self._nodes.get(page)
            if node is None:
                self._free.append(page)
                continue
            node.readers -= 1
            if not node.readers:
                self._idle[page] = node
                if not (kept or node.below):
                    self._forget(node)

    def drop(self, gone: Callable[[Hashable], bool]) -> None:
        """Free what is kept of owners that are gone, but for what sequences hold."""
        for node in [node for node in reversed(self._nodes.values()) if gone(node.owner)]:
            if not node.readers:
                self._forget(node)

    def _held(self, node: _Node) -> None:
        node.readers += 1
        self._idle.pop(node.page, None)

    def _taken(self) -> int:
        if not self._free:
            self._forget(next(iter(self._idle.values())))
        return self._free.pop()

    def _forget(self, node: _Node) -> None:
        """Free an idle page. Nothing stands below it: that would have been idle for longer."""
        assert not node.below
        assert not node.readers
        level = self._roots[node.owner] if node.above is None else node.above.below
        del level[node.ids], self._nodes[node.page], self._idle[node.page]
        if not self._roots[node.owner]:
            del self._roots[node.owner]
        self._free.append(node.page)
