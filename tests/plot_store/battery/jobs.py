"""The jobs that children of a nursery run. Each is called with `emit` and JSON arguments; see nursery.py."""

from __future__ import annotations

import tempfile
from pathlib import Path

import agree
import plain
import play
from job_catalogue import catalogue
from job_crash import judge, record
from job_damage import archives, records, segments
from job_edges import dead, ground, growing, lost, mappings
from job_faults import creation, fault, full_disk, prepare
from job_history import history, victims
from job_kill import live
from job_raced import raced
from job_remote import moved, moving
from job_walk import walk
from plain import Op

from plot_store import Store

__all__ = [
    "archives",
    "catalogue",
    "creation",
    "dead",
    "fault",
    "full_disk",
    "ground",
    "growing",
    "history",
    "judge",
    "live",
    "lost",
    "mappings",
    "moved",
    "moving",
    "prepare",
    "raced",
    "record",
    "records",
    "segments",
    "victims",
    "walk",
    "warm_up",
]


def warm_up() -> None:
    """Load every kernel that jobs need: all windows, all storage types, chains of
    one and of several types."""
    ops = [Op("publish", ref, 1) for ref in sorted(plain.REFS)]
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "s", create=True) as store:
        for number, op in enumerate(ops):
            play.play(store, op, number, Path(folder))
        assert not agree.problems(store, plain.after(ops))
