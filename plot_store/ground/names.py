"""Checks that names and ids are well formed."""

from __future__ import annotations

import re
from typing import Any, Final

from plot_store.ground.errors import Invalid

_PART: Final = r"[a-z0-9][a-z0-9-]{0,62}"
_PARTS: Final = 7
_REF: Final = re.compile(rf"{_PART}(?:/{_PART}){{0,{_PARTS - 1}}}")
_PREFIX: Final = re.compile(rf"[a-z0-9/-]{{0,{64 * _PARTS - 1}}}")
_ID: Final = re.compile(r"v[0-9a-f]{32}")
_SEGMENT: Final = re.compile(r"[0-9a-f]{32}\.(?:rows|index)")
_FILE: Final = re.compile(r"[0-9a-f]{32}\.(?:rows|index|pack)")
_BUILD: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_TAG: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_OWNER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/-]{0,127}")
_MAX_TAGGED: Final = 507  # characters of "ref@tag": the key is "tag/ref@tag", and LMDB's keys have up to 511


def is_id(text: Any) -> bool:
    """Return whether the text has the form of a version id. No ref has that form."""
    return _is(_ID, text)


def is_ref(text: Any) -> bool:
    """Return whether the text has the form of a ref."""
    return _is(_REF, text) and not is_id(text)


def may_begin_ref(text: Any) -> bool:
    """Return whether refs may begin with this text. "" begins all of them."""
    return _is(_PREFIX, text)


def is_segment(text: Any) -> bool:
    """Return whether the text has the form of a segment's name."""
    return _is(_SEGMENT, text)


def is_file(text: Any) -> bool:
    """Return whether the text has the form of the name of a file that holds segments."""
    return _is(_FILE, text)


def check_ref(ref: str) -> str:
    """Return the ref. Raises Invalid if it is malformed."""
    if not is_ref(ref):
        raise Invalid(
            f"{_shortened(ref)} is not a ref{_flaw(ref)}: use 1 to {_PARTS} parts, joined by '/', of 1 to 63 "
            "characters a-z, 0-9 and '-', not first a '-', and not the form of a version id"
        )
    return ref


def _flaw(ref: Any) -> str:
    """Return what is wrong with a ref's parts (too many, or the malformed one), or ""."""
    parts = ref.split("/") if isinstance(ref, str) else []
    if len(parts) > _PARTS and all(re.fullmatch(_PART, part) for part in parts):
        return f", since it has {len(parts)} parts"
    bad = [part for part in parts if not re.fullmatch(_PART, part)]
    return f", because of the part {_shortened(bad[0])}" if len(parts) > 1 and bad else ""


def _shortened(text: Any) -> str:
    shown = repr(text)
    return shown if len(shown) <= 200 else f"{shown[:200]}…"


def check_build(build: str) -> str:
    """Return the build id. Raises Invalid if it is malformed."""
    if not _is(_BUILD, build):
        raise Invalid(f"{build!r} is not a build id: use 1 to 128 letters, digits and . _ : -")
    return build


def split_tag(text: str) -> tuple[str, str] | None:
    """Split "ref@tag" into (ref, tag). Returns None for text without "@". Raises Invalid if malformed."""
    if not isinstance(text, str) or "@" not in text:
        return None
    ref, _, tag = text.partition("@")
    check_tagged(ref, tag)
    return ref, tag


def check_tagged(ref: str, tag: str) -> str:
    """Return "ref@tag". Raises Invalid if one is malformed or both together exceed a catalogue key."""
    text = f"{check_ref(ref)}@{check_tag(tag)}"
    if len(text) > _MAX_TAGGED:
        raise Invalid(
            f"ref and tag have {len(text) - 1} characters together, at most {_MAX_TAGGED - 1} fit: choose a "
            f"shorter tag than {tag!r}"
        )
    return text


def check_tag(tag: str) -> str:
    """Return the tag's name. Raises Invalid if it is malformed."""
    if not _is(_TAG, tag):
        raise Invalid(
            f"{tag!r} is not a tag: use 1 to 63 letters, digits and . _ -, beginning with a letter or digit"
        )
    return tag


def check_owner(owner: str) -> str:
    """Return the owner of a pin or lease. Raises Invalid if it is malformed."""
    if not _is(_OWNER, owner):
        raise Invalid(
            f"{owner!r} is not an owner: use 1 to 128 letters, digits and . _ : @ / -, beginning with a "
            "letter or digit"
        )
    return owner


def _is(pattern: re.Pattern[str], text: Any) -> bool:
    return isinstance(text, str) and pattern.fullmatch(text) is not None
