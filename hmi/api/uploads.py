"""Files of a request: multipart parts that are streamed to disk, or paths below `<data>/uploads`."""

from __future__ import annotations

import hashlib
import shutil
import stat
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar, cast

from aiohttp import BodyPartReader, StreamReader
from aiohttp.http import HttpProcessingError
from aiohttp.multipart import MultipartReader

from hmi.api.errors import Malformed, UnsupportedMediaType, over
from hmi.api.expand import expanding, is_packed
from hmi.api.inflow import Inflow
from hmi.api.line import Line
from hmi.api.shares import Holder, Shares
from hmi.config import Settings
from hmi.core import check_name
from hmi.errors import InvalidInput, NotFound
from hmi.stores.layout import Layout

P = ParamSpec("P")
T = TypeVar("T")
MAX_SPEC_BYTES = 1 << 20
MOST_PART_HEADERS = 32
SLICE_S = 0.02
"""Of expanding, before it is another caller's turn."""
UPLOADS_OF_LIMIT = 16
"""Without a setting, the uploads under way may take so many times what one file may."""


class Loans:
    """What the files of one request take: a place among the uploads under way, and space on the disk."""

    def __init__(self, places: Shares, space: Shares, most: int, holder: Holder) -> None:
        self.holder = holder
        self._place, self._space, self._most, self._size = places.loan(holder, 1), space.loan(holder), most, 0

    def grow(self, size: int) -> None:
        """Before so many bytes more are written. Raises TooLarge, QuotaExceeded, Unavailable."""
        self._size += size
        if self._size > self._most:
            raise over(
                "files", self._most, "bytes, as sent and expanded", "send smaller ones, or raise upload_bytes"
            )
        self._space.cover(self._size)

    def end(self) -> None:
        self._space.end()
        self._place.end()


@dataclass
class Form:
    """A multipart body: the JSON part `spec`, and files on disk by part name."""

    folder: Path
    loans: Loans
    spec: bytes = b""
    files: dict[str, Path] = field(default_factory=dict)
    digest: str = ""

    def discard(self) -> None:
        """Remove what the handler did not take over."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.loans.end()


class Uploads:
    """Owns `<data>/incoming`, where uploads wait until a job takes them, and reads `<data>/uploads`.

    Callers share places for uploads and room on the disk for them (`Shares`), and two threads (`Line`).
    """

    def __init__(self, settings: Settings) -> None:
        layout = Layout(settings.data)
        self._incoming, self._below = layout.incoming, layout.uploads
        self._limit = settings.max_upload_bytes
        total = settings.upload_bytes or UPLOADS_OF_LIMIT * settings.max_upload_bytes
        self._places, self._space = Shares(settings.max_uploads, "uploads"), Shares(total, "bytes of uploads")
        self._most = total // 2  # what one holder may have at most: to wait for more would be in vain
        # Apart: files that expand for seconds must not hold the threads that every other call uses.
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="hmi-uploads")
        self._line = Line(self._threads)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def apart(self, holder: Holder, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """`work(…)`, which reads or writes an upload and is short, in a thread for uploads."""
        return await self._line.work(holder, partial(work, *args, **kwargs))

    def clear(self) -> None:
        """Remove what a killed server left. Call only while no other server uses the folder."""
        shutil.rmtree(self._incoming, ignore_errors=True)
        self._below.mkdir(parents=True, exist_ok=True)

    def form(self, holder: Holder) -> Form:
        """A new one, which the caller discards. Raises QuotaExceeded, Unavailable."""
        loans = Loans(self._places, self._space, self._most, holder)
        try:
            folder = self._incoming / uuid.uuid4().hex
            folder.mkdir(parents=True)
        except BaseException:
            loans.end()
            raise
        return Form(folder, loans)

    async def receive(self, inflow: Inflow, names: tuple[str, ...], holder: Holder) -> Form:
        """Read a multipart body; `names` are the file parts it may have. The caller discards the form.

        Raises Malformed, UnsupportedMediaType, TooLarge, InvalidInput, QuotaExceeded, Unavailable.
        """
        reader = _reader(inflow)
        form = self.form(holder)
        try:
            await inflow.begin()
            digest = hashlib.sha256()
            await self._parts(reader, names, form, digest)
        except BaseException:
            form.discard()
            raise
        form.digest = digest.hexdigest()
        return form

    async def _parts(
        self, reader: MultipartReader, names: tuple[str, ...], form: Form, digest: hashlib._Hash
    ) -> None:
        seen: set[str] = set()
        try:
            while (part := await reader.next()) is not None:
                name = _part_name(part, names, seen)
                assert isinstance(part, BodyPartReader)
                digest.update(name.encode() + b"\0")
                if name == "spec":
                    form.spec = await _small(part, digest)
                else:
                    form.files[name] = await self._file(part, name, form, digest)
        except _NOT_WELL_FORMED as error:
            raise _malformed(error) from error
        if "spec" not in seen:
            raise InvalidInput(
                "spec is missing: send the request's JSON as the multipart part 'spec'", field="spec"
            )

    async def _file(self, part: BodyPartReader, name: str, form: Form, digest: hashlib._Hash) -> Path:
        raw, target = form.folder / f"{name}.raw", form.folder / name
        size = 0
        with raw.open("wb") as file:
            while chunk := await part.read_chunk(1 << 16):
                size += len(chunk)
                if size > self._limit:
                    raise over(name, self._limit, "bytes", "send less, or raise max_upload_bytes")
                digest.update(chunk)
                form.loans.grow(len(chunk))
                await self.apart(form.loans.holder, file.write, chunk)
        if not is_packed(raw):
            return raw.rename(target)
        await self._expand(raw, name, form)
        raw.unlink()
        return target

    async def copy_below(self, tenant: str | None, relative: str, field: str, form: Form) -> Path:
        """Copy (and expand) a file that the caller may name into the form's folder, under the name `field`.

        `relative` starts at `<data>/uploads/<tenant>`, at `<data>/uploads` itself for those who reach every
        tenant (None). Raises InvalidInput for a path that leads out of there, also by a symbolic link, and
        NotFound for one that leads nowhere.
        """
        found = await self.apart(form.loans.holder, self._found, tenant, relative, f"{field}.path")
        return await self._expand(found, field, form)

    async def _expand(self, source: Path, name: str, form: Form) -> Path:
        """In short pieces of work, so that others' come between."""
        target = form.folder / name
        with source.open("rb") as file:
            steps = expanding(file, target, name, self._limit, form.loans.grow)
            while await self.apart(form.loans.holder, _go_on, steps):
                pass
        return target

    def _found(self, tenant: str | None, relative: str, field: str) -> Path:
        where = "<data>/uploads" if tenant is None else f"<data>/uploads/{check_name(tenant, 'tenant')}"
        base = (self._below if tenant is None else self._below / tenant).resolve()
        if "\0" in relative or Path(relative).is_absolute() or ".." in Path(relative).parts:
            raise InvalidInput(f"a path must lie below {where} and have no '..'", field=field)
        try:
            # Not strict: whether the target of a link that leads out exists is not to be told.
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


