"""A disk that is really full, again and again: each call ends in StoreFull or in success, never in
between."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import play
import plotlab as lab
import pytest
from nursery import Nurseries, Nursery
from plain import SCRIPT

SIZES = [1 << 15, *(50_000 + 17_000 * i for i in range(19))]


@contextmanager
def small_disk(size: int) -> Iterator[Path]:
    """A tmpfs of so many bytes; skips where mounting is not allowed."""
    with lab.scratch() as folder:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            pytest.skip(f"cannot mount a tmpfs here: {done.stderr.strip()}")
        try:
            yield folder
        finally:
            subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_of_twenty_sizes(nurseries: Nurseries, tell: Callable[[str], None]) -> None:
    def fill(nursery: Nursery, size: int) -> tuple[int, list[str]]:
        with small_disk(size) as disk:
            outcome = nursery.run("full_disk", folder=disk, side=side, ops=SCRIPT, size=size)
        answer = outcome.result if outcome.well else {"full": 0, "found": [outcome.trouble]}
        return answer["full"], [f"{size} bytes: {what}" for what in answer["found"]]

    with lab.scratch() as side:
        play.prepare(side)
        answers = list(nurseries.map(fill, SIZES))
    bad = [what for _, found in answers for what in found]
    tell(
        f"full disk: {len(SIZES)} sizes, full {sum(full for full, _ in answers)} times, {len(bad)} violations"
    )
    assert not bad, bad
    assert min(full for full, _ in answers) > 0
