"""Logging of failures in the background.

A foreseen error gets one line with its kind. An unforeseen one gets its traceback.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hmi.errors import Damaged, HmiError
from hmi.stores.plot.plots import as_hmi
from plot_store import PlotStoreError


def log_failure(log: logging.Logger, what: str, error: Exception) -> None:
    """Log that `what` happened, with `error` as the cause."""
    shown: Exception = as_hmi(error) if isinstance(error, PlotStoreError) else error
    if isinstance(shown, HmiError) and shown.kind != "internal":
        log.error("%s: %s: %s", what, shown.kind, shown.message)
    elif isinstance(shown, OSError) and shown.errno in (errno.ENOSPC, errno.EDQUOT):
        log.error("%s: storage_full: %s", what, shown)
    else:
        log.error("%s", what, exc_info=error)


@contextmanager
def log_damaged(log: logging.Logger, what: str) -> Iterator[None]:
    """Log a Damaged error of the block instead of raising it, so that a loop continues with the next item."""
    try:
        yield
    except Damaged as error:
        log_failure(log, f"{what} cannot continue", error)


def run_each(log: logging.Logger, parts: dict[str, Callable[[], object]]) -> None:
    """Run all parts, given by name. A failure is logged and does not stop the others."""
    for name, part in parts.items():
        try:
            part()
        except Exception as error:
            log_failure(log, f"{name} failed; the rest continues", error)
