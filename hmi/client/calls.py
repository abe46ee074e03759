"""Calls without input and output: what to send, whether it may be repeated, and what the answer means."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import quote

from hmi.client.errors import ApiError, DeadlineExceeded, InvalidInput, from_answer
from hmi.client.uploads import Upload

T = TypeVar("T")
SHORT_MS = 1.0
"""A call whose deadline is nearer than this many milliseconds is not sent again."""


@dataclass(frozen=True)
class Call:
    """One call of the HTTP API. `repeatable` says that the server may get it twice without harm."""

    method: str
    path: str
    body: Any = None
    query: Mapping[str, str] = field(default_factory=dict)
    uploads: Mapping[str, Upload] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool = False
    form: bool = False
    """True if the body's fields are parts of their own beside the files, and not one part `spec`."""
    writes: bool = False
    """True if a model writes a text, which may take minutes."""

    def payload(self, elapsed_s: float) -> bytes | None:
        """Return the JSON to send `elapsed_s` seconds after the call began; None without a body.

        The deadline in it is what is left of the caller's. Raises DeadlineExceeded if nothing is left, and
        InvalidInput for a text that UTF-8 cannot hold.
        """
        if self.body is None:
            return None
        body = self.body
        given = body if self.writes else body.get("parameters", {}) if isinstance(body, dict) else {}
        deadline = given.get("deadline_ms")
        if deadline is not None and elapsed_s > 0:
            left = deadline - 1000 * elapsed_s
            if left < SHORT_MS:
                raise DeadlineExceeded(f"no answer within the deadline of {deadline:g} ms")
            given = {**given, "deadline_ms": left}
            body = given if self.writes else {**body, "parameters": given}
        try:
            return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        except UnicodeEncodeError as error:
            raise InvalidInput(
                f"a text has half of a surrogate pair, {error.object[error.start]!a}, which UTF-8 cannot "
                "hold: write the character itself"
            ) from error

    @property
    def fresh(self) -> bool:
        """True if the call can be sent: an upload from an iterator can be read only once."""
        return all(upload.fresh for upload in self.uploads.values())


def get(path: str, **query: object) -> Call:
    """Return a GET. Parts of the query that are None are left out."""
    given = {name: str(value) for name, value in query.items() if value is not None}
    return Call("GET", path, query=given, repeatable=True)


def infer(path: str, body: Any) -> Call:
    return Call("POST", path, body, repeatable=True)


def generate(model: str, body: Mapping[str, Any]) -> Call:
    """Return a call that lets a model write. Sent twice, it writes the text anew."""
    return Call("POST", f"/generate/{segment(model)}", body, repeatable=True, writes=True)


def create(
    path: str, body: Any = None, uploads: Mapping[str, Upload] | None = None, once: str | None = None
) -> Call:
    """Return a POST that creates something. Its Idempotency-Key is `once`, or a new one."""
    headers = {"Idempotency-Key": once or uuid.uuid4().hex}
    return Call("POST", path, body or {}, uploads=uploads or {}, headers=headers, repeatable=True)


def change(path: str, body: Any, method: str = "PATCH") -> Call:
    """Return a call that sets what `body` says: sent twice, it does the same as once.

    One that would not, such as `feedback`, is a `Call` that is not repeatable.
    """
    return Call(method, path, body, repeatable=True)


def delete(path: str) -> Call:
    """Return a DELETE. A second one would be 404, so one whose answer is lost is not repeated."""
    return Call("DELETE", path)


def segment(name: str) -> str:
    """Quote a name or an id as one segment of a path."""
    return quote(name, safe="")


def domain_segment(name: str) -> str:
    """A domain in a path: dots in place of slashes."""
    return segment(name.replace("/", "."))


def fields(**given: Any) -> dict[str, Any]:
    """Return what is not None."""
    return {name: value for name, value in given.items() if value is not None}


def check(status: int, headers: Mapping[str, str], body: bytes) -> None:
    """Raise the ApiError that an answer stands for, unless it is a success."""
    if status >= 400:
        raise from_answer(status, headers, body)
    if status >= 300:
        where = headers.get("location", "nowhere")
        raise ApiError(f"the server points to {where}: give that address", status=status)


def decode(body: bytes) -> Any:
    """Return the JSON of a successful answer. Raises ApiError if it is none."""
    try:
        return json.loads(body)
    except ValueError as error:
        raise ApiError("the answer is no JSON: check the server's address") from error


def checked(read: Callable[[Any], T], body: Any) -> T:
    """Return `read(body)`. Raises ApiError if the answer has not the form of HMI's."""
    try:
        return read(body)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ApiError(f"the answer is not of HMI's form ({error}): compare both releases") from error
