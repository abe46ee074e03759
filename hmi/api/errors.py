"""The only place that maps an error to HTTP: kind → status. Each protocol shapes the body of its own
errors."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from hmi.errors import HmiError, InvalidInput, StorageFull, TooLarge
from hmi.stores.plots import as_hmi
from hmi.words import said
from plot_store import PlotStoreError

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
RETRY_AFTER_S = {429: 5, 503: 2}
MOST_PROBLEMS = 10_000
"""A body with more is not looked into: that would take seconds."""
TOLD_PROBLEMS = 20
LONGEST_NAME = 80
"""Characters of a caller's field name that an error repeats."""
INTERNAL = "something went wrong inside the server: quote the request_id when you report it"


class Malformed(HmiError):
    kind = "malformed"


class Collected(HmiError):
    kind = "collected"


class MethodNotAllowed(HmiError):
    kind = "method_not_allowed"


class UnsupportedMediaType(HmiError):
    kind = "unsupported_media_type"


def status_of(error: HmiError) -> int:
    return STATUS.get(error.kind, 500)


def headers_of(status: int) -> dict[str, str]:
    """Headers that a status needs: Retry-After, WWW-Authenticate."""
    headers = {}
    if status in RETRY_AFTER_S:
        headers["Retry-After"] = str(RETRY_AFTER_S[status])
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return headers


def known(error: Exception) -> HmiError | None:
    """The HmiError that `error` is or stands for; None for one of our own bugs."""
    if isinstance(error, HmiError):
        return error
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFull("no room left on the server's disk: free some space and try again")
    if isinstance(error, PlotStoreError):
        return _from_store(error)
    return None


def pointer(loc: Sequence[int | str]) -> str:
    """("inputs", 0, "text") → "inputs[0].text"; parts in <> name a choice of a union, not a field."""
    path = ""
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not part.startswith("<"):
            path += f".{part[:LONGEST_NAME]}" if path else part[:LONGEST_NAME]
    return path or "body"


def from_validation(error: ValidationError, model: Any) -> HmiError:
    """413 for what is over a limit, else 422 naming each field. `model`: what was wanted."""
    if error.error_count() > MOST_PROBLEMS:
        return InvalidInput(
            f"body: {error.error_count()} things in it are wrong: check its form", field="body"
        )
    problems = error.errors(include_url=False)
    for problem in problems:
        if problem["type"] == "too_long":
            return over(
                pointer(problem["loc"]), problem["ctx"]["max_length"], "items", "send fewer in a request"
            )
    # What is there and should not be tells more than what is missing: it is the same field misspelt, as a
    # rule.
    problems.sort(key=lambda p: p["type"] != "extra_forbidden")
    fields = _merged(problems[:TOLD_PROBLEMS], model)
    field, message = next(iter(fields.items()))
    others = len({pointer(problem["loc"]) for problem in problems}) - 1
    more = f" (and {others} more field{'s' if others > 1 else ''})" if others else ""
    listed = [{"field": f, "message": m} for f, m in fields.items()]
    return InvalidInput(f"{field}: {message}{more}", field=field, fields=listed)


def over(field: str, limit: int, unit: str, cure: str) -> TooLarge:
    """A 413 that names the field, the limit and what to do."""
    return TooLarge(f"{field} is over the limit of {limit} {unit}: {cure}", field=field, limit=limit)


def _from_store(error: PlotStoreError) -> HmiError | None:
    if error.kind == "collected":
        return Collected(str(error))
    ours = as_hmi(error)
    return ours if ours.kind != "internal" else None


def _merged(problems: Sequence[ErrorDetails], model: Any) -> dict[str, str]:
    fields: dict[str, str] = {}
    for problem in problems:
        field, message = pointer(problem["loc"]), said(problem, model)
        fields[field] = f"{fields[field]}; {message}" if field in fields else message
    return fields
