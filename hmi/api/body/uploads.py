"""The files of a request: multipart parts, streamed to the disk, or copies of files below
`<data>/uploads`."""

from __future__ import annotations

import hashlib
import json
import shutil
import stat
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar, cast

from hmi.api.body.body_stream import Inflow
from hmi.api.body.expand import decompressing, is_compressed
from hmi.api.body.fair_threads import FairThreads
from hmi.api.body.shares import Holder, Shares
from hmi.api.protocols.errors import Malformed, UnsupportedMediaType, over_limit
from hmi.config import Settings
from hmi.core import check_name
from hmi.errors import InvalidInput, NotFound
from hmi.stores.layout import Layout

if TYPE_CHECKING:
    import aiohttp
    from aiohttp import http
else:
    from hmi.api.lazy_import import aiohttp, http

P = ParamSpec("P")
T = TypeVar("T")
MAX_SPEC_BYTES = 1 << 20
"""Size of the part `spec`, and of a JSON body of a call other than inference."""
MAX_PART_HEADERS = 32
"""Header lines of one multipart part."""
MAX_FILE_NAME = 255
"""Characters of a file's name that are kept."""
SLICE_S = 0.02
"""A caller's file is decompressed for this long before another caller gets the thread."""
UPLOADS_OF_LIMIT = 16
"""The default of `upload_bytes`, in multiples of `max_upload_bytes`."""


class UploadLoan:
    """The reservation of one request with files: a place among the uploads under way, and space on the
    disk."""

    def __init__(self, places: Shares, space: Shares, most: int, holder: Holder) -> None:
        self.holder = holder
        self._place, self._space, self._most, self._size = places.loan(holder, 1), space.loan(holder), most, 0

    def grow(self, size: int) -> None:
        """Reserve `size` more bytes before they are written. Raises TooLarge, QuotaExceeded, Unavailable."""
        self._size += size
        if self._size > self._most:
            raise over_limit(
                "files", self._most, "bytes, as sent and expanded", "send smaller ones, or raise upload_bytes"
            )
        self._space.cover(self._size)

    def end(self) -> None:
        """Give back the place and the space."""
        self._space.end()
        self._place.end()


