"""Slots: the device memory that holds modules. Each module also has a pinned copy in host memory.

A module takes one slot, or several neighbouring ones if it is larger than a slot. If a module needs a slot
and none is free, the least recently used module is evicted. Modules of a prefetched batch are evicted last,
those of a batch that is being enqueued never. A copy into a slot waits, on the copies' stream, for the last
batches that read the slot.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from weakref import finalize

import torch
from torch import Tensor

from hmi.errors import Unavailable
from hmi.execution.cuda.device import Device, StreamEvent
from hmi.execution.cuda.layout import ModuleLayout, Packed
from hmi.execution.cuda.upload import Ints

COMING = 4
"""The number of prefetched batches, the newest ones, whose modules are evicted last."""


@dataclass(eq=False)
class Entry:
    """A module on the device, in the slots first to first + count."""

    layout: ModuleLayout
    first: int
    count: int
    data: Tensor
    """[layout.size], a view of its slots."""
    arrived: list[StreamEvent] = field(default_factory=list)
    """The event that ends each layer's copy, by layer."""
    pins: int = 0
    """The number of batches that are being enqueued and read the module. It is not evicted while there are
    any."""
    readers: list[StreamEvent] = field(default_factory=list)
    """The events that end the batches that read the module and may still run."""

    words: Ints | None = None
    """The module's changes with device addresses, int64 [layers, sites, CHANGE_WORDS]; made when a batch
    first uses the kernels (`hmi.execution.cuda.segmented`)."""

    def read_until(self, event: StreamEvent) -> None:
        """Note a batch that reads the module until `event`."""
        self.readers = [*(e for e in self.readers if not e.done()), event]


