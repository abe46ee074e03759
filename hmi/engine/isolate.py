"""Isolation of failures: each text gets an error of its own, and a failed batch is divided into parts to run
again."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from hmi.core import ModelId
from hmi.engine.item import Piece
from hmi.engine.pins import named
from hmi.engine.retrieval import Failed
from hmi.errors import copy_of
from hmi.stores.failures import tell

log = logging.getLogger("hmi.engine")


def fail(failed: Failed) -> None:
    """Tell who waits, by the names that they know, each with an error object of its own; and the log once for
    each version of a model: which artefact, or where in the code, where nobody foresaw it."""
    said: dict[str, Exception] = {}
    for item, error in failed:
        if item.sink.wanted:
            model, version = item.request.model, item.bundle.version
            item.sink.fail(copy_of(named(error, model, version)))
            said.setdefault(f"version {version.version} of model {model}", error)
    for version_of, error in said.items():
        tell(log, f"texts for {version_of} failed", error)


def by_model(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """A batch that failed as a whole, in parts that are run again, so that only those fail that must.

    By model, though several may share an artefact: an error names the model, and is for its tenant alone.
    """
    groups: dict[tuple[ModelId, int], list[Piece]] = {}
    for piece in pieces:
        groups.setdefault((piece.item.request.model, piece.bundle.version.version), []).append(piece)
    return list(groups.values())
