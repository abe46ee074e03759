"""Files of a request: multipart parts that are streamed to disk, or paths below `<data>/uploads`."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import stat
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar, cast

from aiohttp import BodyPartReader, StreamReader
from aiohttp.http import HttpProcessingError
from aiohttp.multipart import MultipartReader

from hmi.api.errors import Malformed, UnsupportedMediaType, over
from hmi.api.expand import expand_into
from hmi.api.inflow import Inflow
from hmi.core import check_name
from hmi.errors import InvalidInput, NotFound

P = ParamSpec("P")
T = TypeVar("T")
MAX_SPEC_BYTES = 1 << 20
MOST_PART_HEADERS = 32


@dataclass
class Form:
    """A multipart body: the JSON part `spec`, and files on disk by part name."""

    folder: Path
    spec: bytes = b""
    files: dict[str, Path] = field(default_factory=dict)
    digest: str = ""

    def discard(self) -> None:
        """Remove what the handler did not take over."""
        shutil.rmtree(self.folder, ignore_errors=True)


class Uploads:
    """Owns `<data>/incoming`, where uploads wait until a job takes them, and reads `<data>/uploads`."""

    def __init__(self, data: Path, limit: int) -> None:
        self._incoming = data / "incoming"
        self._below = data / "uploads"
        self._limit = limit
        # Apart: files that expand for seconds must not hold the threads that every other call uses.
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="hmi-uploads")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def apart(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """`work(…)`, which reads, writes or expands an upload, in a thread for uploads."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(work, *args, **kwargs))

    def clear(self) -> None:
        """Remove what a killed server left. Call only while no other server uses the folder."""
        shutil.rmtree(self._incoming, ignore_errors=True)
        self._below.mkdir(parents=True, exist_ok=True)

    def new_folder(self) -> Path:
        folder = self._incoming / uuid.uuid4().hex
        folder.mkdir(parents=True)
        return folder

    async def receive(self, inflow: Inflow, names: tuple[str, ...]) -> Form:
        """Read a multipart body; `names` are the file parts it may have. The caller discards the form.

        Raises Malformed, UnsupportedMediaType, TooLarge, InvalidInput.
        """
        reader = _reader(inflow)
        await inflow.begin()
        form = Form(self.new_folder())
        try:
            digest = hashlib.sha256()
            await self._parts(reader, names, form, digest)
        except BaseException:
            form.discard()
            raise
        form.digest = digest.hexdigest()
        return form

    async def _parts(self, reader: MultipartReader, names: tuple[str, ...], form: Form, digest: hashlib._Hash) -> None:
        seen: set[str] = set()
        try:
            while (part := await reader.next()) is not None:
                name = _part_name(part, names, seen)
                assert isinstance(part, BodyPartReader)
                digest.update(name.encode() + b"\0")
                if name == "spec":
                    form.spec = await _small(part, digest)
                else:
                    form.files[name] = await self._file(part, name, form.folder, digest)
        except _NOT_WELL_FORMED as error:
            raise _malformed(error) from error
        if "spec" not in seen:
            raise InvalidInput("spec is missing: send the request's JSON as the multipart part 'spec'", field="spec")

    async def _file(self, part: BodyPartReader, name: str, folder: Path, digest: hashlib._Hash) -> Path:
        raw = folder / f"{name}.raw"
        size = 0
        with raw.open("wb") as file:
            while chunk := await part.read_chunk(1 << 16):
                size += len(chunk)
                if size > self._limit:
                    raise over(name, self._limit, "bytes", "send less, or raise max_upload_bytes")
                digest.update(chunk)
                await self.apart(file.write, chunk)
        return await self.apart(self._expand, raw, name)

    def _expand(self, raw: Path, name: str) -> Path:
        target = raw.with_suffix("")
        with raw.open("rb") as file:
            expand_into(file, target, name, self._limit)
        raw.unlink()
        return target

    def copy_below(self, tenant: str | None, relative: str, field: str, folder: Path) -> Path:
        """Copy (and expand) a file that the caller may name into `folder`, under the name `field`.

        `relative` starts at `<data>/uploads/<tenant>`, at `<data>/uploads` itself for those who reach every
        tenant (None). Raises InvalidInput for a path that leads out of there, also by a symbolic link, and
        NotFound for one that leads nowhere.
        """
        found = self._found(tenant, relative, f"{field}.path")
        target = folder / field
        with found.open("rb") as file:
            expand_into(file, target, field, self._limit)
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
            raise NotFound(f"there is no file {relative!r} below {where}: check the path", field=field) from error
        if not stat.S_ISREG(mode):
            raise InvalidInput(f"{relative!r} is not a file: name one file", field=field)
        return found


_NOT_WELL_FORMED = (ValueError, LookupError, RuntimeError, AssertionError, HttpProcessingError)
"""What aiohttp's reader raises for parts and headers that are not what they should be."""


def _malformed(error: Exception) -> Malformed:
    said = error.message if isinstance(error, HttpProcessingError) else str(error)
    said = " ".join(said.split())[:200]
    return Malformed(f"the multipart body is not well-formed ({said}): check its boundary and its parts' headers")


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
