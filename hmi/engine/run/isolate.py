"""Isolation of failures: each text gets its own error, and a failed batch is split to run again in parts."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from hmi.core import ModelId
from hmi.engine.admit.loading import public_error, version_name
from hmi.engine.run.retrieval import Failed
from hmi.engine.run.running import Cut
from hmi.engine.texts.item import Piece
from hmi.engine.watch.supervisor import Broken
from hmi.errors import copy_of
from hmi.stages.owed import Owed
from hmi.stores.failures import log_failure

log = logging.getLogger("hmi.engine")


def fail(failed: Failed) -> None:
    """Fail the sinks of these items. Each gets its own copy of the error, in the names that its tenant knows.

    The log gets each failed version of a model once, with the artefact's hash or the traceback.
    """
    first: dict[str, Exception] = {}
    for item, error in failed:
        if item.sink.wanted:
            model, version = item.request.model, item.bundle.version
            item.sink.fail(copy_of(public_error(error, model, version)))
            first.setdefault(version_name(model, version), error)
    for name, error in first.items():
        log_failure(log, f"texts for {name} failed", error)


def by_model(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """Split a batch that failed as a whole by version of a model, so that only the faulty ones fail again.

    Models that share an artefact stay separate, since an error names the model, which only its tenant may
    see.
    """
    groups: dict[tuple[ModelId, int], list[Piece]] = {}
    for piece in pieces:
        groups.setdefault((piece.item.request.model, piece.bundle.version.version), []).append(piece)
    return list(groups.values())


async def audit_again(owed: Sequence[Owed[Any]], batch: Cut, run: Callable[[Cut], Awaitable[None]]) -> None:
    """Run those texts of a failed batch again that have their answers, and whose audits it cut short.

    Each model's run apart, as the fault may be another's. An audit whose text fails again is lost, and so are
    those of a batch of one model. owed: the audits of each stage. run: runs a batch.
    """
    due = [piece for piece in batch.pieces if any(piece.item.nonce in audits for audits in owed)]
    try:
        for group in by_model(due) if len(by_model(batch.pieces)) > 1 else ():
            try:
                await run(replace(batch, pieces=group))
            except Broken:
                raise
            except Exception as error:
                log_failure(log, "texts could not run again for their audits", error)
    finally:
        for audits in owed:
            audits.give_up(piece.item.nonce for piece in due)
