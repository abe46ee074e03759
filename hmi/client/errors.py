"""The errors of the client. Each is also the error of `hmi.errors` whose `kind` it has.

ApiError                       any error that the server answered, or that kept it from answering
├── InvalidInput               invalid_input, malformed, method_not_allowed, unsupported_media_type
│   ├── InvalidData            invalid_data
│   └── UnsupportedModel       unsupported_model
├── NotFound                   not_found
├── Collected                  collected
├── Conflict                   conflict
├── TooLarge                   too_large
├── Unauthorised               unauthorised
├── Forbidden                  forbidden
├── QuotaExceeded              quota_exceeded        repeated by the client, after `retry_after` seconds
├── Unavailable                unavailable           repeated as well
│   └── Unreachable            unreachable           no answer came at all
├── DeadlineExceeded           deadline_exceeded
├── StorageFull                storage_full
├── Damaged                    damaged
├── JobCancelled               cancelled
└── JobFailed                  job_failed            raised by `Job.wait`
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hmi import errors


class ApiError(errors.HmiError):
    """The base of all errors of the client.

    `message` says what is wrong and what to do about it, `details` has the field and other facts, `status` is
    the HTTP status (None without an answer), `request_id` names the call in the server's log, and
    `retry_after` is the server's own word on when to try again, in seconds.
    """

    def __init__(
        self,
        message: str,
        *,
        details: Mapping[str, Any] | None = None,
        status: int | None = None,
        request_id: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.details = dict(details or {})
        self.status = status
        self.request_id = request_id
        self.retry_after = retry_after

    def __str__(self) -> str:
        named = f" (request {self.request_id})" if self.request_id else ""
        return f"{self.message}{named}"


class InvalidInput(ApiError, errors.InvalidInput):
    pass


class InvalidData(InvalidInput, errors.InvalidData):
    pass


class UnsupportedModel(InvalidInput, errors.UnsupportedModel):
    pass


class NotFound(ApiError, errors.NotFound):
    pass


class Collected(ApiError):
    """The version existed, and garbage collection has removed it."""

    kind = "collected"


class Conflict(ApiError, errors.Conflict):
    pass


class TooLarge(ApiError, errors.TooLarge):
    pass


class Unauthorised(ApiError, errors.Unauthorised):
    pass


class Forbidden(ApiError, errors.Forbidden):
    pass


class QuotaExceeded(ApiError, errors.QuotaExceeded):
    pass


class Unavailable(ApiError, errors.Unavailable):
    pass


class Unreachable(Unavailable):
    """No answer came. `sent` says whether the server may have received the request and carried it out."""

    kind = "unreachable"

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class DeadlineExceeded(ApiError, errors.DeadlineExceeded):
    pass


class StorageFull(ApiError, errors.StorageFull):
    pass


class Damaged(ApiError, errors.Damaged):
    pass


class JobCancelled(ApiError, errors.JobCancelled):
    pass


class JobFailed(ApiError):
    """A job ended without success. `details` has the job's own error, with its kind."""

    kind = "job_failed"


_CLASSES: tuple[type[ApiError], ...] = (
    InvalidInput,
    InvalidData,
    UnsupportedModel,
    NotFound,
    Collected,
    Conflict,
    TooLarge,
    Unauthorised,
    Forbidden,
    QuotaExceeded,
    Unavailable,
    DeadlineExceeded,
    StorageFull,
    Damaged,
    JobCancelled,
)
_OF_KIND = {error.kind: error for error in _CLASSES}
_OF_STATUS: dict[int, type[ApiError]] = {
    400: InvalidInput,
    401: Unauthorised,
    403: Forbidden,
    404: NotFound,
    405: InvalidInput,
    409: Conflict,
    410: Collected,
    413: TooLarge,
    415: InvalidInput,
    422: InvalidInput,
    429: QuotaExceeded,
    502: Unavailable,
    503: Unavailable,
    504: DeadlineExceeded,
    507: StorageFull,
}
"""The class for an unknown kind, such as one of a newer server, and for the answers of a proxy."""
LONGEST_WAIT_S = 3600.0
"""A Retry-After beyond this many seconds counts as this many."""


def from_answer(status: int, headers: Mapping[str, str], body: bytes) -> ApiError:
    """Return the error that an answer with a status of 400 or above stands for."""
    later = seconds(headers.get("retry-after"))
    try:
        return from_shape(json.loads(body), status, later)
    except (ValueError, KeyError, TypeError, AttributeError):
        said = " ".join(body[:200].decode(errors="replace").split())
        message = f"the answer had status {status} and no error of HMI: {said or 'an empty body'}"
        return _OF_STATUS.get(status, ApiError)(message, status=status, retry_after=later)


def from_shape(shape: Any, status: int | None = None, retry_after: float | None = None) -> ApiError:
    """Return the error that HMI's JSON describes, or the form of OpenAI's protocol.

    Raises KeyError, TypeError or AttributeError if it describes none.
    """
    said = shape["error"]
    kind, message = str(said.get("kind") or said["code"]), str(said["message"])
    found = _OF_KIND.get(kind) or _OF_STATUS.get(status or 0, ApiError)
    error = found(
        message,
        details=dict(said.get("details") or ({"field": said["param"]} if said.get("param") else {})),
        status=status,
        request_id=said.get("request_id"),
        retry_after=retry_after,
    )
    if error.kind != kind:
        vars(error)["kind"] = kind  # the server's own word goes before the class's
    return error


def seconds(header: str | None) -> float | None:
    """Return a Retry-After in seconds. The form with a date is left out: no HMI sends it."""
    try:
        value = float(header or "")
    except ValueError:
        return None
    return min(value, LONGEST_WAIT_S) if value >= 0 else None
