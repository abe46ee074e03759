"""Checking that names and ids are well formed."""

from __future__ import annotations

import re
from typing import Any, Final

from plot_store.ground.errors import Invalid

_PART: Final = r"[a-z0-9][a-z0-9-]{0,62}"
_PARTS: Final = 7
_REF: Final = re.compile(rf"{_PART}(?:/{_PART}){{0,{_PARTS - 1}}}")
_ID: Final = re.compile(r"v[0-9a-f]{32}")
_SEGMENT: Final = re.compile(r"[0-9a-f]{32}\.(?:rows|index)")
_BUILD: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_TAG: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_OWNER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/-]{0,127}")
_LONGEST_TAGGED: Final = (
    507  # characters of "ref@tag": with "tag/" before them they are a key, LMDB's are up to 511
)


def is_id(text: Any) -> bool:
    """Whether this is the form of a version id (no ref can have it)."""
    return _is(_ID, text)


def is_ref(text: Any) -> bool:
    return _is(_REF, text) and not is_id(text)


def is_segment(text: Any) -> bool:
    return _is(_SEGMENT, text)


def check_ref(ref: str) -> str:
    """The ref itself; Invalid if it is not one."""
    if not is_ref(ref):
        raise Invalid(
            f"{_shortened(ref)} is no ref{_flaw(ref)}: use 1 to {_PARTS} parts, joined by '/', of 1 to 63 "
            "characters a-z, 0-9 and '-', not first a '-', and not the form of a version id"
        )
    return ref


def _flaw(ref: Any) -> str:
    """What is wrong with a ref, if its parts are too many or one is malformed; else empty."""
    parts = ref.split("/") if isinstance(ref, str) else []
    if len(parts) > _PARTS and all(re.fullmatch(_PART, part) for part in parts):
        return f", for it has {len(parts)} parts"
    bad = [part for part in parts if not re.fullmatch(_PART, part)]
    return f", for the part {_shortened(bad[0])}" if len(parts) > 1 and bad else ""


def _shortened(text: Any) -> str:
    said = repr(text)
    return said if len(said) <= 200 else f"{said[:200]}…"


def check_build(build: str) -> str:
    """The build id itself; Invalid if it is not one."""
    if not _is(_BUILD, build):
        raise Invalid(f"{build!r} is not a build id: use 1 to 128 letters, digits and . _ : -")
    return build


def split_tag(text: str) -> tuple[str, str] | None:
    """("ref", "tag") of "ref@tag", both well formed; None for anything without "@". Raises Invalid."""
    if not isinstance(text, str) or "@" not in text:
        return None
    ref, _, tag = text.partition("@")
    check_tagged(ref, tag)
    return ref, tag


def check_tagged(ref: str, tag: str) -> str:
    """ "ref@tag"; Invalid unless both are well formed and the two fit into one key of the catalogue."""
    text = f"{check_ref(ref)}@{check_tag(tag)}"
    if len(text) > _LONGEST_TAGGED:
        raise Invalid(
            f"ref and tag have {len(text) - 1} characters together, at most {_LONGEST_TAGGED - 1} fit: "
            f"choose a shorter tag than {tag!r}"
        )
    return text


def check_tag(tag: str) -> str:
    """The tag's name itself; Invalid if it is not one."""
    if not _is(_TAG, tag):
        raise Invalid(f"{tag!r} is not a tag: use 1 to 63 letters, digits and . _ -, not first a mark")
    return tag


def check_owner(owner: str) -> str:
    """The owner of a pin or lease itself; Invalid if it is none."""
    if not _is(_OWNER, owner):
        raise Invalid(
            f"{owner!r} is not an owner: use 1 to 128 letters, digits and . _ : @ / -, not first a mark"
        )
    return owner


def _is(pattern: re.Pattern[str], text: Any) -> bool:
    return isinstance(text, str) and pattern.fullmatch(text) is not None
