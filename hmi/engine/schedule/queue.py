"""The batch queue: offers candidates, and cuts batches to a given time.

It has no locks: only the event loop's thread uses it.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from hmi.engine.schedule.backlog import STEP_S, Backlog, Backlogs, by_tenant, left_of
from hmi.engine.schedule.limits import BatchLimits
from hmi.engine.schedule.pace import BATCH_WORK, Pace
from hmi.engine.schedule.turns import Turns
from hmi.engine.schedule.waiting_budget import ROOM_SHARE, WaitingBudget
from hmi.engine.texts.item import MODULE_WORK, TEXT_WORK, Item, Kind, Piece
from hmi.errors import DeadlineExceeded, copy_of
from hmi.execution.batch import BatchKey
from hmi.stages.planner import Candidate
from hmi.stages.planning.group import BEYOND, Group, GroupLimits, Price
from hmi.stages.planning.groups import FLOOD, is_beyond

FEW_TENANTS = 2
"""While no more tenants wait, the first tenant's batch is not filled up with another's texts."""


class BatchQueue:
    """Waiting items, by kind and tenant.

    Within a batch, the tenant that has received least for its weight goes first; the others follow in that
    order, one window at a time. While only FEW_TENANTS wait and the first has nothing more waiting, only
    tenants that have received no more than it may join. So a loud tenant does not fill up a quiet one's
    batch. If more tenants wait, a full batch serves them all sooner.

    A tenant's own texts go in the order of `hmi.engine.schedule.backlog.place_of`.

    If the planner prices texts, those with a deadline or a utility are in groups, which the queue offers
    beside ordinary texts. Turns decide between ordinary texts and groups, the planner among groups.
    """

    def __init__(
        self,
        capacity_tokens: int,
        pace: Pace,
        *,
        longest_s: float = math.inf,
        streams: int = 1,
        weight_of: Callable[[str], float] = lambda tenant: 1.0,
        price: Callable[[Item], Price | None] = lambda item: None,
        limits: GroupLimits | None = None,
    ) -> None:
        """longest_s: the most seconds that everything that waits may be predicted to take.

        weight_of: gives a tenant's weight, and is asked at each `put`. price: gives the price of an item's
        windows that wait, for its group; None: it is an ordinary text. limits: of groups.
        """
        self._room = WaitingBudget(capacity_tokens, "tokens", self.wait_s)
        self._pace, self._weight_of = pace, weight_of
        self._longest_s, self._streams = longest_s, streams
        self._turns = Turns()
        self._host_given_s = 0.0
        """The seconds that the first tenant of the last ordinary batch has received, that batch included."""
        self._host_tenant = ""
        self._price = price
        self._waiting = Backlogs(price, limits)
        self._arrived = asyncio.Event()

    @property
    def tokens(self) -> int:
        """The number of tokens that wait. It may be read on any thread."""
        return self._room.taken

    @property
    def tenants(self) -> int:
        """The number of tenants that wait."""
        return len(self._waiting.tenants)

    def check(self, wanted: Counter[str]) -> None:
        """Raise if there is no room for these tokens, given by tenant, or the wait would be too long.

        Raises QuotaExceeded if a tenant has too much waiting already, Unavailable if all tenants together
        have. Both say in `retry_after_s` how long what waits is predicted to take.
        """
        self._room.check(wanted)
        self._check_wait(wanted)

    def wait_s(self, tenant: str | None) -> float:
        """Predicted seconds until what waits has run: everything, or one tenant's texts at equal shares."""
        all_s = self._seconds(self._waiting.work)
        if tenant is None:
            return all_s
        return min(all_s, self._seconds(self._waiting.work_of(tenant)) * len(self._waiting.tenants))

    def put(self, items: Sequence[Item]) -> None:
        """Queue all of `items`, or none and raise as `check`."""
        new: Counter[str] = Counter()
        for item in items:
            new[item.tenant] += item.tokens
        self._check_wait(new)
        self._room.take(new)
        for tenant in new:
            self._turns.weigh(tenant, self._weight_of(tenant))
        for item in items:
            item.price = self._price(item) if item.request.has_aim else None
            self._waiting.add(item, beyond=item.price is not None and self._is_beyond(item))
        self._arrived.set()

    def drop(self, items: Sequence[Item]) -> None:
        """Remove those of the items that still wait: nobody wants them any more."""
        for item in self._waiting.drop([item for item in items if item.cut < len(item.windows)]):
            self._release(item)

    async def wait(self) -> None:
        """Wait until the queue is not empty."""
        while not self._waiting:
            self._arrived.clear()
            await self._arrived.wait()

    def candidates(self) -> list[Candidate]:
        """Return one candidate for each kind that some tenant's next text has.

        The candidate is the tenant that has received least, of those whose next text has the kind.
        """
        wanted = self._waiting.wanted()
        found = []
        for kind in self._waiting.kinds:
            line = [
                (self._turns.given(tenant), items.first.queued, tenant)
                for tenant, items in self._waiting.of(kind).items()
                if not wanted or wanted[tenant][1] == kind
            ]
            if line:
                found.append(self._candidate(kind, *min(line)))
        return found

    def express_candidates(self) -> list[Candidate]:
        """Return the candidates that may run beside a running batch.

        Their tenants have received less than the first tenant of the last batch has with it, or have texts
        that may run beside their own. Express batches do not count as the last one. Each candidate has at
        most one group, that of the text that its tenant wants next.
        """
        found = [candidate for candidate in self.candidates() if candidate.given_s < self._host_given_s]
        tenant = self._host_tenant
        known = {(candidate.tenant, (candidate.key, candidate.grouped)) for candidate in found}
        for kind in self._waiting.kinds:
            items = self._waiting.of(kind).get(tenant)
            if items and items.first.request.beside and (tenant, kind) not in known:
                found.append(self._candidate(kind, self._turns.given(tenant), items.first.queued, tenant))
        return [replace(each, groups=self._own_group(each)) if each.groups else each for each in found]

    def turn_of(self, key: BatchKey, group: int) -> float:
        """Return the least seconds that a tenant of the group has received; inf if there is no such group."""
        found = self._waiting.groups.find(key, group)
        return min((self._turns.given(member.tenant) for member in found or ()), default=math.inf)

    def cut(self, candidate: Candidate, limits: BatchLimits, group: int | None = None) -> list[Piece]:
        """Cut a batch of the candidate's kind, its tenant first, or of one of its key's groups.

        The batch has at least one window, unless it is express, or no item is left. Items whose client
        has gone are dropped. Items that cannot be answered before their deadline fail with DeadlineExceeded.
        group: the id of a group. Without it, a candidate whose text is in a group stands for that group.
        """
        waiting = self._waiting.tenants
        if not limits.express:
            self._turns.begin(waiting)
        chosen = self._group(candidate, group)
        waiting_here = self._waiting.of((candidate.key, False)) if chosen is None else by_tenant(chosen)
        line = self._line(candidate, waiting_here, all=chosen is not None)
        first = candidate.tenant if chosen is None else line[0][2]
        pieces = self._fill(line, waiting_here, candidate, limits, len(waiting) if chosen is None else 0)
        if chosen is not None:
            self._waiting.groups.close(chosen)
        if not limits.express:
            self._host_given_s, self._host_tenant = self._turns.given(first), first
        return pieces

    def give_back(self, key: BatchKey, skipped: Sequence[tuple[Piece, float]], work_left: float) -> None:
        """Take back what tenants were charged for layers that did not run, as their texts left early.

        skipped: windows, each with the part of its layers' work that did not run. work_left: of their batch.
        """
        for piece, part in skipped:
            work = (piece.work - TEXT_WORK) * part * work_left
            self._turns.give_back(piece.item.tenant, self._pace.seconds(key, work))

    def _fill(
        self,
        line: list[tuple[float, float, str]],
        waiting_here: Mapping[str, Backlog],
        candidate: Candidate,
        limits: BatchLimits,
        tenants: int,
    ) -> list[Piece]:
        """Take windows in the order of the line, until the batch is full. tenants: that wait; 0: of a group,
        which tenants join as it was planned."""
        batch, most_s = _Batch(candidate.key, self._pace, limits), math.inf
        while line:
            given, _, tenant = line[0]
            if given > most_s:
                break
            items = waiting_here[tenant]
            if limits.express and not self._may_run_beside(tenant, given, items.first):
                heapq.heappop(line)
                continue
            if self._is_lost(items, limits.work_left):
                self.drop([items.first])
            else:
                piece = Piece(items.first, items.first.cut)
                takes = batch.takes(piece)
                full = batch.is_full(piece, takes)
                if full and batch.pieces:
                    break
                if limits.express and (full or not limits.at_hand(items.first)):
                    heapq.heappop(line)  # the next tenant's window may be shorter
                    most_s = min(most_s, given) if full else most_s
                    continue
                self._turns.charge(tenant, batch.add(piece, takes))
                self._room.release(tenant, len(piece.window))
                self._waiting.advance(piece)
            if not tenants and items.first.member is None:
                items.pop()
            given = self._turns.given(tenant)
            if tenant not in self._waiting.tenants:
                self._turns.leave(tenant)
            if items:
                heapq.heapreplace(line, (given, items.first.queued, tenant))
            else:
                heapq.heappop(line)
                if batch.pieces and tenant == candidate.tenant and 0 < tenants <= FEW_TENANTS:
                    most_s = min(most_s, given)
        return batch.pieces

    def _candidate(self, kind: Kind, given_s: float, since: float, tenant: str) -> Candidate:
        key, grouped = kind
        first = self._waiting.of(kind)[tenant].first
        layers = first.bundle.executor.layers
        groups = self._waiting.groups.of(key) if grouped else ()
        if len(groups) > 1 and first.group and not first.group.beyond and self._is_quiet(tenant):
            groups = [_with_top_value(each) if each is first.group else each for each in groups]
        expected = self._waiting.groups.expected(key, time.monotonic()) if groups else ()
        return Candidate(given_s, since, tenant, key, layers, groups, expected, grouped, self._waits_s(kind))

    def _own_group(self, candidate: Candidate) -> tuple[Group, ...]:
        """The group of the text that the candidate's tenant wants next; () if that is an ordinary text."""
        items = self._waiting.of((candidate.key, True)).get(candidate.tenant)
        return (items.first.group,) if candidate.grouped and items and items.first.group else ()

    def _group(self, candidate: Candidate, id: int | None) -> Group | None:
        """The group that a batch is to be cut from; None: from the ordinary texts."""
        found = None if id is None else self._waiting.groups.find(candidate.key, id)
        return found or next(iter(self._own_group(candidate)), None)

    def _may_run_beside(self, tenant: str, given_s: float, first: Item) -> bool:
        """Return whether a tenant's first text may run beside the last ordinary batch."""
        own = tenant == self._host_tenant and first.request.beside
        return own or given_s < self._host_given_s

    def fail_all(self, error: Exception) -> None:
        """Fail everything that waits with `error`, at a shutdown."""
        for item in self._waiting:
            item.sink.fail(copy_of(error))
        self._waiting.clear()
        self._room.clear()

    def _line(
        self, candidate: Candidate, waiting: Mapping[str, Backlog], *, all: bool
    ) -> list[tuple[float, float, str]]:
        """A heap of the tenants that may join a batch: seconds received, arrival of the first text, name.

        A tenant that has a text of a higher priority waiting for another kind does not join, except the
        candidate's. all: they all join, as the plan has it.
        """
        wanted = {} if all else self._waiting.wanted()
        line = [
            (self._turns.given(tenant), items.first.queued, tenant)
            for tenant, items in waiting.items()
            if not wanted or items.place < wanted[tenant][0] + STEP_S / 2 or tenant == candidate.tenant
        ]
        heapq.heapify(line)
        return line

    def _is_lost(self, items: Backlog, work_left: float) -> bool:
        """Return whether the first item is unwanted or too late. An item that is too late fails here.

        While nothing else waits, only a deadline that has passed counts: a text that runs for nothing then
        costs nobody anything, and corrects the prediction.
        """
        item = items.first
        if not item.sink.wanted:
            return True
        deadline = item.request.deadline
        if deadline is None:
            return False
        left_s = deadline - time.monotonic()
        needs_s = self._pace.seconds(item.key, (left_of(item) + MODULE_WORK) * work_left + BATCH_WORK)
        if left_s < 0:
            item.sink.fail(DeadlineExceeded("the deadline passed before the work began; it was dropped"))
        elif left_s < needs_s and self._others_wait(item):
            item.sink.fail(
                DeadlineExceeded(
                    f"the deadline is in {left_s * 1e3:.1f} ms, but the work takes about {needs_s * 1e3:.1f} "
                    "ms; it was dropped"
                )
            )
        else:
            return False
        return True

    def _check_wait(self, tenants: Iterable[str]) -> None:
        for tenant in tenants:
            if self._seconds(self._waiting.work_of(tenant)) > self._longest_s * ROOM_SHARE:
                self._room.refuse_tenant(tenant)
        if self._seconds(self._waiting.work) > self._longest_s:
            self._room.refuse_all()

    def _others_wait(self, item: Item) -> bool:
        return len(self._waiting) > 1 or any(
            len(items) > (tenant == item.tenant) for tenant, items in self._waiting.of(item.kind).items()
        )

    def _is_beyond(self, item: Item) -> bool:
        """Return whether an item that is about to be added is beyond its tenant's share."""
        mine_s = self._seconds(self._waiting.work_of(item.tenant))
        others_s = self._seconds(self._waiting.work) - mine_s
        mine_s += self._pace.seconds(item.key, left_of(item)) / self._streams
        return is_beyond(mine_s, others_s, self._others(item.tenant), self._waiting.groups.limits.seconds)

    def _is_quiet(self, tenant: str) -> bool:
        """Return whether the others that wait flood the queue: in the mean, by weight, they have more than
        twice this tenant's waiting work, and more than FLOOD batches.

        The group of its next text is then worth so much that no plan drops it for theirs. Else a flood that
        came while it was alone would displace a tenant that sends a text now and then.
        """
        mine_s = self._seconds(self._waiting.work_of(tenant))
        others = self._others(tenant)
        least_s = max(2 * mine_s, FLOOD * self._waiting.groups.limits.seconds)
        return others > 0 and self._seconds(self._waiting.work) - mine_s > least_s * others

    def _others(self, tenant: str) -> float:
        """The weights of the other tenants that wait, by this tenant's."""
        return self._turns.weight_of_others(self._waiting.tenants, tenant) / self._turns.weight(tenant)

    def _release(self, item: Item) -> None:
        self._room.release(item.tenant, sum(map(len, item.windows[item.cut :])))

    def _seconds(self, work: Mapping[Kind, float]) -> float:
        """Predicted seconds of all streams for work that waits."""
        return sum(self._pace.seconds(key, amount) for (key, _), amount in work.items()) / self._streams

    def _waits_s(self, kind: Kind) -> float:
        """Predicted seconds of all streams for what waits of a kind."""
        return self._pace.seconds(kind[0], self._waiting.work_in(kind)) / self._streams


