"""Reads a request's body: from its bytes to a checked model and files."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from pydantic import TypeAdapter, ValidationError

from hmi.api.body.body_stream import Inflow
from hmi.api.body.expand import ENCODINGS, BodyLimit, Encoding, decompressed
from hmi.api.body.json_size import Census, census
from hmi.api.body.json_text import DEEPEST, malformed, refuse_repeated, too_deep
from hmi.api.body.shares import Loan
from hmi.api.body.uploads import MAX_SPEC_BYTES, Form
from hmi.api.http.call import RouteCall
from hmi.api.http.route import Route
from hmi.api.http.services import Intake
from hmi.api.protocols.base import JSON, Where
from hmi.api.protocols.errors import Malformed, UnsupportedMediaType, from_validation, over_limit, pointer
from hmi.config import Settings
from hmi.errors import InvalidInput, NotFound, TooLarge

if TYPE_CHECKING:
    from aiohttp import web
else:
    from hmi.api.lazy_import import web

LIGHT = Census(1024, 256)
"""A body with no more values and members than this, and of no more bytes than LIGHT_BYTES, is parsed on
the event loop: handing it to the thread would take longer."""
LIGHT_BYTES = 1 << 16
"""See LIGHT."""
FIRST_BYTES = 1 << 14
"""First size of the buffer for a body of unknown length. The buffer doubles as needed."""
VALUES_AN_INPUT = 128
"""A body may hold this many JSON values for each input that the setting `max_inputs` allows. Most values of a
large body are words of `tokens`."""
MEMBERS_AN_INPUT = 8
"""A body may hold this many members of JSON objects for each input that `max_inputs` allows, and 64 more."""
VALUE_BYTES = 160
"""The most bytes of memory that one JSON value takes while it is parsed."""


SENT: Final = "sent"
"""The key of a request's body that has been read, and is to be parsed."""


@dataclass
class Received:
    """A request's body, checked."""

    body: Any
    """An instance of the route's model; None if the route has no body."""
    files: Mapping[str, Path]
    """The files by part name."""
    form: Form | None
    """The upload that owns the files, and removes them if the handler does not take them; None without files.
    """
    digest: str
    """SHA-256, in hex, of the decompressed JSON, or of the multipart parts as they were sent.

    A repeated call with the same Idempotency-Key is compared by this digest. Only calls that create something
    take such a key: without a body, and for JSON of other calls, the digest is "".
    """
    size: int = 0
    """Bytes of the JSON body, after decompression; 0 for a multipart body."""

    def discard(self) -> None:
        """Remove the files that the handler has not taken."""
        if self.form is not None:
            self.form.discard()


def parse(model: Any, data: bytes, count_members: Callable[[Any], int] | None = None) -> Any:
    """Parse JSON bytes to an instance of `model`. `count_members`: see `Endpoint`.

    Raises Malformed, TooLarge, or InvalidInput naming each field.
    """
    try:
        found = _adapter(model).validate_json(data, strict=True)
    except ValidationError as error:
        if (
            error.error_count() == 1
            and (problem := error.errors(include_url=False)[0])["type"] == "json_invalid"
        ):
            raise malformed(problem, data) from error
        raise from_validation(error, model) from error
    refuse_repeated(data, None if count_members is None else partial(count_members, found))
    return found


@dataclass(frozen=True)
class LimitedBodyReader:
    """Reads the parts of a body under the limits of a call. It implements `BodyReader`."""

    field: str
    """The field that the error names if the body has too many values: the only one that can hold so many."""
    most: Census
    """The most values and members of JSON objects in each part."""
    loan: Loan
    """The memory that is reserved for the body. Each part that is read adds VALUE_BYTES for each of its
    values."""
    cure: str = "send several requests"
    """The advice in the error for too many values."""

    def json(self, model: Any, data: bytes, count_members: Callable[[Any], int] | None = None) -> Any:
        found = census(data, self.most)
        if found.depth > DEEPEST:
            raise too_deep()
        self._hold(found)
        return parse(model, data, count_members)

    def hold(self, values: int) -> None:
        self._hold(Census(values, 0))

    def _hold(self, found: Census) -> None:
        """Reserve memory for the values of a part. Raises TooLarge if there are too many, and QuotaExceeded
        or Unavailable if the memory cannot be lent."""
        if found.values > self.most.values:
            raise over_limit(self.field, self.most.values, "JSON values (texts and words)", self.cure)
        if found.members > self.most.members:
            raise over_limit(self.field, self.most.members, "fields of objects", self.cure)
        self.loan.cover(self.loan.amount + found.values * VALUE_BYTES)