@dataclass
class Form:
    """The files of one request, in a folder of their own, and the JSON part `spec` of a multipart body."""

    folder: Path
    loan: UploadLoan
    spec: bytes = b""
    files: dict[str, Path] = field(default_factory=dict)
    """The uploaded files by part name."""
    file_names: dict[str, str] = field(default_factory=dict)
    """The caller's names of these files, by part name."""
    digest: str = ""
    """SHA-256 of the names and contents of all parts."""

    def discard(self) -> None:
        """Remove the files that the handler has not moved away, and end the loan."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.loan.end()


class Uploads:
    """Owns `<data>/incoming`, where files wait until a job takes them, and reads `<data>/uploads`.

    Callers share the places for uploads and their space on the disk (`Shares`), and two threads
    (`FairThreads`).
    """

    def __init__(self, settings: Settings) -> None:
        layout = Layout(settings.data)
        self._incoming, self._uploads = layout.incoming, layout.uploads
        self._limit = settings.max_upload_bytes
        total = settings.upload_bytes or UPLOADS_OF_LIMIT * settings.max_upload_bytes
        self._places, self._space = Shares(settings.max_uploads, "uploads"), Shares(total, "bytes of uploads")
        self._most = total // 2  # a holder alone gets half, so a request for more could never succeed
        # Threads of their own: a file that takes seconds to decompress must not block other calls' threads.
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="hmi-uploads")
        self._fair = FairThreads(self._threads)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def in_thread(self, holder: Holder, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work(…)`, one short step of reading or writing an upload, in a thread for uploads."""
        return await self._fair.work(holder, partial(work, *args, **kwargs))

    def clear(self) -> None:
        """Remove the files that a killed server left. Call only while no other server uses the folder."""
        shutil.rmtree(self._incoming, ignore_errors=True)
        self._uploads.mkdir(parents=True, exist_ok=True)

    def form(self, holder: Holder) -> Form:
        """Create a form, which the caller must discard. Raises QuotaExceeded, Unavailable."""
        loan = UploadLoan(self._places, self._space, self._most, holder)
        try:
            folder = self._incoming / uuid.uuid4().hex
            folder.mkdir(parents=True)
        except BaseException:
            loan.end()
            raise
        return Form(folder, loan)

    async def receive(
        self, inflow: Inflow, names: tuple[str, ...], holder: Holder, fields: tuple[str, ...] = ("spec",)
    ) -> Form:
        """Read a multipart body. The caller must discard the form.

        names: the file parts that it may have. fields: its other parts: `spec`, which is JSON, or texts that
        are read as the fields of one JSON object.

        Raises Malformed, UnsupportedMediaType, TooLarge, InvalidInput, QuotaExceeded, Unavailable.
        """
        reader = _reader(inflow)
        form = self.form(holder)
        try:
            await inflow.begin()
            digest = hashlib.sha256()
            await self._parts(reader, names, fields, form, digest)
        except BaseException:
            form.discard()
            raise
        form.digest = digest.hexdigest()
        return form

    async def _parts(
        self,
        reader: aiohttp.MultipartReader,
        names: tuple[str, ...],
        fields: tuple[str, ...],
        form: Form,
        digest: hashlib._Hash,
    ) -> None:
        seen: set[str] = set()
        given: dict[str, str] = {}
        try:
            while (part := await reader.next()) is not None:
                name = _part_name(part, (*fields, *names), seen)
                assert isinstance(part, aiohttp.BodyPartReader)
                digest.update(name.encode() + b"\0")
                if name in names:
                    form.files[name] = await self._file(part, name, form, digest)
                    form.file_names[name] = _file_name(part)
                else:
                    form.spec = await _read_spec(part, name, digest)
                    given[name] = form.spec.decode(errors="replace") if name != "spec" else ""
        except (*_NOT_WELL_FORMED, http.HttpProcessingError) as error:
            raise _malformed(error) from error
        if "spec" not in fields:
            form.spec = json.dumps(given).encode()
        elif "spec" not in seen:
            raise InvalidInput(
                "spec is missing: send the request's JSON as the multipart part 'spec' (curl -F 'spec=JSON')",
                field="spec",
            )

    async def _file(self, part: aiohttp.BodyPartReader, name: str, form: Form, digest: hashlib._Hash) -> Path:
        raw, target = form.folder / f"{name}.raw", form.folder / name
        size = 0
        with raw.open("wb") as file:
            while chunk := await part.read_chunk(1 << 16):
                size += len(chunk)
                if size > self._limit:
                    raise over_limit(name, self._limit, "bytes", "send less, or raise max_upload_bytes")
                digest.update(chunk)
                form.loan.grow(len(chunk))
                await self.in_thread(form.loan.holder, file.write, chunk)
        if not is_compressed(raw):
            return raw.rename(target)
        await self._decompress(raw, name, form)
        raw.unlink()
        return target

    async def copy_named(self, tenant: str | None, relative: str, field: str, form: Form) -> Path:
        """Copy a file that the request names to the form's folder, decompressed, under the name `field`.

        `relative` starts at `<data>/uploads/<tenant>`, or at `<data>/uploads` if `tenant` is None,
        for callers that reach every tenant. Raises InvalidInput for a path that leads out of that
        folder, also by a symbolic link, and for anything but a file; NotFound for a path that does
        not exist; and as `decompressing`.
        """
        found = await self.in_thread(form.loan.holder, self._resolve, tenant, relative, f"{field}.path")
        return await self._decompress(found, field, form)

    async def _decompress(self, source: Path, name: str, form: Form) -> Path:
        """Copy and decompress a file, in short steps, so that other callers' steps come between."""
        target = form.folder / name
        with source.open("rb") as file:
            steps = decompressing(file, target, name, self._limit, form.loan.grow)
            while await self.in_thread(form.loan.holder, _advance, steps):
                pass
        return target

    def _resolve(self, tenant: str | None, relative: str, field: str) -> Path:
        """The file that `relative` names. Raises InvalidInput and NotFound, as `copy_named`."""
        where = "<data>/uploads" if tenant is None else f"<data>/uploads/{check_name(tenant, 'tenant')}"
        base = (self._uploads if tenant is None else self._uploads / tenant).resolve()
        if "\0" in relative or Path(relative).is_absolute() or ".." in Path(relative).parts:
            raise InvalidInput(f"a path must lie below {where} and have no '..'", field=field)
        try:
            # Not strict: the error must not reveal whether the target of a link that leads out exists.
            found = (base / relative).resolve()
            if not found.is_relative_to(base):
                raise InvalidInput(f"a path must not lead out of {where} by a symbolic link", field=field)
            mode = found.stat().st_mode
        except (OSError, RuntimeError) as error:
            raise NotFound(
                f"there is no file {relative!r} below {where}: check the path", field=field
            ) from error
        if not stat.S_ISREG(mode):
            raise InvalidInput(f"{relative!r} is not a file: name one file", field=field)
        return found


