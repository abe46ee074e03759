"""What goes wrong in the background, as the log is told of it: one line for what users may meet, too, and for
what nobody foresaw where in the code it was.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hmi.errors import Damaged, HmiError
from hmi.stores.plots import as_hmi
from plot_store import PlotStoreError


def tell(log: logging.Logger, what: str, error: Exception) -> None:
    """Log that `what` happened because of `error`."""
    told: Exception = as_hmi(error) if isinstance(error, PlotStoreError) else error
    if isinstance(told, HmiError) and told.kind != "internal":
        log.error("%s: %s: %s", what, told.kind, told.message)
    elif isinstance(told, OSError) and told.errno in (errno.ENOSPC, errno.EDQUOT):
        log.error("%s: storage_full: %s", what, told)
    else:
        log.error("%s", what, exc_info=error)


@contextmanager
def spared(log: logging.Logger, what: str) -> Iterator[None]:
    """Damage of what the block is about is told of, and ends the block alone: others of its kind go on."""
    try:
        yield
    except Damaged as error:
        tell(log, f"{what} cannot go on", error)


def run_each(log: logging.Logger, parts: dict[str, Callable[[], object]]) -> None:
    """Run all parts, by name: one that fails is told of and holds up no other."""
    for name, part in parts.items():
        try:
            part()
        except Exception as error:
            tell(log, f"{name} failed; the rest goes on", error)