async def receive(route: Route, call: RouteCall, request: web.Request, loan: Loan) -> Received:
    """Read and check the body that `route` expects.

    loan: the memory reserved for the body; it grows with the body.

    Raises Malformed, UnsupportedMediaType, TooLarge, InvalidInput, NotFound, QuotaExceeded, Unavailable.
    """
    if route.body is None:
        return Received(None, {}, None, "")
    intake, tenant = call.services.intake, call.caller.tenant
    encoding = _encoding(request)
    if route.files and request.content_type == "multipart/form-data":
        if encoding != "identity":
            raise UnsupportedMediaType(
                "a multipart body cannot be compressed as a whole: compress the files in it instead"
            )
        return await _multipart(route, request, intake, tenant, loan)
    with _told_how_to_send_files(route):
        _check_media(route, request)
        limit = _limit(route, intake.settings)
        sent = await _read(request, limit, intake, loan)
        body, digest, size = await _parsed(route, call.where, sent, encoding, limit, intake, loan)
        if not route.files:
            return Received(body, {}, None, digest, size)
        form = intake.uploads.form(loan.holder)
        try:
            files = await _named_files(route, body, intake, form, tenant)
        except BaseException:
            form.discard()
            raise
        return Received(body, files, form, digest, size)


@contextmanager
def _told_how_to_send_files(route: Route) -> Iterator[None]:
    """Context manager: add "send a file as a part" to an error about the body or about a file.

    Such an error is often of a client that sent a file as the whole body.
    """
    try:
        yield
    except (Malformed, UnsupportedMediaType, TooLarge, InvalidInput, NotFound) as error:
        about = re.split(r"[.\[]", str(error.details.get("field", "body")))[0]
        if route.files and not route.form and about in ("body", *route.files):
            error.message += (
                f"; a file is sent as a part: curl -F {next(iter(route.files))}=@FILE -F 'spec=JSON'"
            )
        raise


def parse_query(route: Route, query: Mapping[str, str]) -> Any:
    """Check the query parameters; return an instance of `route.query`, or None. Raises InvalidInput."""
    if route.query is None:
        return None
    names = Counter(name for name, _ in query.items())
    if len(names) < names.total():
        field = pointer((names.most_common(1)[0][0],))
        raise InvalidInput(f"{field} is given more than once in the query: give it once", field=field)
    try:
        return route.query.model_validate(dict(query))
    except ValidationError as error:
        raise from_validation(error, route.query) from error


async def _multipart(
    route: Route, request: web.Request, intake: Intake, tenant: str | None, loan: Loan
) -> Received:
    loan.cover(2 * MAX_SPEC_BYTES)
    inflow = _inflow(request, intake, loan)
    form = await intake.uploads.receive(inflow, tuple(route.files), loan.holder, route.fields)
    try:
        limit = _limit(route, intake.settings)
        body, _, _ = await _parsed(route, Where(), form.spec, "identity", limit, intake, loan)
        for name in route.files:
            if getattr(body, name, None) is not None and name in form.files:
                raise InvalidInput(f"{name} is both a part and a path: give one of them", field=name)
        named = await _named_files(route, body, intake, form, tenant, form.files)
    except BaseException:
        form.discard()
        raise
    return Received(body, named, form, form.digest)


async def _named_files(
    route: Route,
    body: Any,
    intake: Intake,
    form: Form,
    tenant: str | None,
    given: Mapping[str, Path] | None = None,
) -> dict[str, Path]:
    """The files of a request: those uploaded (`given`), and those that `body` names by a path, copied.

    Raises InvalidInput if a required file is missing, and what `Uploads.copy_named` raises.
    """
    files = dict(given or {})
    for name, required in route.files.items():
        ref = getattr(body, name, None)
        if ref is not None:
            files[name] = await intake.uploads.copy_named(tenant, ref.path, name, form)
        if required and name not in files:
            by_path = "" if route.form else ', or as {"path": …} below <data>/uploads'
            raise InvalidInput(f"{name} is missing: send it as a multipart part{by_path}", field=name)
    return files


def _check_media(route: Route, request: web.Request) -> None:
    """Raise UnsupportedMediaType for a Content-Type that the route does not accept."""
    accepted = () if route.form else (JSON,) if route.raw is None else route.raw.media
    if request.content_type not in accepted:
        wanted = " or ".join((*accepted, "multipart/form-data") if route.files else accepted)
        raise UnsupportedMediaType(f"send the body as {wanted}, not as {request.content_type[:80]}")


