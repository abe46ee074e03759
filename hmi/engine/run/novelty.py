"""Notes how similar the texts of a batch are to their models' own texts, before any layer changes rows."""

from __future__ import annotations

from collections.abc import Sequence

from hmi.engine.admit.bundles import TaskPart
from hmi.engine.run.retrieval import Retrieved
from hmi.engine.texts.item import Item, Piece
from hmi.model.tenant.novelty import OwnTexts, mean_rows


def note_similarity(batch: Retrieved, parts: Sequence[TaskPart]) -> None:
    """Store the similarity of each window whose model has a threshold. parts: by piece of the batch.

    Records that are not of the root's size are ignored, since other texts of the batch must not suffer.
    """
    pieces, size = batch.pieces, batch.rows.shape[-1]
    own = [_own_texts_of(piece, part, size) for piece, part in zip(pieces, parts, strict=True)]
    if not any(own):
        return
    vectors = mean_rows(batch.rows.numpy(), batch.offsets)
    bias = pieces[0].bundle.root.bias.means([piece.window.types for piece in pieces])
    start = 0
    while start < len(pieces):
        part, end = parts[start], start + 1
        while end < len(pieces) and parts[end] is part:
            end += 1
        mine, keeps = slice(start, end), own[start]
        if keeps is not None:
            some = vectors[mine] - bias[mine] if keeps.others is not None else vectors[mine]
            found = keeps.similarities(some, [len(piece.window) for piece in pieces[mine]]).tolist()
            for piece, similarity in zip(pieces[mine], found, strict=True):
                piece.item.partial.similarities[piece.index] = similarity
        start = end


def _own_texts_of(piece: Piece, part: TaskPart, size: int) -> OwnTexts | None:
    """What the piece's model keeps of its own texts, if it has a threshold and the record fits."""
    own = part.own_texts
    return own if piece.bundle.known_at is not None and own is not None and own.fits(size) else None


def known(item: Item) -> bool | None:
    """Return whether the model knows a text whose windows have all run; None if it has no threshold."""
    limit, found = item.bundle.known_at, item.partial.similarities
    if limit is None or not found:
        return None
    return sum(found.values()) / len(found) >= limit