def _with_top_value(group: Group) -> Group:
    """The group as the planner is to see it: worth more than any group of others."""
    return replace(group, values=[value / BEYOND for value in group.values])


class _Batch:
    """A batch while it is being cut."""

    def __init__(self, key: BatchKey, pace: Pace, limits: BatchLimits) -> None:
        self.pieces: list[Piece] = []
        self._unit_s, self._limits = pace.seconds(key, 1.0), limits
        self._seconds, self._tokens = self._unit_s * BATCH_WORK, 0
        self._modules: set[str] = set()

    def takes(self, piece: Piece) -> float:
        """Return the predicted seconds that a window would add to the batch."""
        module = 0.0 if piece.bundle.version.artefact in self._modules else MODULE_WORK
        return self._unit_s * (piece.work + module) * self._limits.work_left

    def is_full(self, piece: Piece, takes: float) -> bool:
        """Return whether the batch would exceed its limits with this window."""
        seconds, tokens = self._seconds + takes, self._tokens + len(piece.window)
        most_s = min(self._limits.seconds, self._limits.several_s if self.pieces else math.inf)
        return seconds > most_s or tokens > self._limits.tokens

    def add(self, piece: Piece, takes: float) -> float:
        """Add a window. Returns the seconds to charge: what it is predicted to take.

        The first window also pays the batch's fixed cost. Its tenant is then ahead of others that had
        received about as much, so they may join a batch that would otherwise consist mostly of that cost.
        """
        fixed = 0.0 if self.pieces else self._seconds
        self.pieces.append(piece)
        self._modules.add(piece.bundle.version.artefact)
        self._seconds, self._tokens = self._seconds + takes, self._tokens + len(piece.window)
        return takes + fixed
