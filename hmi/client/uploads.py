"""Files of a call: their sources, and the multipart body that carries them, as a stream."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from hmi.client.rows import Source, opener, packed

_QUOTED = {ord('"'): "%22", ord("\r"): "%0D", ord("\n"): "%0A"}
"""Characters of a file's name that a part's head writes in another way, as browsers do."""
SMALL = 1 << 16
"""A file of fewer bytes is sent as it is."""


@dataclass(frozen=True)
class OnServer:
    """A file that lies on the server already, below the folder `uploads` of its data folder."""

    path: str


Data = Source | OnServer


@dataclass
class Upload:
    """One part of a call."""

    name: str
    open: Callable[[], Iterator[bytes]]
    size: int | None
    """Bytes that will be sent; None if that is not known before."""
    again: bool
    """True if the upload can be opened more than once."""
    filename: str = ""
    opened: bool = field(default=False, init=False)

    @property
    def fresh(self) -> bool:
        return self.again or not self.opened

    def pieces(self) -> Iterator[bytes]:
        self.opened = True
        return self.open()


def upload(name: str, source: Source, compress: str | None) -> Upload:
    """Return the part `name`. Raises InvalidInput if the source cannot be read."""
    open_source, size, again = opener(source, name)
    filename = Path(source).name if isinstance(source, str | PathLike) else name
    if compress is None or (size is not None and size < SMALL):
        return Upload(name, open_source, size, again, filename)
    return Upload(name, lambda: packed(open_source(), compress), None, again, filename)


def parts(given: Mapping[str, Data | None], compress: str | None) -> tuple[dict[str, Any], dict[str, Upload]]:
    """Return (fields that name files on the server, parts to send)."""
    there: dict[str, Any] = {}
    sent: dict[str, Upload] = {}
    for name, source in given.items():
        if isinstance(source, OnServer):
            there[name] = {"path": source.path}
        elif source is not None:
            sent[name] = upload(name, source, compress)
    return there, sent


@dataclass(frozen=True)
class Multipart:
    """A body of the type multipart/form-data: the JSON `spec`, then the files.

    With `form`, the fields of `spec` are parts of their own instead, as texts.
    """

    spec: Any
    uploads: Mapping[str, Upload]
    form: bool = False
    boundary: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def headers(self) -> dict[str, str]:
        kind = {"Content-Type": f"multipart/form-data; boundary={self.boundary}"}
        size = self._size()
        return kind if size is None else {**kind, "Content-Length": str(size)}

    def pieces(self) -> Iterator[bytes]:
        yield self._first()
        for upload in self.uploads.values():
            yield self._file_head(upload)
            yield from upload.pieces()
            yield b"\r\n"
        yield self._last()

    def _size(self) -> int | None:
        total = len(self._first()) + len(self._last())
        for upload in self.uploads.values():
            if upload.size is None:
                return None
            total += len(self._file_head(upload)) + upload.size + 2
        return total

    def _first(self) -> bytes:
        if not self.form:
            return (
                self._head('name="spec"', "application/json") + json.dumps(self.spec or {}).encode() + b"\r\n"
            )
        texts = self.spec.items()
        return b"".join(self._head(f'name="{n}"', "text/plain") + str(t).encode() + b"\r\n" for n, t in texts)

    def _file_head(self, upload: Upload) -> bytes:
        filename = upload.filename.translate(_QUOTED)
        return self._head(f'name="{upload.name}"; filename="{filename}"', "application/octet-stream")

    def _head(self, named: str, kind: str) -> bytes:
        disposition = f"Content-Disposition: form-data; {named}\r\n"
        return f"--{self.boundary}\r\n{disposition}Content-Type: {kind}\r\n\r\n".encode()

    def _last(self) -> bytes:
        return f"--{self.boundary}--\r\n".encode()
