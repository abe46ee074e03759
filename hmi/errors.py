"""The error tree. Each error has a stable `kind` for clients; only `protocols.errors` maps it to HTTP.

HmiError
├── InvalidInput            invalid_input          a value is impossible; `field` names it
│   ├── CutShort            invalid_input          a text was written, and ended before it kept its form
│   ├── InvalidData         invalid_data           a row of training data or a corpus
│   └── UnsupportedModel    unsupported_model      a model folder that cannot become a root
├── NotFound                not_found              unknown root, domain, tenant, model, job or key
├── Conflict                conflict               exists already, is in use, or changed meanwhile
├── TooLarge                too_large              over a stated limit
├── Unauthorised            unauthorised           no key or an unknown one
├── Forbidden               forbidden              a key without that scope or tenant
├── QuotaExceeded           quota_exceeded         over the tenant's quota; try later
├── Unavailable             unavailable            starting, draining, overloaded, I/O error: try again
├── DeadlineExceeded        deadline_exceeded      the deadline passed; the work was dropped
├── StorageFull             storage_full           no room on the disk; nothing half-written is left
├── Damaged                 damaged                an artefact fails its checksum or is of a newer format
└── JobCancelled            cancelled              a job was asked to stop
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar


class HmiError(Exception):
    """The base of all errors meant for users. The message says what is wrong and what to do about it."""

    kind: ClassVar[str] = "internal"

    def __init__(self, message: str, *, field: str | None = None, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details: dict[str, Any] = {**({"field": field} if field else {}), **details}


class InvalidInput(HmiError):
    kind = "invalid_input"


class CutShort(InvalidInput):
    """What was written counts, as it does of a text whose deadline passed."""


class InvalidData(InvalidInput):
    kind = "invalid_data"


class UnsupportedModel(InvalidInput):
    kind = "unsupported_model"


class NotFound(HmiError):
    kind = "not_found"


class Conflict(HmiError):
    kind = "conflict"


class TooLarge(HmiError):
    kind = "too_large"


class Unauthorised(HmiError):
    kind = "unauthorised"


class Forbidden(HmiError):
    kind = "forbidden"


class QuotaExceeded(HmiError):
    kind = "quota_exceeded"


class Unavailable(HmiError):
    kind = "unavailable"


class DeadlineExceeded(HmiError):
    kind = "deadline_exceeded"


class StorageFull(HmiError):
    kind = "storage_full"


class Damaged(HmiError):
    kind = "damaged"


class JobCancelled(HmiError):
    kind = "cancelled"


E = TypeVar("E", bound=BaseException)
V = TypeVar("V")


def wrap_errors(work: Callable[[], V]) -> Callable[[], V]:
    """Wrap `work` so that it raises only errors that an event loop survives, others as RuntimeError.

    SystemExit would end the event loop. StopIteration would leave the future pending forever. A panic of a
    Rust library is no Exception, so no handler would catch it.
    """

    def run() -> V:
        try:
            return work()
        except BaseException as error:
            if isinstance(error, Exception) and not isinstance(error, StopIteration):
                raise
            raise RuntimeError(f"work was ended by {type(error).__name__}: {error}") from error

    return run


def copy_of(error: E) -> E:
    """Copy an error with its traceback, so that changes to the copy's details do not reach other holders."""
    try:
        mine = copy.copy(error)
    except Exception:  # its class cannot be constructed from its `args`
        mine = type(error).__new__(type(error), *error.args)
        mine.__dict__.update(error.__dict__)
    if isinstance(mine, HmiError):
        mine.details = dict(mine.details)
    return mine.with_traceback(error.__traceback__)
