"""The child process of `plot_store.care.scrub.scrub`. Prints lines of JSON."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from plot_store.care import check
from plot_store.catalogue import version_tree
from plot_store.catalogue.catalogue import CatalogueTxn
from plot_store.environment.environment import Environment, acquire, release
from plot_store.ground.errors import PlotStoreError
from plot_store.ground.nouns import VerifyReport

NICE: Final = 10
REPORT_EVERY_S: Final = 0.2


class RateLimiter:
    """A `check.Watch` that reports progress to the parent, and sleeps to keep the reading below a rate."""

    def __init__(self, total: int, rate: float | None) -> None:
        self._total, self._rate = total, rate
        self._done = 0
        self._segment = ""
        self._began = time.monotonic()
        self._reported = float("-inf")

    def __call__(self, segment: str, count: int) -> None:
        """Count `count` more bytes of a segment."""
        self._done += count
        fresh, self._segment = segment != self._segment, segment
        self._report(fresh)
        while self._rate and (ahead := self._done / self._rate - (time.monotonic() - self._began)) > 0:
            time.sleep(min(ahead, REPORT_EVERY_S))
            self._report(False)

    def end(self) -> None:
        """Report the final progress."""
        self._report(True)

    def _report(self, at_once: bool) -> None:
        at = time.monotonic()
        if at_once or at - self._reported >= REPORT_EVERY_S:
            self._reported = at
            send({"segment": self._segment, "done": self._done, "total": self._total})


def send(message: dict[str, Any]) -> None:
    """Send a message to the parent, as one line of JSON on stdout."""
    print(json.dumps(message), flush=True)


def paced_verify(environment: Environment, ref: str | None, rate: float | None) -> VerifyReport:
    """Run `check.verify` at no more than `rate` bytes a second."""
    limiter = RateLimiter(environment.catalogue.read(_total_bytes), rate)
    report = check.verify(environment, ref, limiter)
    limiter.end()
    return report


def _total_bytes(txn: CatalogueTxn) -> int:
    """Return the bytes of all segments that readable versions list."""
    sizes: dict[str, int] = {}
    for version_id in txn.keys(version_tree.VERSION):
        try:
            sizes.update((s.name, s.bytes) for s in version_tree.get_version(txn, version_id).segments)
        except PlotStoreError:
            continue  # `verify` reports it
    return sum(sizes.values())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m plot_store.care.scrub_child")
    parser.add_argument("store", type=Path)
    parser.add_argument("--ref")
    parser.add_argument("--rate", type=float)
    given = parser.parse_args()
    os.nice(NICE)
    try:
        environment = acquire(given.store, create=False, read_only=True)
        try:
            report = paced_verify(environment, given.ref, given.rate)
        finally:
            release(environment)
    except PlotStoreError as error:
        send({"error": error.kind, "message": str(error)})
        sys.exit(1)
    send({"report": asdict(report)})


if __name__ == "__main__":
    main()
