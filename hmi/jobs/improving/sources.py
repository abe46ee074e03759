"""The sources that teachers of the job `improve` are tuned from, and the memory that this takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from hmi.config import Settings
from hmi.errors import UnsupportedModel
from hmi.jobs.model.teaching import source_of_root
from hmi.jobs.runtime.context import JobContext
from hmi.jobs.runtime.memory_room import left_for_me, most_bytes
from hmi.model.network.shape import EncoderShape, read_shape
from hmi.model.sources.root import Root
from hmi.model.sources.source import Source, find_shape, find_source, must_be_fetched
from hmi.training.second.footprint import teacher_bytes

OWN = "the root's source"

Found = TypeVar("Found")


def sources_of(ctx: JobContext, root: Root, *, larger: bool) -> list[tuple[str, Source]]:
    """The root's source, then the operator's if larger ones teach, by the names that a tenant sees. Raises
    Conflict."""
    found = [(OWN, source_of_root(root, "unlabelled"))]
    settings, room = ctx.settings, left_for_me(ctx.settings)
    for given in settings.teacher_names if larger else ():
        source = present(given, find_source)
        if source is None:
            ctx.log(f"no teacher was tuned from {Path(given).name}: it is not on this machine")
        elif teacher_bytes(read_shape(source.folder)) > room:
            ctx.log(f"no teacher was tuned from {Path(given).name}: it takes more memory than is left")
        elif source.sha256 not in {other.sha256 for _, other in found}:
            found.append((Path(given).name, source))
    return found


def present(name: str, find: Callable[[str], Found]) -> Found | None:
    """What `find` finds by a source's name, or None if it is not on this machine: a background job must not
    download."""
    if must_be_fetched(name):
        return None
    try:
        return find(name)
    except UnsupportedModel:
        return None


def peaks_of(root: EncoderShape, settings: Settings) -> tuple[int, int]:
    """The memory that a job takes at its peak for a root of this shape: alone, and with the larger teachers
    that this machine could ever hold (0: there are none)."""
    shapes = [present(name, find_shape) for name in settings.teacher_names]
    larger = [teacher_bytes(shape) for shape in shapes if shape is not None]
    return teacher_bytes(root), max((each for each in larger if each <= most_bytes(settings)), default=0)
