"""Attachments: files of the caller that an export or a push includes. The store does not interpret them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from plot_store.care.archive_format import CHUNK, CURE, Packer, Unpacker
from plot_store.ground.errors import Damaged, Invalid, NotFound
from plot_store.ground.files import convert_os_errors

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_MAX_BYTES: Final = 1 << 31  # of one attachment: `read` holds its content in memory
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Attachment:
    """The record of an attachment: name, size in bytes, SHA-256 of the content."""

    name: str
    bytes: int
    sha256: str


def described(files: Mapping[str, Path]) -> list[Attachment]:
    """Return the records for files by name. Raises Invalid, StoreIO."""
    found = []
    for name, path in sorted(files.items()):
        if not _NAME.fullmatch(name):
            raise Invalid(
                f"{name[:80]!r} cannot be an attachment's name: use letters, digits, '.', '_' and '-'"
            )
        with convert_os_errors(f"reading the attachment {name}"), open(path, "rb") as file:
            size = file.seek(0, 2)
            if size > _MAX_BYTES:
                raise Invalid(f"the attachment {name} has {size} bytes, more than {_MAX_BYTES}: leave it out")
            file.seek(0)
            found.append(Attachment(name, size, hashlib.file_digest(file, "sha256").hexdigest()))
    return found


def parse(listed: Any) -> list[Attachment]:
    """Parse a list of attachments' records. Raises ValueError, TypeError."""
    found = [Attachment(**raw) for raw in listed]
    sound = all(
        _NAME.fullmatch(one.name)
        and is_digest(one.sha256)
        and type(one.bytes) is int
        and 0 <= one.bytes <= _MAX_BYTES
        for one in found
    )
    if not sound or len({one.name for one in found}) != len(found):
        raise ValueError("a name, size or hash is impossible")
    return found


def is_digest(text: str) -> bool:
    """Return whether the text has the form of a SHA-256. Raises TypeError."""
    return _SHA256.fullmatch(text) is not None


def _of(unpacker: Unpacker) -> list[Attachment]:
    """Return the records of an export whose head was read. Raises Damaged."""
    try:
        return parse(unpacker.attachments)
    except (ValueError, TypeError) as error:
        raise Damaged(f"the export's list of attachments is malformed ({error}): {CURE}") from error


def pieces(packer: Packer, attachments: list[Attachment], files: Mapping[str, Path]) -> Iterator[bytes]:
    """Yield the packed bytes of all attachments. Raises StoreIO, Damaged (a file has changed meanwhile)."""
    for one in attachments:
        whole = hashlib.sha256()
        with convert_os_errors(f"reading the attachment {one.name}"), open(files[one.name], "rb") as file:
            while raw := file.read(CHUNK):
                whole.update(raw)
                yield packer.chunk(raw)
        if whole.hexdigest() != one.sha256:
            raise Damaged(f"the attachment {one.name} changed while it was read: export it again")


def read(path: Path) -> Iterator[tuple[str, bytes]]:
    """See `Store.attached`."""
    if not path.is_file():
        raise NotFound(f"there is no file {path}: pass one that `export` wrote")
    with convert_os_errors(f"reading the export {path}"), open(path, "rb") as file:
        unpacker = Unpacker(file)
        unpacker.head()
        for one in _of(unpacker):
            content = b"".join(unpacker.chunks(one.name, one.bytes))
            if hashlib.sha256(content).hexdigest() != one.sha256:
                raise Damaged(f"the attachment {one.name} is damaged: {CURE}")
            yield one.name, content


def skip(unpacker: Unpacker) -> None:
    """Skip the attachments, so that the segments come next. Raises Damaged."""
    for one in _of(unpacker):
        for _ in unpacker.chunks(one.name, one.bytes):
            pass
