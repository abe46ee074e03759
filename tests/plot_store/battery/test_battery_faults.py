"""Every file operation of every call fails once: the error is clean, the store
sound, and a second try works."""

from __future__ import annotations

import errno
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import plotlab as lab
import pytest
from grounds import Ground, prepared
from nursery import Nurseries, Nursery
from plain import Op
from powercut import Disk, read_log, read_tree, write_tree

BEFORE = [
    Op("publish", "r", 4),
    Op("publish", "r/a", 2),
    Op("append", "r/a", 3),
    Op("append", "r/a", 5),
    Op("publish", "r", 8),
    Op("publish", "s", 1),
    Op("tag", "r", 0, 1),
    Op("pin", "s", 0, 1),
    Op("begin", "s", 12),
    Op("publish", "s", 3),
    Op("delete", "s"),
]
CALLS = [
    Op("publish", "r", 12),
    Op("sealed", "q", 4),
    Op("extend", "r/a", 8),
    Op("append", "r/a", 9),
    Op("begin", "r/b", 4),
    Op("finish", "s", 12),
    Op("compact", "r/a"),
    Op("import", "i1", 1),
    Op("export", "r/a"),
    Op("gc", arg=1),
    Op("delete", "r/a"),
    Op("rollback", "r", 0, 1),
    Op("tag", "r/a", 0, 2),
    Op("untag", "r", 0, 1),
    Op("pin", "r", 0, 2),
]


class Fault(NamedTuple):
    """The failure, and the kinds of operation that it hits; see iolog.c."""

    name: str
    action: str
    code: int
    kinds: str
    sticky: bool = False


FAULTS = [
    Fault("EIO", "fail", errno.EIO, "cwtfrumd"),
    Fault("ENOSPC", "fail", errno.ENOSPC, "cwtfrm"),
    Fault("short write", "short", 0, "w"),
    Fault("EINTR", "fail", errno.EINTR, "wfR"),
    Fault("EIO for ever", "fail", errno.EIO, "cwtfrumd", sticky=True),
    Fault("ENOSPC for ever", "fail", errno.ENOSPC, "cwtfrm", sticky=True),
    Fault("unreadable", "fail", errno.EIO, "R"),
]
LOST = Fault("failed fsync", "fail", errno.EIO, "f")


@pytest.fixture(scope="module")
def ground(nurseries: Nurseries) -> Iterator[Ground]:
    with prepared(nurseries, BEFORE) as made:
        yield made


def strike(
    nursery: Nursery,
    ground: Ground,
    call: Op,
    fault: Fault,
    at: int,
    log: Path | None = None,
    folder: Path | None = None,
) -> Any:
    """The answer of the job; {"found": …} if it died."""
    with lab.scratch() as made:
        place = folder or made / "disk"
        shutil.copytree(ground.folder, place, dirs_exist_ok=True)
        outcome = nursery.run(
            "fault",
            folder=place,
            side=ground.side,
            ops=BEFORE,
            changed=ground.changed,
            call=call,
            at=at,
            log=log,
            sticky=fault.sticky,
            action=fault.action,
            code=fault.code,
            kinds=fault.kinds,
        )
    return (
        outcome.result if outcome.well else {"found": [outcome.trouble], "failed": "dead", "reopened": False}
    )


def rounds(
    nurseries: Nurseries, ground: Ground, faults: list[Fault], most: int
) -> list[tuple[Op, Fault, int]]:
    """(call, fault, which operation): all combinations, or `most` random ones."""
    found: list[tuple[Op, Fault, int]] = []
    pairs = [(call, fault) for call in CALLS for fault in faults]
    for (call, fault), quiet in zip(
        pairs, nurseries.map(lambda n, p: strike(n, ground, *p, 0), pairs), strict=True
    ):
        assert quiet["found"] == [], (call, quiet)
        found += [(call, fault, at) for at in range(1, quiet["count"] + 1)]
    return found if not most else random.Random(1).sample(found, min(most, len(found)))


