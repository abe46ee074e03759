"""PLOTs as the rest of HMI sees them: opening the store, and its errors as ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import plot_store
from hmi import errors
from hmi.config import Settings
from plot_store import Limits, PlotStoreError, Store

_AS: tuple[tuple[type[PlotStoreError], type[errors.HmiError]], ...] = (
    (plot_store.NotFound, errors.NotFound),
    (plot_store.Conflict, errors.Conflict),
    (plot_store.InUse, errors.Conflict),
    (plot_store.Invalid, errors.InvalidInput),
    (plot_store.StoreFull, errors.StorageFull),
    (plot_store.Closed, errors.Unavailable),
    (plot_store.Damaged, errors.Damaged),
    (plot_store.FormatTooNew, errors.Damaged),
    (plot_store.StoreIO, errors.Damaged),
)


def as_hmi(error: PlotStoreError) -> errors.HmiError:
    """The error of this project that says the same; what is left (used after a fork, …) is a bug: `internal`."""
    for theirs, ours in _AS:
        if isinstance(error, theirs):
            return ours(str(error))
    return errors.HmiError(str(error))


@contextmanager
def plot_errors() -> Iterator[None]:
    """Raise the store's errors as ours."""
    try:
        yield
    except PlotStoreError as error:
        raise as_hmi(error) from error


def open_plots(path: Path, settings: Settings | None = None) -> Store:
    """Open the PLOT store, making it if needed; it grows within the settings' limits. Raises Damaged, StorageFull."""
    with plot_errors():
        return Store.open(path, create=True, limits=None if settings is None else _limits(settings))


def _limits(settings: Settings) -> Limits:
    return Limits(max_bytes=settings.plot_max_bytes or None, min_free_bytes=settings.plot_min_free_bytes)
