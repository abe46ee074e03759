"""Backups and restores that hang after their first file, for tests that kill them there."""

from __future__ import annotations

import time
from pathlib import Path

from hmi.backup.collection import newest
from hmi.backup.create import create
from hmi.backup.restore import restore
from hmi.backup.target import open_target
from hmi.stores.plot.plots import open_plots
from hmi.stores.records.registry import Registry


def hang(done: int, total: int) -> None:
    if done:
        print("hangs", flush=True)
        time.sleep(600)


def hang_in_backup(data: Path, place: str) -> None:
    create(data, Registry.open(data / "registry"), open_plots(data / "plots"), open_target(place), hang)


def hang_in_restore(place: str, data: Path) -> None:
    target = open_target(place)
    restore(target, newest(target), data, hang)
