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
from hmi.model.text.batching import STEP_TOKENS
from hmi.training.second.teachers import KEPT_BYTES, TUNED

_PROCESS_BYTES = 640 << 20
"""The libraries, the root, the rows, the PLOT's pages, and what the allocator keeps."""
_FLOAT = 4
"""Bytes of a number in fp32."""
COPIES = 5
"""Numbers for each tuned weight: itself, its gradient, the optimiser's two moments, the best epoch's copy."""
_ACTIVATIONS, _FFN_ACTIVATIONS = 16, 5
"""Numbers that a step holds for each token and layer, per number of a state and of the feed-forward layer."""


def teacher_bytes(shape: EncoderShape) -> int:
    """The most bytes of a process that tunes a teacher from a source of this shape.

    Most of it holds the weights that are tuned. `hmi.model.text.batching.STEP_TOKENS` bounds the activations
    of a step. The constants were measured (docs/operations/capacity.md).
    """
    layer = 4 * shape.dim**2 + 2 * shape.dim * shape.ffn
    embeddings = (shape.vocab + shape.positions) * shape.dim
    tuned_layers = min(TUNED, shape.layers)
    deep = shape.layers > TUNED
    tuned = tuned_layers * layer + (0 if deep else embeddings)
    frozen = (shape.layers - tuned_layers) * layer + (embeddings if deep else 0)
    kept = KEPT_BYTES + KEPT_BYTES // 2 if deep else 0
    token = tuned_layers * (_ACTIVATIONS * shape.dim + _FFN_ACTIVATIONS * shape.ffn)
    return _PROCESS_BYTES + _FLOAT * (COPIES * tuned + frozen + STEP_TOKENS * token) + kept


OWN = "the root's source"

Found = TypeVar("Found")


def sources_of(ctx: JobContext, root: Root, *, larger: bool) -> list[tuple[str, Source]]:
    """The root's source, then the operator's if larger ones teach, by the names that a tenant sees. Raises
    Conflict."""
    found = [(OWN, source_of_root(ctx, root, "unlabelled"))]
    settings, room = ctx.settings, left_for_me(ctx.settings)
    for given in settings.teacher_names if larger else ():
        source = present(given, find_source)
        if source is None:
            ctx.log(f"no teacher was tuned from {Path(given).name}: it is not on this machine")
        elif source.generates:
            ctx.log(f"no teacher was tuned from {Path(given).name}: it is a language model")
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
