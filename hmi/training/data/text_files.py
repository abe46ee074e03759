"""Decodes a file to lines. Detects its compression and encoding; if the file is not text, the error
names the cure."""

from __future__ import annotations

import codecs
import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

import zstandard

from hmi.errors import InvalidData, InvalidInput, TooLarge
from hmi.training.data.encodings import encoding_of

Upload = Path | bytes
"""A file, or a file's content."""

MAX_EXPANDED_BYTES = 4 << 30
MAX_LINE = 64 << 20
"""Characters. A longer line is an error."""
CHUNK = 1 << 18
ZSTD_WINDOW = 1 << 27
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_AS_JSONL = "export it as JSON, one object a line"
_KINDS = (
    (
        b"PAR1",
        "a Parquet file",
        f"{_AS_JSONL} (pandas: read_parquet(…).to_json(path, orient='records', lines=True))",
    ),
    (b"ARROW1", "an Arrow file", _AS_JSONL),
    (b"\xd0\xcf\x11\xe0", "an old Office file (xls, doc)", "save it as “CSV UTF-8”, or as plain text"),
    (b"%PDF", "a PDF", "give its text, as UTF-8"),
    (b"{\\rtf", "an RTF document", "save it as plain text, UTF-8"),
    (b"SQLite format 3", "an SQLite database", "export the table as “CSV UTF-8”"),
    (b"\x93NUMPY", "a NumPy array", _AS_JSONL),
    (b"BZh", "a bzip2 archive", "unpack it, or pack it with gzip or zstd"),
    (b"\xfd7zXZ", "an xz archive", "unpack it, or pack it with gzip or zstd"),
    (b"7z\xbc\xaf", "a 7z archive", "unpack it, or pack it with gzip or zstd"),
    (
        b"\x78\x9c",
        "compressed by zlib, as spaCy's .spacy files are",
        "export its documents as JSON, one a line: json.dumps(doc.to_json()) for each of "
        "DocBin().from_disk(…).get_docs(nlp.vocab)",
    ),
    (b"\x89PNG", "a picture", "give text"),
    (b"\xff\xd8\xff", "a picture", "give text"),
)
_ZIPPED = (
    (b"xl/", "an Excel workbook (xlsx)", "in Excel, save the sheet as “CSV UTF-8”"),
    (b"word/", "a Word document (docx)", "save it as plain text, UTF-8"),
    (b"content.xml", "an OpenDocument file", "save it as CSV or plain text, UTF-8"),
)


