"""The states of all models' exits: those used lately in memory, the others in files."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from hmi.core import ModelId
from hmi.stages.base import Text
from hmi.stages.early_exit.control import Recorded
from hmi.stages.early_exit.costs import ExitCosts
from hmi.stages.early_exit.report import ExitReport, Totals
from hmi.stages.early_exit.state import ModelState

MAX_BYTES = 64 << 20
"""The memory of all states, about. One takes 13 KB at first, and at most 140 KB with three ramps: 4,096
records and 4,096 answers. Beyond it, those not used for longest are put away."""
MAX_REPORTS = 4096
"""The last reports of models that were put away, which are kept. Each takes about 1 KB."""
PEERS = 4
"""The models whose records help to choose a new one's first thresholds, at most."""
Key = tuple[str, ModelId]
"""Artefact and model. Models that share an artefact have states of their own, since the guarantee holds for
each tenant's stream."""


class States:
    """The states of all models. Thread-safe. Its lock is held neither while files are read or written, nor
    while a model's own lock is awaited."""

    def __init__(self, folder: Path | None) -> None:
        """folder: of the files; None: states that are put away are lost."""
        self._folder, self._lock = folder, threading.Lock()
        self._held: OrderedDict[Key, ModelState] = OrderedDict()
        """Those used last at the end."""
        self._sizes: dict[Key, int] = {}
        self._bytes = 0
        """The sum of `_sizes`."""
        self._leaving: dict[ModelState, Key] = {}
        """Those that are being put away or discarded, whose counts are not in `_gone` yet."""
        self._gone = Totals({}, 0, 0, 0)
        self._last: OrderedDict[Key, ExitReport] = OrderedDict()

    def find(self, artefact: str, model: ModelId) -> ModelState | None:
        """A model's state if it is in memory; counts as a use."""
        key = artefact, model
        with self._lock:
            found = self._held.get(key)
            if found is not None:
                self._held.move_to_end(key)
            return found

    def of(self, text: Text, agreement: float, measured: ExitCosts) -> ModelState:
        """The state of a text's model. agreement: the tenant's, for a new state."""
        key = text.version.artefact, text.model
        state = self.find(*key)
        if state is None:
            state = self._new(key, text, agreement, measured)
        if state.nbytes != self._sizes.get(key):
            self._fit(key, state)
        return state

    def known(self, artefact: str, model: ModelId | None) -> list[ModelState]:
        """The states in memory of this model, or of all models with the artefact."""
        with self._lock:
            if model is not None:
                found = self._held.get((artefact, model))
                return [] if found is None else [found]
            return [state for (name, _), state in self._held.items() if name == artefact]

    def report(self, artefact: str, model: ModelId | None) -> ExitReport | None:
        """See `Exits.report`. Of a model that was put away, the last one."""
        states = self.known(artefact, model)
        if states:
            return states[0].report()
        with self._lock:
            if model is not None:
                return self._last.get((artefact, model))
            return next((report for (name, _), report in self._last.items() if name == artefact), None)

    def totals(self) -> Totals:
        """See `Exits.totals`."""
        with self._lock:
            held, leaving, gone = list(self._held.values()), list(self._leaving), self._gone
        away = [replace(state.totals(), states={}) for state in leaving]
        return _sum([gone, *away, *(state.totals() for state in held)])

    def forget(self, artefacts: Collection[str], models: Collection[ModelId] = ()) -> None:
        """Discard the states of deleted artefacts, and their files. models: see `EarlyExit.forget`."""
        deleted, names = set(artefacts), set(models)

        def goes(key: Key) -> bool:
            return key[0] in deleted and (not names or key[1] in names)

        with self._lock:
            for key in filter(goes, list(self._held)):
                self._take_out(key)
            for key in filter(goes, list(self._last)):
                del self._last[key]
            leaving = [state for state, key in self._leaving.items() if goes(key)]
        for state in leaving:
            state.discard()
            self._left(state)
        for folder in () if self._folder is None else (self._folder / artefact for artefact in deleted):
            for path in [folder / str(name) for name in names] or list(folder.glob("*")):
                path.unlink(missing_ok=True)
            with suppress(OSError):  # others' files are in it, or it does not exist
                folder.rmdir()

    def close(self) -> None:
        """Put all states away."""
        with self._lock:
            leaving = [self._take_out(key) for key in list(self._held)]
        for state in leaving:
            state.put_away()
            self._left(state)

    def _new(self, key: Key, text: Text, agreement: float, measured: ExitCosts) -> ModelState:
        with self._lock:
            held = list(self._held.values())
        path = None if self._folder is None else self._folder / key[0] / str(key[1])
        state = ModelState(text, agreement, measured, _peer_records(text, held), path)
        with self._lock:
            state.before = next((s for s, of in reversed(self._leaving.items()) if of == key), None)
            self._last.pop(key, None)
            return self._held.setdefault(key, state)

    def _fit(self, key: Key, state: ModelState) -> None:
        """Count what a state takes now, and put others away if it is too much."""
        leaving = []
        with self._lock:
            if self._held.get(key) is state:
                size = state.nbytes
                self._bytes += size - self._sizes.get(key, 0)
                self._sizes[key] = size
            while self._bytes > MAX_BYTES and len(self._held) > 1:
                leaving.append(self._take_out(next(iter(self._held))))
        for one in leaving:
            one.put_away()
            self._left(one, one.report())

    def _take_out(self, key: Key) -> ModelState:
        """Begin to put a state away, or to discard it. The caller holds the lock, and must call `_left`."""
        state = self._held.pop(key)
        self._bytes -= self._sizes.pop(key, 0)
        self._leaving[state] = key
        return state

    def _left(self, state: ModelState, report: ExitReport | None = None) -> None:
        """Keep the counts of a state that has been put away or discarded, and its report."""
        counts = replace(state.totals(), states={})
        with self._lock:
            key = self._leaving.pop(state, None)
            if key is None:
                return
            self._gone = _sum([self._gone, counts])
            if report is not None and key not in self._held:
                self._last[key] = report
                if len(self._last) > MAX_REPORTS:
                    self._last.popitem(last=False)


def _peer_records(text: Text, held: Sequence[ModelState]) -> list[Recorded]:
    """Records of other models for a new one's first window: its domain's first, then its root's."""
    version = text.version
    about = text.task.name, version.root, version.root_version, version.ramps
    # The lock of one that still reads its file would be awaited as long as the disk takes.
    peers = sorted((s for s in held if s.read and s.peers == about), key=lambda s: s.domain != version.domain)
    return [found for state in peers[:PEERS] if len((found := state.records())[1])]


def _sum(counted: Sequence[Totals]) -> Totals:
    return Totals(
        sum((Counter(each.states) for each in counted), Counter()),
        *(sum(getattr(each, name) for each in counted) for name in ("audits", "disagreed", "alarms")),
    )
