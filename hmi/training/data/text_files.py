"""Decodes a file to lines. Detects its compression and encoding; if the file is not text, the error
names the cure."""

from __future__ import annotations

import codecs
import gzip
import io
import re
import unicodedata
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import zstandard

from hmi.errors import InvalidData, InvalidInput, TooLarge

_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig", "UTF-8 with a byte-order mark"),
    (codecs.BOM_UTF32_LE, "utf-32", "UTF-32"),  # before UTF-16, whose mark is its beginning
    (codecs.BOM_UTF32_BE, "utf-32", "UTF-32"),
    (codecs.BOM_UTF16_LE, "utf-16", "UTF-16"),
    (codecs.BOM_UTF16_BE, "utf-16", "UTF-16"),
)
SAMPLE = 1 << 14
"""Bytes of lines with other bytes than ASCII that an encoding is recognised from."""
_LEAST_WORDS = 4
"""With fewer different words that are not ASCII, an encoding is not recognised."""
_LEAST_COHERENCE, _MARGIN = 0.3, 0.03
"""An encoding is recognised if its letters fit a language at least this well, as charset-normalizer measures
it. Readings within this much of the best one count as near it."""
_PREFERRED = ("cp1252", "cp1251", "cp1250", "cp1253", "cp1254", "cp1257", "koi8_r", "cp866", "mac_roman")
"""The encodings that may be recognised. Of those that read the sample alike, the first is taken."""
_WEST = tuple(
    map(
        frozenset,
        ("äöüß", "àâæçéèêëîïôœùûüÿ", "áéíóúüñºª", "ãõáâàçéêíóôúºª", "àèéìíòóù", "éèêëïóöü", "åäöé", "æøåéó"),
    )
)
"""Letters of German, French, Spanish, Portuguese, Italian, Dutch, Swedish, Danish and Norwegian."""
_EAST = tuple(
    map(
        frozenset,
        (
            "ąćęłńóśźż",
            "áčďéěíňóřšťúůýž",
            "áéíóöőúüű",
            "áäčďéíĺľňóôŕšťúýž",
            "ăâîşţșț",
            "čćđšž",
            "çğıöşüi̇",
            "āčēģīķļņšūž",
        ),
    )
)
"""Letters of Polish, Czech, Hungarian, Slovak, Romanian, Croatian and Slovene, Turkish, Latvian."""
_WESTERN = frozenset().union(*_WEST)
_WORD = re.compile(rb"[^\s,;|\"']*[\x80-\xff]+[^\s,;|\"']*")
_ODD = re.compile(r"[a-zß-ÿ][^\W\d_a-zß-ÿ]|\w[^\w\s'’.@:/&+*()\[\]=–—-]\w")
"""Within a word: a capital after a small letter, or a sign that stands between words."""


@dataclass(frozen=True)
class _Encoding:
    """Python's name of an encoding, its name for messages, and a remark for the user, or ""."""

    codec: str
    name: str
    remark: str = ""


def encoding_of(head: bytes, given: str | None = None) -> _Encoding:
    """The encoding of a file that begins so: the one that the user has `given`, else UTF-8 if nothing else is
    beyond doubt.

    A mark tells it, or what UTF-8 and UTF-16 allow, or else charset-normalizer, where it leaves no doubt.
    """
    if given is not None:
        codec = codecs.lookup(given).name
        marked = codec == "utf-8" and head.startswith(codecs.BOM_UTF8)
        return _Encoding("utf-8-sig" if marked else codec, f"{given}, as told")
    for mark, codec, name in _MARKS:
        if head.startswith(mark):
            return _Encoding(codec, name)
    if b"\0" in head and not _is_damaged(head):
        codec = _utf16(head)
        if codec:
            return _Encoding(codec, "UTF-16 without a mark")
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return _eight_bits(head) or _Encoding("utf-8", "UTF-8")
    return _Encoding("utf-8", "UTF-8")


def _is_damaged(head: bytes) -> bool:
    """True if the beginning of a file is UTF-8 once its few zero bytes are left out."""
    rest = head.replace(b"\0", b"")
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(rest)
    except UnicodeDecodeError:
        return False
    controls = any(unicodedata.category(c) == "Cc" and c not in "\t\n\r\f" for c in set(text))
    return not controls and len(head) - len(rest) < len(head) / 10


def _utf16(head: bytes) -> str:
    """UTF-16 without a mark in the byte order in which it is text, or "" if both or neither are."""
    readings = {codec: _as_text(head, codec) for codec in ("utf-16-le", "utf-16-be")}
    lines = {codec: text.count("\n") + text.count("\r") for codec, text in readings.items() if text}
    if len(lines) == 1:
        return next(iter(lines))
    # Ideographs make text in either order; line ends do in one.
    return max(lines, key=lambda codec: lines[codec]) if len(set(lines.values())) == 2 else ""


def _as_text(head: bytes, codec: str) -> str:
    """The decoded beginning, or "" if it holds what no text does."""
    try:
        text = codecs.getincrementaldecoder(codec)().decode(head)
    except UnicodeDecodeError:
        return ""
    strange = any(c not in "\t\n\r\f" and unicodedata.category(c) in ("Cc", "Cn", "Co") for c in set(text))
    return "" if strange else text


def _eight_bits(head: bytes) -> _Encoding | None:
    """The encoding that charset-normalizer recognises, if no other reading comes near it."""
    from charset_normalizer import from_bytes

    sample = b"".join(line for line in head.splitlines(True) if not line.isascii())[:SAMPLE]
    words = list(dict.fromkeys(_WORD.findall(sample)))
    if len(words) < _LEAST_WORDS or b"\0" in sample:
        return None
    scores = {str(match): match.coherence - 2 * match.chaos for match in from_bytes(sample)}
    best = max(scores.values(), default=0.0)
    near = [text for text, score in scores.items() if score > best - _MARGIN]
    codec = _codec_of(sample, [text for text in near if _is_of_a_language(text)] or near)
    if best < _LEAST_COHERENCE or codec is None:
        return None
    read = [word.decode(codec, "replace") for word in words]
    if any("\ufffd" in word or _ODD.search(word) for word in read):
        return None
    name = codec.replace("cp125", "Windows-125")
    shown = ", ".join(f"“{word}”" for word in read[:_LEAST_WORDS])
    return _Encoding(
        codec,
        f"{name}, by its bytes",
        f"the file is not UTF-8, and was read as {name}, so that words such as {shown} come out: if that is "
        "wrong, give --encoding (over HTTP options.encoding)",
    )


def _codec_of(sample: bytes, readings: Sequence[str]) -> str | None:
    """The codec of the only reading; of several, of that in Western letters if it is the only one."""
    if len(readings) > 1:
        readings = [text for text in readings if _letters(text) <= _WESTERN]
    if len(readings) != 1:
        return None
    return next((codec for codec in _PREFERRED if _reads(sample, codec) == readings[0]), None)


def _is_of_a_language(text: str) -> bool:
    """True if one language has all letters of a text beyond ASCII, or if one of them is not Latin."""
    found = _letters(text)
    latin = all(unicodedata.name(letter, "").startswith("LATIN") for letter in found)
    return not latin or any(found <= letters for letters in (*_WEST, *_EAST))


def _letters(text: str) -> set[str]:
    """The small letters of a text that are not ASCII."""
    return {letter for letter in text.lower() if letter.isalpha() and not letter.isascii()}


def _reads(sample: bytes, codec: str) -> str:
    try:
        return sample.decode(codec)
    except UnicodeDecodeError:
        return ""


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