class TextFile:
    """One file of text. Each call of a reading method begins at its start.

    field: the request's field, for errors; name: what error messages call the file. first: stop
    after about this many bytes, counted after decompression; `whole` then says whether the file
    ended before. encoding: its encoding, None if its bytes tell it; `remark` is what to tell the user of one
    that was recognised. Raises InvalidInput (no such file), InvalidData (not text; the message says what
    it seems to be).
    """

    def __init__(
        self,
        source: Upload,
        field: str,
        *,
        first: int | None = None,
        limit: int = MAX_EXPANDED_BYTES,
        name: str | None = None,
        encoding: str | None = None,
    ) -> None:
        self.name = name or field
        self._source, self.field, self._first, self._limit = source, field, first, limit
        self.whole = True
        with self._open() as file:
            head = self._packed(file, CHUNK)
        self._refuse_binary(head)
        found = encoding_of(head, encoding)
        self._codec, self.encoding, self.remark = found.codec, found.name, found.remark
        self.empty = not head

    def lines(self) -> Iterator[str]:
        """Yield all lines, without their ends. Raises InvalidData, which names the line; TooLarge
        past the limit."""
        rest, number, end = "", 0, "\n"
        for chunk in self.chunks():
            if not number and not rest and "\n" not in chunk and "\r" in chunk:
                end = "\r"  # Macintosh line ends, which Excel still offers
            *lines, rest = (rest + chunk).split(end)
            number += len(lines)
            yield from lines
            if len(rest) > MAX_LINE:
                raise self._bad(
                    number + 1, f"is longer than {MAX_LINE >> 20} million characters: break the lines"
                )
        if rest and self.whole:
            yield rest

    def all(self, most: int) -> str:
        """The file's whole text. Raises as `lines`, and TooLarge for more than `most` characters."""
        pieces, held = [], 0
        for chunk in self.chunks():
            pieces.append(chunk)
            held += len(chunk)
            if held > most:
                raise TooLarge(
                    f"{self.name} has more than {most} characters, too many for its form: split it",
                    field=self.field,
                )
        return "".join(pieces)

    def beginning(self) -> str:
        """The first line that is not blank, if it is near the beginning. Raises as `lines`."""
        text = next((chunk.lstrip() for chunk in self.chunks() if chunk.strip()), "")
        return text.splitlines()[0].strip() if text else ""

    def chunks(self) -> Iterator[str]:
        """The file's text in pieces. Raises as `lines`."""
        decoder = codecs.getincrementaldecoder(self._codec)()
        line = 1
        for data in self._data():
            try:
                text = decoder.decode(data)
            except UnicodeDecodeError as error:
                raise self._undecodable(error, line) from error
            if "\0" in text:
                at = line + text.count("\n", 0, text.index("\0"))
                raise self._bad(
                    at,
                    "holds a zero byte: this is a binary file, not text, or a damaged one. Save it as "
                    "text again",
                )
            line += text.count("\n")
            yield text
        try:
            last = decoder.decode(b"", final=self.whole)
        except UnicodeDecodeError as error:
            raise self._bad(
                line, f"ends within a character ({self.encoding}): the file is cut off"
            ) from error
        if last:
            yield last

    def _data(self) -> Iterator[bytes]:
        seen = 0
        with self._open() as file:
            while data := self._packed(file, CHUNK):
                seen += len(data)
                if seen > self._limit:
                    raise TooLarge(
                        f"{self.name} is over {self._limit} bytes when expanded: split it", field=self.field
                    )
                if self._first is not None and seen >= self._first and self._packed(file, 1):
                    self.whole = False
                    yield data
                    return
                yield data

    def _packed(self, file: BinaryIO, count: int) -> bytes:
        try:
            return file.read(count)
        except (EOFError, gzip.BadGzipFile, zlib.error, zstandard.ZstdError) as error:
            raise InvalidData(
                f"{self.name} cannot be decompressed: it is damaged or cut off ({error}). Compress it again",
                field=self.field,
            ) from error

    def _open(self) -> BinaryIO:
        if isinstance(self._source, bytes):
            file: BinaryIO = io.BytesIO(self._source)
        else:
            try:
                file = self._source.open("rb")
            except OSError as error:
                raise InvalidInput(
                    f"{self._source} cannot be read: {error.strerror}", field=self.field
                ) from error
        magic = file.read(4)
        file.seek(0)
        if magic.startswith(_GZIP):
            return cast(BinaryIO, gzip.open(file, "rb"))
        if magic == _ZSTD:
            unpacked = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW)
            return io.BufferedReader(
                cast(io.RawIOBase, unpacked.stream_reader(file, read_across_frames=True))
            )
        return file

    def _refuse_binary(self, head: bytes) -> None:
        found = next(((what, cure) for magic, what, cure in _KINDS if head.startswith(magic)), None)
        if head.startswith(b"PK\x03\x04"):
            zipped = ((what, cure) for name, what, cure in _ZIPPED if name in head)
            found = next(zipped, ("a zip archive", "unpack it"))
        if found is not None:
            raise InvalidData(f"{self.name} is {found[0]}, not text: {found[1]}", field=self.field)

    def _undecodable(self, error: UnicodeDecodeError, line: int) -> InvalidData:
        byte, before = error.object[error.start], error.object[: error.start]
        line += before.count(b"\n")
        if self._codec not in ("utf-8", "utf-8-sig"):
            name = self.encoding.partition(",")[0]
            return self._bad(line, f"is not {name} ({error.reason}): save the file as UTF-8")
        old = bytes([byte]).decode("cp1252", "replace")
        looks = (
            "of another encoding"
            if old == "\ufffd"
            else f"which looks like Windows-1252, where it is “{old}”"
        )
        column = len(before) - before.rfind(b"\n")
        place = f"byte {column} of the line is 0x{byte:02X}"
        cure = (
            "or, for rows and corpora, name its encoding, such as --encoding windows-1252 (over HTTP "
            "options.encoding)"
        )
        return self._bad(
            line, f"is not UTF-8: {place}, {looks}. Save the file as UTF-8 (in Excel: “CSV UTF-8”), {cure}"
        )

    def _bad(self, line: int, what: str) -> InvalidData:
        return InvalidData(f"line {line} of {self.name} {what}", field=self.field, line=line)
