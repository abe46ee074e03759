"""Stores that the battery damages or fails: made once, then copied for each case."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import play
import plotlab as lab
from nursery import Nurseries
from plain import Op


class Ground(NamedTuple):
    """A sound store in `folder`, the archives in `side`, and which of its operations changed the store."""

    folder: Path
    side: Path
    changed: list[bool]


@contextmanager
def prepared(nurseries: Nurseries, ops: list[Op]) -> Iterator[Ground]:
    """A store on which `ops` were played."""
    with lab.scratch() as folder:
        (folder / "ground").mkdir()
        (folder / "side").mkdir()
        play.prepare(folder / "side")
        outcome = nurseries.run("prepare", folder=folder / "ground", side=folder / "side", ops=ops)
        yield Ground(folder / "ground", folder / "side", outcome.result)