def _go_on(steps: Iterator[int]) -> bool:
    """Whether there is more after a while of it."""
    until = time.monotonic() + SLICE_S
    return any(time.monotonic() > until for _ in steps)


_NOT_WELL_FORMED = (ValueError, LookupError, RuntimeError, AssertionError, HttpProcessingError)
"""What aiohttp's reader raises for parts and headers that are not what they should be."""


def _malformed(error: Exception) -> Malformed:
    said = error.message if isinstance(error, HttpProcessingError) else str(error)
    said = " ".join(said.split())[:200]
    return Malformed(
        f"the multipart body is not well-formed ({said}): check its boundary and its parts' headers"
    )


def _reader(inflow: Inflow) -> MultipartReader:
    try:
        return MultipartReader(inflow.headers, cast(StreamReader, inflow), max_headers=MOST_PART_HEADERS)
    except _NOT_WELL_FORMED as error:
        raise _malformed(error) from error


def _part_name(part: object, names: tuple[str, ...], seen: set[str]) -> str:
    name = part.name if isinstance(part, BodyPartReader) else None
    if name is None:
        raise Malformed("a multipart part has no name: give it 'Content-Disposition: form-data; name=\"…\"'")
    if name not in ("spec", *names):
        known = ", ".join(("spec", *names))
        raise InvalidInput(f"part {name[:80]!r} is not one of {known}", field=name[:80])
    if name in seen:
        raise InvalidInput(f"part {name!r} is there twice: send it once", field=name)
    seen.add(name)
    assert isinstance(part, BodyPartReader)
    coding = part.headers.get("Content-Transfer-Encoding", "binary").lower()
    if coding not in ("binary", "8bit", "7bit"):
        raise UnsupportedMediaType(
            f"part {name!r} has Content-Transfer-Encoding {coding[:80]!r}: send its bytes as they are"
        )
    return name


async def _small(part: BodyPartReader, digest: hashlib._Hash) -> bytes:
    data = bytearray()
    while chunk := await part.read_chunk(1 << 14):
        data += chunk
        if len(data) > MAX_SPEC_BYTES:
            raise over("spec", MAX_SPEC_BYTES, "bytes", "send the rows as the part 'data'")
    digest.update(data)
    return bytes(data)