def test_each_operation_of_each_call_goes_wrong(
    nurseries: Nurseries, ground: Ground, counts: Callable[[int, int], int], tell: Callable[[str], None]
) -> None:
    plan = rounds(nurseries, ground, FAULTS, counts(300, 0))
    kinds: Counter[str] = Counter()
    struck: Counter[str] = Counter()
    bad, reopened = [], 0
    for (call, fault, at), answer in zip(
        plan, nurseries.map(lambda n, p: strike(n, ground, *p), plan), strict=True
    ):
        struck[fault.name] += 1
        kinds[answer["failed"] or "none"] += 1
        reopened += answer["reopened"]
        bad += [f"{fault.name} at operation {at} of {call}: {what}" for what in answer["found"][:1]]
    tell(
        f"faults: {len(plan):,} over {len(CALLS)} calls {dict(struck)}: answers {dict(kinds)}, "
        f"{reopened} opened "
        f"anew, {len(bad)} violations"
    )
    assert not bad, "\n".join(bad[:20])
    assert kinds["store_io"] > 0
    assert kinds["store_full"] > 0


def test_creation_with_faults(nurseries: Nurseries, tell: Callable[[str], None]) -> None:
    def create(nursery: Nursery, given: tuple[Fault, int]) -> Any:
        fault, at = given
        with lab.scratch() as folder:
            outcome = nursery.run(
                "creation",
                folder=folder,
                at=at,
                sticky=fault.sticky,
                action=fault.action,
                code=fault.code,
                kinds=fault.kinds,
            )
        return outcome.result if outcome.well else {"found": [outcome.trouble], "count": 0}

    quiet = zip(FAULTS, nurseries.map(create, [(fault, 0) for fault in FAULTS]), strict=True)
    plan = [(fault, at) for fault, answer in quiet for at in range(1, answer["count"] + 1)]
    answers = zip(plan, nurseries.map(create, plan), strict=True)
    bad = [f"{fault.name} at {at}: {what}" for (fault, at), answer in answers for what in answer["found"]]
    tell(f"faults while a store is created: {len(plan)}, {len(bad)} violations")
    assert not bad, "\n".join(bad[:20])
    assert len(plan) > 30


def test_a_failed_fsync_is_not_believed_later(
    nurseries: Nurseries, ground: Ground, counts: Callable[[int, int], int], tell: Callable[[str], None]
) -> None:
    """After a failed fsync, unsynced data is lost even if a later fsync succeeds.
    The power is cut at the end."""

    def lose(nursery: Nursery, given: tuple[Op, Fault, int]) -> list[str]:
        with lab.scratch() as folder:
            disk_folder, log = folder / "disk", folder / "log"
            shutil.copytree(ground.folder, disk_folder)
            disk = Disk(str(disk_folder), read_tree(disk_folder))
            answer = strike(nursery, ground, *given, log=log, folder=disk_folder)
            if answer["found"]:
                return list(answer["found"])
            for op in read_log(log):
                disk.apply(op)
            (folder / "after").mkdir()
            write_tree(disk.cut(random.Random(0), "none"), disk.root, folder / "after")
            outcome = nursery.run(
                "judge",
                folder=folder / "after" / "store",
                side=ground.side,
                ops=answer["ops"],
                changed=answer["changed"],
                done=len(answer["ops"]),
                redo=False,
            )
            return outcome.result["found"] if outcome.well else [outcome.trouble]

    plan = rounds(nurseries, ground, [LOST], counts(30, 0))
    bad = [
        f"fsync {at} of {call} failed: {what}"
        for (call, _, at), found in zip(plan, nurseries.map(lose, plan), strict=True)
        for what in found[:1]
    ]
    tell(f"failed fsyncs, then a power cut: {len(plan)}, {len(bad)} violations")
    assert not bad, "\n".join(bad[:20])
    assert plan
