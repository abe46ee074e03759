"""What a file's tags are, in words: their scheme, and what looks like a scheme but is none."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from hmi.model.tags.tag_schemes import (
    FOUR_MARKS,
    NAMES,
    OUTSIDE,
    are_marked,
    breaks,
    in_labels,
    marks_of,
    scheme_of,
)
from hmi.sizes import counted

SHOWN = 3
"""A remark quotes at most this many tags."""
_BARE = frozenset("BIESLUM")


def tags_said(rows: Sequence[Sequence[str]]) -> str:
    """The scheme of these rows of tags and the number of their entities, to follow the format of their file;
    "" if they mark none."""
    scheme = scheme_of(rows)
    if scheme == "free":
        return ""
    begun = [tag[2:] for tags in rows for tag in in_labels(tags, scheme) if tag[:2] == "B-"]
    types = len(set(begun))
    entities = counted(len(begun), "entity", "entities")
    return f"; tags in {NAMES[scheme]}: {entities} of {counted(types, 'type')}"


def tag_notes(rows: Sequence[Sequence[str]]) -> list[str]:
    """Remarks on tags that begin like those of a scheme, but are read as labels without one."""
    tags = {tag for row in rows for tag in row} - {OUTSIDE}
    if tags and tags <= _BARE and "B" in tags:
        shown = ", ".join(f"`{tag}`" for tag in sorted(tags))
        return [f"the tags {shown} name no type, so each is read as a label: write B-x and I-x for a type x"]
    if are_marked(tags):
        shown = ", ".join(f"`{tag}`" for tag in sorted(tags)[:SHOWN])
        return [
            f"the tags ({shown}, …) mark entities in another form than B-x, I-x, O: each is read as a label"
        ]
    marks = marks_of(rows)
    if (
        len(marks) > 2
        and marks <= _BARE
        and not any(marks <= set(letters) for letters in FOUR_MARKS.values())
    ):
        return [f"no scheme has the marks {', '.join(sorted(marks))} together: each tag is read as a label"]
    four = next((s for s, letters in FOUR_MARKS.items() if marks <= set(letters)), None)
    if scheme_of(rows) != "free" or four is None or marks <= {"B", "I"}:
        return []
    broken = list(islice(breaks(rows, four), SHOWN))
    shown = "; ".join(f"row {row}, word {word}: {tag} after {before}" for row, word, before, tag in broken)
    return [f"the tags look like {NAMES[four]}, but many break it ({shown}): each is read as a label"]
