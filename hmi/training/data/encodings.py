"""The encoding of a file's beginning: by its mark, by what UTF-8 and UTF-16 allow, or else as
charset-normalizer recognises it, where it leaves no doubt."""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig", "UTF-8 with a byte-order mark"),
    (codecs.BOM_UTF32_LE, "utf-32", "UTF-32"),  # before UTF-16, whose mark is its beginning
    (codecs.BOM_UTF32_BE, "utf-32", "UTF-32"),
    (codecs.BOM_UTF16_LE, "utf-16", "UTF-16"),
    (codecs.BOM_UTF16_BE, "utf-16", "UTF-16"),
)
SAMPLE = 1 << 14
"""Bytes of lines with other bytes than ASCII that an encoding is recognised from."""
LEAST_WORDS = 4
"""With fewer different words that are not ASCII, an encoding is not recognised."""
LEAST_COHERENCE, MARGIN = 0.3, 0.03
"""An encoding is recognised if its letters fit a language at least this well, as charset-normalizer measures
it. Readings within this much of the best one count as near it."""
PREFERRED = ("cp1252", "cp1251", "cp1250", "cp1253", "cp1254", "cp1257", "koi8_r", "cp866", "mac_roman")
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
class Encoding:
    """Python's name of an encoding, its name for messages, and a remark for the user, or ""."""

    codec: str
    name: str
    remark: str = ""


def encoding_of(head: bytes, given: str | None = None) -> Encoding:
    """The encoding of a file that begins so: the one that the user has `given`, else UTF-8 if nothing else is
    beyond doubt."""
    if given is not None:
        codec = codecs.lookup(given).name
        marked = codec == "utf-8" and head.startswith(codecs.BOM_UTF8)
        return Encoding("utf-8-sig" if marked else codec, f"{given}, as told")
    for mark, codec, name in MARKS:
        if head.startswith(mark):
            return Encoding(codec, name)
    if b"\0" in head and not _is_damaged(head):
        codec = _utf16(head)
        if codec:
            return Encoding(codec, "UTF-16 without a mark")
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return _eight_bits(head) or Encoding("utf-8", "UTF-8")
    return Encoding("utf-8", "UTF-8")


def _is_damaged(head: bytes) -> bool:
    """Whether a beginning with zero bytes is UTF-8 but for these few."""
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


def _eight_bits(head: bytes) -> Encoding | None:
    """The encoding that charset-normalizer recognises, if no other reading comes near it."""
    from charset_normalizer import from_bytes

    sample = b"".join(line for line in head.splitlines(True) if not line.isascii())[:SAMPLE]
    words = list(dict.fromkeys(_WORD.findall(sample)))
    if len(words) < LEAST_WORDS or b"\0" in sample:
        return None
    scores = {str(match): match.coherence - 2 * match.chaos for match in from_bytes(sample)}
    best = max(scores.values(), default=0.0)
    near = [text for text, score in scores.items() if score > best - MARGIN]
    codec = _codec_of(sample, [text for text in near if _is_of_a_language(text)] or near)
    if best < LEAST_COHERENCE or codec is None:
        return None
    read = [word.decode(codec, "replace") for word in words]
    if any("\ufffd" in word or _ODD.search(word) for word in read):
        return None
    name = codec.replace("cp125", "Windows-125")
    shown = ", ".join(f"“{word}”" for word in read[:LEAST_WORDS])
    return Encoding(
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
    return next((codec for codec in PREFERRED if _reads(sample, codec) == readings[0]), None)


def _is_of_a_language(text: str) -> bool:
    """Whether one language writes all letters of a text; for other scripts than Latin, True."""
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
