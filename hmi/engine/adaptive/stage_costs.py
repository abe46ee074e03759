"""The costs of batches under token adaptation's settings: read from the disk, or measured on a thread.

Used on the event loop's thread, apart from the measurement.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress

from hmi.engine.admit.bundles import Bundle
from hmi.execution.batch import BatchKey
from hmi.execution.choose import Chosen
from hmi.stages.base import Stage
from hmi.stages.planning.cost import Cost
from hmi.stages.planning.profile import READS, Lab, MeasurementEnded, cost_of
from hmi.stores.failures import log_failure
from hmi.stores.profiles import StageProfile, StageProfiles

log = logging.getLogger("hmi.engine")
NICE = 10
"""The niceness of the thread that measures: what serves goes first."""


class StageCosts:
    """The costs of each root that a model with a token profile has asked for."""

    def __init__(self, stage: Stage, profiles: StageProfiles) -> None:
        self._stage, self._profiles = stage, profiles
        self.renewed: Callable[[BatchKey], None] = lambda key: None
        """Called when a key's cost has become known."""
        self._costs: dict[BatchKey, Cost] = {}
        self._begun: set[tuple[str, str]] = set()
        """The roots whose costs are known, or that a thread looks after."""
        self._threads: list[threading.Thread] = []
        self._ended = threading.Event()

    def of(self, key: BatchKey) -> Cost | None:
        """Return the measured cost of batches with this key; None if it is not known, or not yet."""
        return self._costs.get(key)

    def want(self, bundle: Bundle) -> None:
        """Begin to find a root's costs, unless that has begun before. Does not wait."""
        root, executor = bundle.key.root, bundle.executor
        if root in self._begun or not isinstance(executor, Chosen):
            return
        self._begun.add(root)
        lab = Lab(self._stage, executor, root, bundle.root.info.shape, bundle.root.max_length)
        loop = asyncio.get_running_loop()
        work = threading.Thread(target=self._find, args=(lab, loop), name="hmi-stages", daemon=True)
        try:
            work.start()
        except RuntimeError as error:  # no thread can start: a later text tries again
            self._begun.discard(root)
            log_failure(log, f"stages are not measured on root {root[0]}", error)
            return
        self._threads = [each for each in self._threads if each.is_alive()] + [work]

    def close(self) -> None:
        """End what is measured. Waits for the batch that runs."""
        self._ended.set()
        for work in self._threads:
            work.join()

    def _find(self, lab: Lab, loop: asyncio.AbstractEventLoop) -> None:
        name = lab.root[0]
        with suppress(OSError, AttributeError):  # a system without it
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        try:
            lab.executor.settle()
            found = lab.known(self._profiles)
            if found is None:
                found = lab.measure(ended=self._ended)
                log.info("the stages of root %s are measured on %s", name, lab.executor.name)
                self._profiles.put(*lab.root, found)
        except MeasurementEnded:
            return
        except Exception as error:
            log_failure(log, f"stages are not measured on root {name}, so their costs are guesses", error)
            return
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(self._take, lab.root, found)

    def _take(self, root: tuple[str, str], profile: StageProfile) -> None:
        for reads in READS:
            cost, key = cost_of(profile, reads), BatchKey(root, reads, exact=False)
            if cost is not None:
                self._costs[key] = cost
                self.renewed(key)
