"""Notes how similar the texts of a batch are to their models' own texts, before any layer changes rows."""

from __future__ import annotations

from collections.abc import Sequence

from hmi.engine.bundles import TaskPart
from hmi.engine.item import Item
from hmi.engine.retrieval import Retrieved
from hmi.model.known import mean_rows, similarities


def note_similarity(batch: Retrieved, parts: Sequence[TaskPart]) -> None:
    """Store the similarity of each window whose model has a threshold. parts: by piece of the batch.

    Means that are not of the root's size are ignored, since other texts of the batch must not suffer.
    """
    pieces, size = batch.pieces, batch.rows.shape[-1]
    wanted = [p.bundle.known_at is not None for p in pieces]
    if not any(wanted):
        return
    vectors = mean_rows(batch.rows.numpy(), batch.offsets)
    start = 0
    while start < len(pieces):
        part, end = parts[start], start + 1
        while end < len(pieces) and parts[end] is part:
            end += 1
        if wanted[start] and part.means is not None and part.means.shape[1] == size:
            found = similarities(vectors[start:end], part.means).tolist()
            for piece, similarity in zip(pieces[start:end], found, strict=True):
                piece.item.partial.similarities[piece.index] = similarity
        start = end


def known(item: Item) -> bool | None:
    """Return whether the model knows a text whose windows have all run; None if it has no threshold."""
    limit, found = item.bundle.known_at, item.partial.similarities
    if limit is None or not found:
        return None
    return sum(found.values()) / len(found) >= limit
