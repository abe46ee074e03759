"""Errors in gRPC: this is the only place that chooses the code of a kind."""

from __future__ import annotations

import grpc

from hmi.api.protocols.errors import headers_of, status_of
from hmi.api.protocols.native import NATIVE
from hmi.errors import HmiError

_CODES = {
    "malformed": grpc.StatusCode.INVALID_ARGUMENT,
    "unauthorised": grpc.StatusCode.UNAUTHENTICATED,
    "forbidden": grpc.StatusCode.PERMISSION_DENIED,
    "not_found": grpc.StatusCode.NOT_FOUND,
    "method_not_allowed": grpc.StatusCode.UNIMPLEMENTED,
    "conflict": grpc.StatusCode.FAILED_PRECONDITION,
    "cancelled": grpc.StatusCode.FAILED_PRECONDITION,
    "collected": grpc.StatusCode.NOT_FOUND,
    "too_large": grpc.StatusCode.INVALID_ARGUMENT,
    "unsupported_media_type": grpc.StatusCode.INVALID_ARGUMENT,
    "invalid_input": grpc.StatusCode.INVALID_ARGUMENT,
    "invalid_data": grpc.StatusCode.INVALID_ARGUMENT,
    "unsupported_model": grpc.StatusCode.INVALID_ARGUMENT,
    "quota_exceeded": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "damaged": grpc.StatusCode.DATA_LOSS,
    "unavailable": grpc.StatusCode.UNAVAILABLE,
    "deadline_exceeded": grpc.StatusCode.DEADLINE_EXCEEDED,
    "storage_full": grpc.StatusCode.RESOURCE_EXHAUSTED,
}
KIND, RETRY, PUSHBACK = "hmi-error-kind", "retry-after", "grpc-retry-pushback-ms"
"""Trailing metadata of errors: the kind; seconds until another try, also in the form of gRPC's retries."""


def code_of(kind: str) -> grpc.StatusCode:
    """The status code of a kind of error."""
    return _CODES.get(kind, grpc.StatusCode.INTERNAL)


def trailing_of(error: HmiError) -> tuple[tuple[str, str], ...]:
    """The trailing metadata of an error."""
    retry = headers_of(status_of(error.kind, NATIVE), error.details).get("Retry-After")
    known: tuple[tuple[str, str], ...] = ((KIND, error.kind),)
    if retry is None:
        return known
    return (*known, (RETRY, retry), (PUSHBACK, str(int(retry) * 1000)))
