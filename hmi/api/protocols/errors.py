"""Errors in HTTP: this is the only place that chooses the status of a kind. Each protocol shapes its own
bodies."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from hmi.errors import HmiError, InvalidInput, StorageFull, TooLarge
from hmi.stores.plot.plots import as_hmi
from hmi.words import explain
from plot_store import PlotStoreError

if TYPE_CHECKING:
    from hmi.api.protocols.base import Dialect

STATUS: dict[str, int] = {
    "malformed": 400,
    "unauthorised": 401,
    "forbidden": 403,
    "not_found": 404,
    "method_not_allowed": 405,
    "conflict": 409,
    "cancelled": 409,
    "collected": 410,
    "too_large": 413,
    "unsupported_media_type": 415,
    "invalid_input": 422,
    "invalid_data": 422,
    "unsupported_model": 422,
    "quota_exceeded": 429,
    "internal": 500,
    "damaged": 500,
    "unavailable": 503,
    "deadline_exceeded": 504,
    "storage_full": 507,
}
"""The status of each kind of error."""
RETRY_AFTER_S = {429: 5, 503: 2}
"""Seconds in the header Retry-After, by status, where the error does not know better."""
MAX_PROBLEMS = 10_000
"""If a body has more problems than this, the error gives only their number: listing them would take
seconds."""
SHOWN_PROBLEMS = 20
"""Most problems that an error lists."""
LONGEST_NAME = 80
"""Characters of a caller's field name that an error repeats."""
INTERNAL = "something went wrong inside the server: quote the request_id when you report it"


class Malformed(HmiError):
    """The request is not well-formed HTTP, multipart or JSON."""

    kind = "malformed"


class VersionCollected(HmiError):
    """The version existed, and garbage collection has removed it."""

    kind = "collected"


class MethodNotAllowed(HmiError):
    """The path exists, but not with this method. The header Allow names those that it has."""

    kind = "method_not_allowed"


class UnsupportedMediaType(HmiError):
    """The body has a media type or a compression that the call does not read."""

    kind = "unsupported_media_type"


def status_of(kind: str, dialect: Dialect) -> int:
    """The HTTP status of a kind of error in a protocol."""
    return dialect.statuses.get(kind, STATUS.get(kind, 500))


def headers_of(status: int, details: Mapping[str, Any] | None = None) -> dict[str, str]:
    """The headers that belong to a status: Retry-After, WWW-Authenticate.

    An error's details may say in `retry_after_s` when to try again; None: time alone does not help.
    """
    headers = {}
    retry_after_s = (details or {}).get("retry_after_s", RETRY_AFTER_S.get(status))
    if status in RETRY_AFTER_S and retry_after_s is not None:
        headers["Retry-After"] = str(retry_after_s)
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return headers


def known(error: Exception) -> HmiError | None:
    """The HmiError that `error` is or corresponds to; None if it is a bug of the server."""
    if isinstance(error, HmiError):
        return error
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFull("no room left on the server's disk: free some space and try again")
    if isinstance(error, PlotStoreError):
        return _from_store(error)
    return None


def pointer(loc: Sequence[int | str]) -> str:
    """The path of a field: ("inputs", 0, "text") → "inputs[0].text". The body itself is "body".

    Parts in <> are left out: they name a choice of a union, not a field.
    """
    path = ""
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not part.startswith("<"):
            path += f".{part[:LONGEST_NAME]}" if path else part[:LONGEST_NAME]
    return path or "body"


def from_validation(error: ValidationError, model: Any) -> HmiError:
    """The error for data that is no `model`: TooLarge for a list that is too long, else InvalidInput.

    Each names the field; InvalidInput lists up to SHOWN_PROBLEMS problems in `details`.
    """
    if error.error_count() > MAX_PROBLEMS:
        return InvalidInput(
            f"body: {error.error_count()} values in it are wrong: check its form", field="body"
        )
    problems = error.errors(include_url=False)
    for problem in problems:
        if problem["type"] == "too_long":
            return over_limit(
                pointer(problem["loc"]), problem["ctx"]["max_length"], "items", "send fewer in a request"
            )
    # Unknown fields first: usually the unknown field is the missing one, misspelt.
    problems.sort(key=lambda p: p["type"] != "extra_forbidden")
    fields = _merged(problems[:SHOWN_PROBLEMS], model)
    field, message = next(iter(fields.items()))
    others = len({pointer(problem["loc"]) for problem in problems}) - 1
    more = f" (and {others} more field{'s' if others > 1 else ''})" if others else ""
    listed = [{"field": f, "message": m} for f, m in fields.items()]
    return InvalidInput(f"{field}: {message}{more}", field=field, fields=listed)


def over_limit(field: str, limit: int, unit: str, cure: str) -> TooLarge:
    """A TooLarge (413) that names the field, the limit and the cure."""
    return TooLarge(f"{field} is over the limit of {limit} {unit}: {cure}", field=field, limit=limit)


def _from_store(error: PlotStoreError) -> HmiError | None:
    """The HmiError for an error of the PLOT store; None if it is a bug."""
    if error.kind == "collected":
        return VersionCollected(str(error))
    ours = as_hmi(error)
    return ours if ours.kind != "internal" else None


def _merged(problems: Sequence[ErrorDetails], model: Any) -> dict[str, str]:
    """For each field what is wrong with it, in the order of the problems."""
    fields: dict[str, str] = {}
    for problem in problems:
        field, message = pointer(problem["loc"]), explain(problem, model)
        fields[field] = f"{fields[field]}; {message}" if field in fields else message
    return fields