def _encoding(request: web.Request) -> Encoding:
    """The Content-Encoding. Raises UnsupportedMediaType for an unknown one, or for several."""
    named = request.headers.get("Content-Encoding", "").strip().lower() or "identity"
    if named not in ENCODINGS:
        known = ", ".join(ENCODINGS[1:])
        raise UnsupportedMediaType(
            f"Content-Encoding {named[:80]!r} is not known: use {known}, or leave it out"
        )
    return named


def _is_inference(route: Route) -> bool:
    return route.scope == "infer"


def _limit(route: Route, settings: Settings) -> BodyLimit:
    """The limit on the JSON body: `max_body_bytes` for inference, else that of a multipart body's `spec`."""
    if _is_inference(route):
        return _limit_of_inference(settings)
    return BodyLimit(MAX_SPEC_BYTES, "send less in a request, and large data as files")


def _limit_of_inference(settings: Settings) -> BodyLimit:
    return BodyLimit(settings.max_body_bytes, "send fewer inputs in a request, or raise max_body_bytes")


def _inflow(request: web.Request, intake: Intake, loan: Loan) -> Inflow:
    return Inflow(request, intake.settings.body_idle_s, partial(intake.bodies.rest, loan.holder))


async def read_for_inference(request: web.Request, intake: Intake, loan: Loan) -> bytes:
    """Read the body of a call to infer as it was sent, for another server, and keep it for `receive`. Raises
    as `receive`."""
    request[SENT] = sent = await _read(request, _limit_of_inference(intake.settings), intake, loan)
    return sent


async def _read(request: web.Request, limit: BodyLimit, intake: Intake, loan: Loan) -> bytes:
    """Read the body as it was sent. If its length is known, its memory is reserved before any of it is
    read."""
    if (kept := request.get(SENT)) is not None:
        sent: bytes = kept
        return sent
    _check_size(request.content_length or 0, limit, loan)
    inflow = _inflow(request, intake, loan)
    await inflow.begin()
    # One block of the body's full length. A growing block would fragment the heap, and a list of chunks
    # could be one of single bytes. The kernel allocates pages when they are first written to, so bytes
    # that never arrive take no memory.
    block, size = np.empty(request.content_length or FIRST_BYTES, np.uint8), 0
    while chunk := await inflow.readany():
        end = size + len(chunk)
        _check_size(end, limit, loan)
        if end > len(block):
            block = np.concatenate([block[:size], np.empty(max(end, len(block)), np.uint8)])
        block[size:end] = np.frombuffer(chunk, np.uint8)
        size = end
    return block[:size].tobytes()


def _check_size(size: int, limit: BodyLimit, loan: Loan) -> None:
    if size > limit.most:
        raise over_limit("body", limit.most, "bytes", limit.cure)
    loan.cover(2 * size)  # for the body, and for the texts parsed from it


async def _parsed(
    route: Route, where: Where, sent: bytes, encoding: Encoding, limit: BodyLimit, intake: Intake, loan: Loan
) -> tuple[Any, str, int]:
    """Decompress, count, parse and check a body.

    Returns (an instance of `route.body`, or what `route.raw` reads; SHA-256; bytes after decompression).
    """
    inputs = max(intake.settings.max_inputs, 16) if _is_inference(route) else 16
    reader = LimitedBodyReader(route.inputs_field, most_values(inputs), loan)
    if not _is_inference(route):
        reader = replace(reader, cure=limit.cure)

    def work() -> tuple[Any, str, int]:
        data = sent
        if encoding != "identity":
            data = decompressed(sent, encoding, limit, lambda size: loan.cover(len(sent) + 2 * size))
        digest = hashlib.sha256(data).hexdigest() if route.creates else ""
        if route.raw is not None:
            return route.raw.read(data, where, reader), digest, len(data)
        return reader.json(route.body, data, route.count_members), digest, len(data)

    if encoding == "identity" and len(sent) <= LIGHT_BYTES and census(sent, LIGHT).within(LIGHT):
        return work()
    return await intake.bodies.work(loan.holder, work)


def most_values(inputs: int) -> Census:
    """Return the most JSON values and members of objects that the body of a call with up to `inputs` inputs
    may hold."""
    return Census(VALUES_AN_INPUT * inputs, 64 + MEMBERS_AN_INPUT * inputs)


@cache
def _adapter(model: Any) -> TypeAdapter[Any]:
    return TypeAdapter(model)
