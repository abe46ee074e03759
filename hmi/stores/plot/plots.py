"""Opens the PLOT store for the rest of HMI, and translates its errors into HmiErrors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import plot_store
from hmi import errors
from hmi.config import Settings
from plot_store import Limits, PlotStoreError, Store, VersionInfo

# The first match counts. An I/O error proves no damage, so it becomes Unavailable: try again.
_AS: tuple[tuple[type[PlotStoreError], type[errors.HmiError]], ...] = (
    (plot_store.NotFound, errors.NotFound),
    (plot_store.Conflict, errors.Conflict),
    (plot_store.InUse, errors.Conflict),
    (plot_store.Invalid, errors.InvalidInput),
    (plot_store.StoreFull, errors.StorageFull),
    (plot_store.Closed, errors.Unavailable),
    (plot_store.Damaged, errors.Damaged),
    (plot_store.FormatTooNew, errors.Damaged),
    (plot_store.StoreIO, errors.Unavailable),
)


def as_hmi(error: PlotStoreError) -> errors.HmiError:
    """Return the corresponding HmiError with the same message.

    Errors without a counterpart (use after a fork, writing to a read-only store) are bugs of HMI: `internal`.
    """
    for theirs, ours in _AS:
        if isinstance(error, theirs):
            return ours(str(error))
    return errors.HmiError(str(error))


@contextmanager
def plot_errors() -> Iterator[None]:
    """Raise the block's PlotStoreErrors as HmiErrors."""
    try:
        yield
    except PlotStoreError as error:
        raise as_hmi(error) from error


def current_version(plots: Store, ref: str) -> VersionInfo | None:
    """Return a ref's current version; None if there is no such ref. Raises HmiError."""
    with plot_errors(), suppress(plot_store.NotFound):
        found = plots.version(ref)
        return found if found.ref == ref else None  # `ref` was a version's id
    return None


def open_plots(path: Path, settings: Settings | None = None) -> Store:
    """Open the PLOT store, creating it if needed. `settings` limit its size.

    Raises Damaged, StorageFull, and Unavailable on an I/O error.
    """
    with plot_errors():
        return Store.open(path, create=True, limits=None if settings is None else limits_of(settings))


def limits_of(settings: Settings) -> Limits:
    """The limits of the PLOT store's size."""
    return Limits(max_bytes=settings.plot_max_bytes or None, min_free_bytes=settings.plot_min_free_bytes)