class Slots:
    """`count` slots of `size` elements. Thread-safe; only `acquire` waits."""

    def __init__(self, device: Device, count: int, size: int, dtype: torch.dtype) -> None:
        self.count, self.size = count, size
        with torch.inference_mode(False):  # other threads write to it outside of that mode
            self.memory = device.empty((count * size,), dtype)
        self._copies = device.stream("copies")
        self._entries: OrderedDict[int, Entry] = OrderedDict()
        """By the id of the packed module, the least recently used first."""
        self._owners: list[int | None] = [None] * count
        self._free = set(range(count))
        self._unread: list[list[StreamEvent]] = [[] for _ in range(count)]
        """The ends of the batches that read each slot, by slot."""
        self._coming: deque[frozenset[int]] = deque(maxlen=COMING)
        self._gone: deque[int] = deque()
        self._changed = threading.Condition()
        self.copied_bytes = 0

    @property
    def bytes(self) -> int:
        """The device memory of all slots, in bytes."""
        return self.memory.nbytes

    def needed(self, modules: Iterable[Packed]) -> int:
        """Return the number of slots that the modules take together. A module that is given twice counts
        once."""
        return sum(self._slots_of(m) for m in {id(m): m for m in modules}.values())

    def cuts(self, modules: Sequence[Packed | None]) -> list[int]:
        """Cut a batch whose modules need more than all slots into several, and return where each begins.

        modules: one for each text.
        """
        starts, held, taken = [0], set[int](), 0
        for i, module in enumerate(modules):
            if module is None or id(module) in held:
                continue
            needed = self.needed([module])
            if held and taken + needed > self.count:
                starts.append(i)
                held, taken = set(), 0
            held.add(id(module))
            taken += needed
        return starts

    def watch(self, packed: Packed) -> None:
        """Have the module's slots freed once nothing refers to `packed` any more. Call this once for each
        module."""
        finalize(packed, self._gone.append, id(packed))  # before another object can have its id

    def prefetch(self, modules: Sequence[Packed]) -> None:
        """Start to copy those modules of a coming batch that are not on the device.

        A module for which no slot can be freed is left to `acquire`. Does not wait.
        """
        with self._changed:
            self._drop_gone()
            distinct = {id(m): m for m in modules}
            self._coming.append(frozenset(distinct))
            self._copy(self._placed(distinct, [frozenset().union(*self._coming)]))

    def acquire(self, modules: Sequence[Packed]) -> list[Entry]:
        """Return the entry of each module, in their order, and keep all of them on the device until
        `release`.

        If the modules of batches that are being enqueued leave no room, this waits until some are released.
        So a thread must have released its own modules before it calls this. Copies may still be under way:
        see `Entry.arrived`. Raises Unavailable if the modules take more than all slots.
        """
        distinct = {id(m): m for m in modules}
        if (needed := self.needed(modules)) > self.count:
            raise Unavailable(
                f"the modules of a batch need {needed} slots of {self.size} numbers on the device and there "
                f"are {self.count}: raise HMI_DEVICE_BYTES"
            )
        with self._changed:
            self._drop_gone()
            while not self._take(distinct):
                self._changed.wait()
            self._forget_coming(frozenset(distinct))
            return [self._entries[id(m)] for m in modules]

    def settled(self) -> None:
        """Block the calling thread until all copies that were started so far have ended. Benchmarks use this
        to measure what copies by layer save."""
        self._copies.record().wait()

    def release(self, entries: Iterable[Entry], read: StreamEvent) -> None:
        """Allow entries that `acquire` returned to be evicted again. The device may read them until the event
        `read`."""
        with self._changed:
            for entry in {id(e): e for e in entries}.values():
                entry.read_until(read)
                entry.pins -= 1
            self._changed.notify_all()

    def held(self) -> int:
        """The number of modules on the device."""
        with self._changed:
            self._drop_gone()
            return len(self._entries)

    def _take(self, distinct: dict[int, Packed]) -> bool:
        """Place and pin all, or none. Those placed on the way stay, and may be taken from again."""
        own = frozenset(distinct)
        placed = self._placed(distinct, [own.union(*self._coming), own])
        missing = [m for key, m in distinct.items() if key not in self._entries]
        if missing and not any(e.pins for e in self._entries.values()):
            self._evict(list(self._entries))  # the room is in pieces: begin anew
            placed, missing = self._placed(distinct, [own]), []
        self._copy(placed)
        if missing:
            return False
        for key in distinct:
            self._entries[key].pins += 1
        return True

    def _placed(
        self, distinct: dict[int, Packed], spared: Sequence[frozenset[int]]
    ) -> list[tuple[Packed, Entry]]:
        """Find slots for those that have none, and count all as used now.

        Modules in spared[0] do not give way. If there is no room then, only those in spared[1] do not, and so
        on.
        """
        placed = []
        for key in distinct:
            if key in self._entries:
                self._entries.move_to_end(key)
        # The largest first: they need neighbours.
        for key, packed in sorted(distinct.items(), key=lambda kv: -kv[1].layout.size):
            if key in self._entries:
                continue
            count = self._slots_of(packed)
            windows = (self._window(count, some) for some in spared)
            first = next((window for window in windows if window is not None), None)
            if first is None:
                continue
            self._evict({o for o in self._owners[first : first + count] if o is not None})
            placed.append((packed, self._enter(key, packed, first, count)))
        return placed

    def _enter(self, key: int, packed: Packed, first: int, count: int) -> Entry:
        begin = first * self.size
        entry = Entry(packed.layout, first, count, self.memory[begin : begin + packed.layout.size])
        self._entries[key] = entry
        for slot in range(first, first + count):
            self._owners[slot] = key
            self._free.discard(slot)
        return entry

    def _window(self, count: int, spared: frozenset[int]) -> int | None:
        """The first of `count` neighbouring slots that are free or least recently used; None: none may go."""
        if count == 1:
            if self._free:
                return next(iter(self._free))
            old = (e for k, e in self._entries.items() if not e.pins and k not in spared)
            return next((e.first for e in old), None)
        used = {key: i for i, key in enumerate(self._entries, 1)}
        cost = [self._cost(owner, used, spared) for owner in self._owners]
        best = min(range(self.count - count + 1), key=lambda i: max(cost[i : i + count]))
        return None if max(cost[best : best + count]) == _NEVER else best

    def _cost(self, owner: int | None, used: dict[int, int], spared: frozenset[int]) -> float:
        if owner is None:
            return 0
        return _NEVER if self._entries[owner].pins or owner in spared else used[owner]

    def _evict(self, keys: Iterable[int]) -> None:
        for key in keys:
            entry = self._entries.pop(key)
            assert not entry.pins
            for slot in range(entry.first, entry.first + entry.count):
                self._owners[slot] = None
                self._free.add(slot)
                self._unread[slot] = [*self._unread[slot], *entry.readers]

    def _copy(self, placed: list[tuple[Packed, Entry]]) -> None:
        """Copy the first layer of all modules, then the next two, the next four, …: each layer arrives while
        earlier ones compute, and a module takes few copies, each of which costs the host some time."""
        if not placed:
            return
        try:
            self._start_copies(placed)
        except BaseException:  # later batches would find what never arrives
            self._evict([key for key, entry in self._entries.items() if any(entry is e for _, e in placed)])
            raise

    def _start_copies(self, placed: list[tuple[Packed, Entry]]) -> None:
        waits = {id(e): e for _, entry in placed for e in self._last_readers(entry)}
        for event in waits.values():
            self._copies.wait(event)
        layers = len(placed[0][0].layout.spans)
        for some in doubled(layers):
            parts = [(packed.data, entry.data, _span(packed.layout, some)) for packed, entry in placed]
            parts = [part for part in parts if part[2].stop > part[2].start]
            if parts:
                self._copies.copy_parts(parts, f"modules from layer {some.start + 1}")
                size = sum(at.stop - at.start for _, _, at in parts)
                self.copied_bytes += size * self.memory.element_size()
            arrived = self._copies.record()
            for _, entry in placed:
                entry.arrived += [arrived] * len(some)

    def _last_readers(self, entry: Entry) -> list[StreamEvent]:
        """The ends of the batches that may still read these slots; they are waited for once."""
        events = []
        for slot in range(entry.first, entry.first + entry.count):
            events += [e for e in self._unread[slot] if not e.done()]
            self._unread[slot] = []
        return events

    def _drop_gone(self) -> None:
        """Free the slots of modules that left the host's memory."""
        for _ in range(len(self._gone)):
            key = self._gone.popleft()
            entry = self._entries.get(key)
            if entry is not None:
                self._evict([key])  # a batch that has pinned it refers to it, so it is not pinned

    def _forget_coming(self, modules: frozenset[int]) -> None:
        """Forget the coming batch with these modules: it has come."""
        found = next((coming for coming in self._coming if modules <= coming), None)
        if found is not None:
            self._coming.remove(found)

    def _slots_of(self, packed: Packed) -> int:
        return max(1, -(-packed.layout.size // self.size))


def doubled(layers: int) -> list[range]:
    """Divide layers 0 to `layers` into ranges of one layer, two, four, and so on; the last may be shorter."""
    found, begin, size = list[range](), 0, 1
    while begin < layers:
        found.append(range(begin, min(begin + size, layers)))
        begin, size = begin + size, 2 * size
    return found


def _span(layout: ModuleLayout, layers: range) -> slice:
    """The elements of these layers, which are neighbours."""
    return slice(layout.spans[layers.start][0], layout.spans[layers.stop - 1][1])


_NEVER = float("inf")