def _advance(steps: Iterator[int]) -> bool:
    """Take steps for about SLICE_S seconds; return whether more steps are left."""
    until = time.monotonic() + SLICE_S
    return any(time.monotonic() > until for _ in steps)


_NOT_WELL_FORMED = (ValueError, LookupError, RuntimeError, AssertionError)
"""The errors that aiohttp's reader raises for malformed parts and headers, beside HttpProcessingError."""


def _malformed(error: Exception) -> Malformed:
    reason = error.message if isinstance(error, http.HttpProcessingError) else str(error)
    reason = " ".join(reason.split())[:200]
    return Malformed(
        f"the multipart body is not well-formed ({reason}): check its boundary and its parts' headers"
    )


def _reader(inflow: Inflow) -> aiohttp.MultipartReader:
    try:
        content = cast("aiohttp.StreamReader", inflow)
        return aiohttp.MultipartReader(inflow.headers, content, max_headers=MAX_PART_HEADERS)
    except (*_NOT_WELL_FORMED, http.HttpProcessingError) as error:
        raise _malformed(error) from error


def _part_name(part: object, names: tuple[str, ...], seen: set[str]) -> str:
    """The name of a part, one of `names`, which is added to `seen`. Raises Malformed, InvalidInput,
    UnsupportedMediaType."""
    name = part.name if isinstance(part, aiohttp.BodyPartReader) else None
    if name is None:
        raise Malformed("a multipart part has no name: give it 'Content-Disposition: form-data; name=\"…\"'")
    if name not in names:
        known = ", ".join(names)
        raise InvalidInput(f"part {name[:80]!r} is not one of {known}", field=name[:80])
    if name in seen:
        raise InvalidInput(f"part {name!r} is there twice: send it once", field=name)
    seen.add(name)
    assert isinstance(part, aiohttp.BodyPartReader)
    coding = part.headers.get("Content-Transfer-Encoding", "binary").lower()
    if coding not in ("binary", "8bit", "7bit"):
        raise UnsupportedMediaType(
            f"part {name!r} has Content-Transfer-Encoding {coding[:80]!r}: send its bytes without one"
        )
    return name


def _file_name(part: aiohttp.BodyPartReader) -> str:
    """The caller's name of a file, without what cannot be shown."""
    shown = "".join(c for c in part.filename or "" if c.isprintable() and not "\ud800" <= c <= "\udfff")
    return shown[:MAX_FILE_NAME]


async def _read_spec(part: aiohttp.BodyPartReader, name: str, digest: hashlib._Hash) -> bytes:
    data = bytearray()
    while chunk := await part.read_chunk(1 << 14):
        data += chunk
        if len(data) > MAX_SPEC_BYTES:
            raise over_limit(name, MAX_SPEC_BYTES, "bytes", "send large data as files in parts of their own")
    digest.update(data)
    return bytes(data)
