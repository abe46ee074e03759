"""The sources that teachers of the job `improve` are tuned from, and the memory that this takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from hmi.config import Settings
from hmi.errors import UnsupportedModel
from hmi.jobs.runtime.context import JobContext
from hmi.jobs.teaching import source_of_root
from hmi.model.memory import usable_memory
from hmi.model.root import Root
from hmi.model.shape import EncoderShape, read_shape
from hmi.model.source import Source, find_shape, find_source, must_be_fetched
from hmi.training.footprint import teacher_bytes

OWN = "the root's source"

Found = TypeVar("Found")


def sources_of(ctx: JobContext, root: Root, *, larger: bool) -> list[tuple[str, Source]]:
    """The root's source, then the operator's if larger ones teach, by the names that a tenant sees. Raises
    Conflict."""
    found = [(OWN, source_of_root(root, "unlabelled"))]
    settings = ctx.settings
    for given in settings.teacher_names if larger else ():
        source = present(given, find_source)
        if source is None:
            ctx.log(f"no teacher was tuned from {Path(given).name}: it is not on this machine")
        elif teacher_bytes(read_shape(source.folder)) > most_bytes(settings):
            ctx.log(f"no teacher was tuned from {Path(given).name}: it takes more memory than there is")
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


def most_bytes(settings: Settings) -> int:
    """The memory that a background job could have if it ran alone."""
    return settings.background_bytes or usable_memory()


def bytes_of(root: EncoderShape, settings: Settings) -> int:
    """The most memory that a job takes for a root of this shape, with the teachers that could ever fit."""
    shapes = [present(name, find_shape) for name in settings.teacher_names]
    larger = [teacher_bytes(shape) for shape in shapes if shape is not None]
    return max([teacher_bytes(root), *(each for each in larger if each <= most_bytes(settings))])
