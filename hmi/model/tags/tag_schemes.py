"""Schemes by which tags of words mark entities: which one rows follow, and its conversion to and from BIO.

HMI has one scheme inside, BIO. Rows of another scheme are converted before they are trained on or scored
(`in_labels`), and a model answers in the scheme of its rows (`from_bio`). Loads neither torch nor numba,
since files are checked without them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Literal

OUTSIDE = "O"

Scheme = Literal["bio", "iob1", "io", "plain", "iobes", "bilou", "bmes", "free"]
"""A tag scheme.

- bio (IOB2): B-x begins an entity and I-x continues it.
- iob1: I-x begins an entity too; B-x is used only directly after another entity of the same type.
- io: only I-x is used.
- plain: IO without prefixes. Each word of an entity has its type as tag, every other word O.
- iobes, bilou, bmes: the last word of an entity, and an entity of one word, have marks of their own.
- free: any tag may follow any other, as with parts of speech.
"""
FourMarks = tuple[str, str, str, str]
FOUR_MARKS: Mapping[Scheme, FourMarks] = {
    "iobes": ("B", "I", "E", "S"),
    "bilou": ("B", "I", "L", "U"),
    "bmes": ("B", "M", "E", "S"),
}
"""The marks of the first, an inner and the last word of an entity, and of an entity of one word."""
NAMES: Mapping[Scheme, str] = {
    "bio": "IOB2 (BIO)",
    "iob1": "IOB1",
    "io": "IO",
    "plain": "IO without prefixes",
    "iobes": "IOBES",
    "bilou": "BILOU",
    "bmes": "BMES",
}
"""The names of schemes, for messages."""

_MARKED = re.compile(r"[BIESLUM][-_:].+|.+[-_:][BIESLUM]", re.IGNORECASE)
_USUAL = re.compile(r"[BIESLUM]-.")
MAX_SLIPS = 0.01
"""Rows count as BIO although up to this fraction of their entities begins with I-."""
MAX_MARKED_SLIPS = 0.1
"""The same for schemes of four marks, whose marks are hardly ever something else: rows that were cut within
an entity break them."""
MIN_LONG = 0.05
"""Tags without prefixes are types of entities if at least this fraction of them spans several words."""


def scheme_of(rows: Iterable[Sequence[str]]) -> Scheme:
    """The scheme that rows of tags follow, up to a few slips."""
    rows = list(rows)
    marks = marks_of(rows)
    if marks <= {"B", "I"}:
        return _of_two_marks(rows)
    if "" in marks:
        return "plain" if _are_types(rows) else "free"
    scheme = next((scheme for scheme, four in FOUR_MARKS.items() if marks <= set(four)), None)
    if scheme is None:
        return "free"
    slips = sum(1 for _ in breaks(rows, scheme))
    return scheme if slips <= MAX_MARKED_SLIPS * _count_begins(rows, scheme) else "free"


def marks_of(rows: Iterable[Sequence[str]]) -> set[str]:
    """The marks that begin the tags, such as B; "" for a tag that has none and is not O."""
    tags = {tag for tags in rows for tag in tags} - {OUTSIDE}
    return {tag[0] if tag[1:2] == "-" else "" for tag in tags}


def _of_two_marks(rows: Sequence[Sequence[str]]) -> Scheme:
    """The scheme of tags that are all O, B- or I-."""
    entities = broken = begun = 0
    iob1 = True
    for tags in rows:
        for before, tag in pairwise((OUTSIDE, *tags)):
            legal = may_follow(before, tag)
            broken += not legal
            entities += tag[:2] == "B-" or not legal
            begun += tag[:2] == "B-"
            iob1 &= tag[:2] != "B-" or before[2:] == tag[2:]
    if entities and broken <= MAX_SLIPS * entities:
        return "bio"
    if not entities or not iob1:
        return "free"
    return "iob1" if begun else "io"


def _are_types(rows: Sequence[Sequence[str]]) -> bool:
    """Return whether tags are types of entities: most words are O, and some entities have several words.

    Parts of speech and marks after words have neither.
    """
    counts = Counter(tag for tags in rows for tag in tags)
    if any(tag[1:2] == "-" for tag in counts) or are_marked(counts) or counts[OUTSIDE] < max(counts.values()):
        return False
    runs = long = 0
    for tags in rows:
        for before, tag, after in zip((OUTSIDE, *tags), tags, (*tags[1:], OUTSIDE), strict=False):
            if tag not in (OUTSIDE, before):
                runs += 1
                long += tag == after
    return long > 0 and long >= MIN_LONG * runs


def are_marked(tags: Iterable[str]) -> bool:
    """Return whether all tags have marks in another form than B-x, such as x-B, B_x or b-x."""
    given = {tag for tag in tags if tag.upper() != OUTSIDE}
    return bool(given) and all(map(_MARKED.fullmatch, given)) and not any(map(_USUAL.match, given))


def _count_begins(rows: Sequence[Sequence[str]], scheme: Scheme) -> int:
    return sum(tag[:2] == "B-" for tags in rows for tag in in_labels(tags, scheme))


def in_labels(tags: Sequence[str], scheme: Scheme) -> tuple[str, ...]:
    """The tags of a row in `scheme`, in the terms of its task's labels: BIO. The inverse of `from_bio`.

    Tags of the schemes bio and free stay as they are, and so do tags that the scheme lacks.
    """
    if scheme in FOUR_MARKS:
        return tuple(_to_bio(tags, FOUR_MARKS[scheme]))
    if scheme == "plain":
        return to_bio([tag if tag == OUTSIDE else f"I-{tag}" for tag in tags])
    return to_bio(tags) if scheme in ("iob1", "io") else tuple(tags)


def to_bio(tags: Sequence[str]) -> tuple[str, ...]:
    """Convert IOB1 or IO to BIO: each tag that begins an entity becomes B-x."""
    pairs = pairwise([OUTSIDE, *tags])
    return tuple(tag if may_follow(before, tag) else f"B-{tag[2:]}" for before, tag in pairs)


def _to_bio(tags: Sequence[str], four: FourMarks) -> Iterator[str]:
    """Convert a scheme of four marks to BIO. What does not continue an open entity of its type begins one."""
    _, inner, last, single = four
    open_type: str | None = None
    for tag in tags:
        mark, label = tag[:1], tag[2:]
        if tag == OUTSIDE or tag[1:2] != "-" or mark not in four:
            open_type = None
            yield tag
            continue
        yield f"{'I' if mark in (inner, last) and label == open_type else 'B'}-{label}"
        open_type = None if mark in (last, single) else label


def from_bio(tags: Sequence[str], scheme: Scheme) -> list[str]:
    """Convert BIO to `scheme`. IOB1 keeps B-x only directly after an entity of type x, IO never."""
    if scheme in FOUR_MARKS:
        first, inner, last, single = FOUR_MARKS[scheme]
        after = (*tags[1:], OUTSIDE)
        marks = {("B", True): first, ("B", False): single, ("I", True): inner, ("I", False): last}
        return [
            t if t[:2] not in ("B-", "I-") else f"{marks[t[0], following == f'I-{t[2:]}']}-{t[2:]}"
            for t, following in zip(tags, after, strict=False)
        ]
    if scheme == "plain":
        return [tag[2:] if tag[:2] in ("B-", "I-") else tag for tag in tags]
    if scheme not in ("iob1", "io"):
        return list(tags)
    pairs = pairwise([OUTSIDE, *tags])
    keeps = scheme == "iob1"
    return [t if t[:2] != "B-" or (keeps and before[2:] == t[2:]) else f"I-{t[2:]}" for before, t in pairs]


def breaks(rows: Iterable[Sequence[str]], scheme: Scheme = "bio") -> Iterator[tuple[int, int, str, str]]:
    """Yield (row, word, tag before, tag) for each tag that may not follow the one before; both count from 1.

    In a scheme of four marks the end of a row counts as a tag O after it. Yields nothing if a tag has none of
    the scheme's marks, since such rows follow another scheme.
    """
    every = list(rows)
    four = FOUR_MARKS.get(scheme)
    if not marks_of(every) <= set(four or "BI"):
        return
    for row, tags in enumerate(every, 1):
        ends = [OUTSIDE] if four else []
        for word, (before, tag) in enumerate(pairwise([OUTSIDE, *tags, *ends]), 1):
            legal = may_follow(before, tag) if four is None else _fits(before, tag, four)
            if not legal:
                yield row, word, before, tag


def may_follow(before: str, tag: str) -> bool:
    """Return whether `tag` may follow `before` in BIO."""
    return tag[:2] != "I-" or (before[:2] in ("B-", "I-") and before[2:] == tag[2:])


def _fits(before: str, tag: str, four: FourMarks) -> bool:
    """Return whether `tag` may follow `before` in a scheme of four marks."""
    first, inner, last, _ = four
    is_open = before[1:2] == "-" and before[0] in (first, inner)
    goes_on = tag[1:2] == "-" and tag[0] in (inner, last)
    return is_open == goes_on and (not is_open or before[2:] == tag[2:])
