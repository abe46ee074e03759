"""Appends: a few entries on top of a ref's current version. Now and then, one merges small segments.

If other publications come first, the entries are added to what these left. Only a change of what the append
depends on stops it: a rollback, another schema, another parent.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plot_store.catalogue import version_tree
from plot_store.environment.environment import Environment
from plot_store.ground import names
from plot_store.ground.errors import Invalid, NotFound, PlotStoreError
from plot_store.ground.nouns import VersionInfo
from plot_store.writing import builds
from plot_store.writing.publication import ON_TOP
from plot_store.writing.writer import SEGMENT_BYTES, Writer

Entries = Mapping[int, tuple[NDArray[np.uint32], NDArray[np.float32]]]


def append(
    environment: Environment, ref: str, entries: Entries, build: str | None, meta: dict[str, Any]
) -> VersionInfo:
    """See `Store.append`."""
    _check_entries(entries)
    build = f"append-{uuid.uuid4().hex}" if build is None else build
    schema = environment.catalogue.read(lambda txn: version_tree.resolve(txn, names.check_ref(ref))).schema
    opened = builds.open_build(environment, ref, build, schema, None, True)
    with Writer(environment, opened, {}, SEGMENT_BYTES) as writer:
        try:
            if writer.base is None:
                raise NotFound(f"{ref} was deleted meanwhile: publish it, then append")
            for order, (ngrams, rows) in entries.items():
                writer.add(order, ngrams, rows)
            return writer.publish(expect=ON_TOP, meta=meta)
        except BaseException:
            with suppress(PlotStoreError):  # the caller must get the first error
                writer.abort()
            raise


def _check_entries(entries: Entries) -> None:
    pairs = list(entries.values()) if isinstance(entries, Mapping) else [None]
    if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
        raise Invalid(
            "entries must be a dict {order: (n-grams, rows)}, as in Writer.add: pass {} to add nothing"
        )
