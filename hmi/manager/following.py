"""Keeps a node in step with the bucket that it shares with others."""

from __future__ import annotations

import logging
import threading
import time
from typing import Final, Protocol

from hmi.errors import Conflict, Unavailable
from hmi.manager.parts import HOUR_S, Parts
from hmi.stores.failures import log_failure
from hmi.stores.records.nodes import Primary

log = logging.getLogger("hmi.manager")
LOOK_S: Final = 0.5
"""Interval at which changes of other nodes are looked for."""
ERASURES_S: Final = 5.0
"""Interval at which a replica looks for erasures."""
TOLD_S: Final = 30.0
"""Least time between two log lines about a bucket that does not answer."""


class SharedPlots(Protocol):
    """The part of a manager that brings PLOTs and the bucket together."""

    def adopt_plots(self) -> None: ...

    def follow_erasures(self) -> set[str]: ...


class Following:
    """The part of one node among those that share a bucket. Thread-safe."""

    def __init__(self, parts: Parts, plots: SharedPlots) -> None:
        self._parts, self._plots, self._registry = parts, plots, parts.registry
        self._ending, self._taking_over = threading.Event(), threading.Lock()
        self._thread: threading.Thread | None = None
        self._told = self._erasures_at = self._collected_at = float("-inf")
        self._led = self._runs_jobs = self._was_replaced = False
        self._may_lead = parts.settings.role == "primary"

    def begin(self, url: str) -> bool:
        """Take the part that the settings say. Returns whether this is the primary.

        url: where other nodes reach this one. Raises Unavailable, Damaged.
        """
        if self._may_lead:
            self._lead(url)
            self._runs_jobs = True
        return self._led

    def take_over(self, url: str) -> bool:
        """Become the primary while this server answers, from one that lives or is gone. Returns False if it
        is the primary already.

        Blocks, perhaps for long: it fetches PLOTs. Raises Conflict if another server has taken over from this
        one since it started; Unavailable, Damaged.
        """
        with self._taking_over:
            if self._runs_jobs:
                return False
            if self._was_replaced:
                raise Conflict(
                    "this server was the primary and was replaced, so it runs no more jobs: restart it first"
                )
            self._lead(url)
            self._parts.runner.start()
            self._runs_jobs = True
            return True

    def _lead(self, url: str) -> None:
        if not self._registry.leads():
            self._plots.adopt_plots()  # it may take long or fail, while the other primary goes on
        self._may_lead = True
        if self._registry.lead(url):
            log.info("this server is the primary from now on")
        self._led = True
        self._plots.adopt_plots()

    def follow(self) -> None:
        """Follow other nodes from now on, and step down when another one takes over."""
        self._thread = threading.Thread(target=self._follow, name="hmi-following", daemon=True)
        self._thread.start()

    def elsewhere(self) -> Primary | None:
        """The primary, unless this node is it. Raises Unavailable for a replica if no other node is it."""
        if not self._registry.is_primary():
            return self._registry.primary()
        if not self._may_lead:  # it may have been the primary before its restart
            raise Unavailable(
                "no server is the primary, and a replica manages nothing: start one with role=primary; calls "
                "to infer are answered"
            )
        return None

    def manages(self) -> bool:
        """Return whether this server is the primary, as far as it knows."""
        return self._may_lead and self._registry.is_primary()

    def end(self) -> None:
        """Follow no longer."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join()

    def _follow(self) -> None:
        while not self._ending.wait(LOOK_S):
            try:
                self._look()
            except Exception as error:
                # Whatever it was, the next look may succeed. What this node has is answered meanwhile.
                if time.monotonic() - self._told >= TOLD_S:
                    self._told = time.monotonic()
                    log_failure(
                        log, "changes of other servers could not be read; the next look follows", error
                    )

    def _look(self) -> None:
        self._registry.catch_up()
        at = time.monotonic()
        if not self._led and at - self._erasures_at >= ERASURES_S:
            self._erasures_at = at
            self._plots.follow_erasures()
        if not self._led and at - self._collected_at >= HOUR_S:
            self._collected_at = at
            self._parts.adapters.gc(self._parts.used_artefacts())
        # Whoever looked first: a transaction of this process or of another one may have caught up, too.
        if self._led and (primary := self.elsewhere()) is not None:
            self._led, self._runs_jobs, self._was_replaced = False, False, True
            log.warning(
                "%s is the primary now: this server runs no more jobs, and passes on calls", primary.url
            )
            self._parts.runner.stop()
