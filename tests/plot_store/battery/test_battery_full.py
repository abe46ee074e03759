"""On a disk of twenty sizes that really fills up, each call raises StoreFull or succeeds completely."""

from __future__ import annotations

from collections.abc import Callable

import play
import plotlab as lab
from nursery import Nurseries, Nursery
from plain import SCRIPT

from tests.disks import small_disk

SIZES = [1 << 15, *(50_000 + 17_000 * i for i in range(19))]


def test_a_full_disk_of_twenty_sizes(nurseries: Nurseries, tell: Callable[[str], None]) -> None:
    def fill(nursery: Nursery, size: int) -> tuple[int, list[str]]:
        with lab.scratch() as folder, small_disk(folder, size) as disk:
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
