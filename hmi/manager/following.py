"""Keeps a node in step with the bucket that it shares with others."""

from __future__ import annotations

import logging
import threading
import time
from typing import Final, Protocol

from hmi.errors import Unavailable
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
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._told = self._erasures_at = self._collected_at = float("-inf")
        self._led = False

    def begin(self, url: str) -> bool:
        """Take the part that the settings say. Returns whether this is the primary.

        url: where other nodes reach this one. Raises Unavailable, Damaged.
        """
        if self._parts.settings.role == "primary":
            if not self._registry.leads():
                self._plots.adopt_plots()  # it may take long or fail, while the other primary goes on
            self._led = True
            if self._registry.lead(url):
                log.info("this server is the primary from now on")
            self._plots.adopt_plots()
        return self._led

    def follow(self) -> None:
        """Follow other nodes from now on, and step down when another one takes over."""
        self._thread = threading.Thread(target=self._follow, name="hmi-following", daemon=True)
        self._thread.start()

    def elsewhere(self) -> Primary | None:
        """The primary, unless this node is it. Raises Unavailable for a replica if no other node is it."""
        if not self._registry.is_primary():
            return self._registry.primary()
        if self._parts.settings.role == "replica":  # it may have been the primary before its restart
            raise Unavailable(
                "no server is the primary, and a replica manages nothing: start one with role=primary; calls "
                "to infer are answered"
            )
        return None

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
            self._led = False
            log.warning(
                "%s is the primary now: this server runs no more jobs, and passes on calls", primary.url
            )
            self._parts.runner.stop()
