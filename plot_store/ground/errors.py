"""The errors that the store raises, each with a stable `kind` that clients may match on.

    PlotStoreError
    ├── NotFound          not_found        no such store, ref, version or tag
    │   └── Collected     collected        the version existed and garbage collection has removed it
    ├── Conflict          conflict         another writer published, or took over the build, first
    ├── InUse             in_use           something depends on what was to be deleted
    ├── Invalid           invalid          an argument is impossible
    ├── Closed            closed           the store, reader or writer has been closed
    ├── Forked            forked           an open store was used in a child process
    ├── ReadOnly          read_only        a change through a store opened read-only
    ├── Damaged           damaged          bytes on disk or in an export differ from what was written
    ├── FormatTooNew      format_too_new   written by a later release
    └── StoreIO           store_io         the operating system refused a read or a write
        └── StoreFull     store_full       no space left, or a limit was reached

Every message says what is wrong and the cure.
"""

from __future__ import annotations

from typing import ClassVar


class PlotStoreError(Exception):
    """The base of all errors of this package."""

    kind: ClassVar[str] = "plot_store"


class NotFound(PlotStoreError):
    kind = "not_found"


class Collected(NotFound):
    kind = "collected"


class Conflict(PlotStoreError):
    kind = "conflict"


class InUse(PlotStoreError):
    kind = "in_use"


class Invalid(PlotStoreError):
    kind = "invalid"


class Closed(PlotStoreError):
    kind = "closed"


class Forked(PlotStoreError):
    kind = "forked"


class ReadOnly(PlotStoreError):
    kind = "read_only"


class Damaged(PlotStoreError):
    kind = "damaged"


class FormatTooNew(PlotStoreError):
    kind = "format_too_new"


class StoreIO(PlotStoreError):
    kind = "store_io"


class StoreFull(StoreIO):
    kind = "store_full"
