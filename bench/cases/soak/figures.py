"""The figures of a soak, from the records of its minutes and signals."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from bench.cases.quality.runs import RunFile
from bench.cases.soak.ground import FAULTS, SoakPlan
from bench.cases.soak.kills import STOP_GOAL_S, right_exit
from bench.harness.report import Figure

GOAL_GROWTH = 0.03
"""The most by which the server's memory may grow, as a fraction."""
MIB = 1 << 20
IDLE = (
    'hmi_writing_texts{state="running"}',
    'hmi_writing_texts{state="waiting"}',
    'hmi_writing_pages{state="held"}',
)
"""The metrics that must be 0 when nobody asks."""
Entry = tuple[dict[str, Any], dict[str, Any]]
"""What identifies a record, and the record."""


def figures(plan: SoakPlan, kept: RunFile) -> Iterator[Figure]:
    """Yield sums over all records, how servers ended, and each run's times and memory."""
    entries = kept.all()
    yield from _sums([record for _, record in entries if "counts" in record])
    yield from _ends(entries)
    for number, (_, run) in enumerate(groupby(entries, lambda entry: entry[0]["run"]), 1):
        yield from _run(plan, number, [*run])


def _sums(records: Sequence[dict[str, Any]]) -> Iterator[Figure]:
    counts, refused = Counter[str](), Counter[str]()
    for record in records:
        counts.update(record["counts"])
        refused.update(record["refused"])
    for name in FAULTS:
        found = [fault for record in records for fault in record[name]]
        yield Figure(name, len(found), "", 0, False, counts["calls"], why="; ".join(found[:5]) or None)
    why = ", ".join(f"{what}: {count}" for what, count in refused.most_common(8))
    yield Figure("refused", refused.total(), "calls", 0, False, why=why or None)
    for name, count in sorted(counts.items()):
        yield Figure(name.replace(": ", "_").replace(" ", "_"), count, "")


def _ends(entries: Sequence[Entry]) -> Iterator[Figure]:
    """Yield how many servers a signal ended, wrong ends, and what the servers after them lacked."""
    kills = [(spec["kill"], record) for spec, record in entries if "kill" in spec]
    for way in dict.fromkeys(way for way, _ in kills):
        mine = [record for name, record in kills if name == way]
        wrong = sum(not right_exit(way, record["exit"]) for record in mine)
        yield Figure(f"servers_ended_by_{way}", len(mine), "servers")
        yield Figure(f"wrong_exit_after_{way}", wrong, "servers", 0, False, len(mine))
        longest = max(record["stop_s"] for record in mine)
        yield Figure(f"longest_end_after_{way}", longest, "s", STOP_GOAL_S, False, len(mine))
    for title, name in (("acknowledged_changes_lost", "lacking"), ("tracebacks", "tracebacks")):
        those = [record[name] for _, record in entries if name in record]
        faults = [fault for some in those for fault in some]
        if those:
            why = "; ".join(faults[:5]) or None
            yield Figure(title, len(faults), "", 0, False, len(those), why=why)
    for name in IDLE:
        found = [record[name] for _, record in entries if name in record]
        if found:
            yield Figure(name, sum(found), "", 0, False, len(found))
    for apart in [record["told_apart"] for _, record in entries if "told_apart" in record][-1:]:
        yield Figure("prompts_that_tell_versions_apart", round(apart, 3), "of them")


def _run(plan: SoakPlan, number: int, entries: Sequence[Entry]) -> Iterator[Figure]:
    """The capacity, times and memory of one run."""
    capacity = [record["calls_s"] for spec, record in entries if "capacity" in spec]
    minutes = [record for spec, record in entries if spec.get("minute") is not None]
    if capacity:
        yield Figure(f"run_{number}_capacity", statistics.median(capacity), "calls/s", runs=len(capacity))
    for at, name in enumerate(("p50", "p99")):
        found = [record["ms"][at] for record in minutes if "ms" in record]
        if found:
            yield Figure(f"run_{number}_{name}", statistics.median(found), "ms of a minute", runs=len(found))
            yield Figure(f"run_{number}_{name}_worst", max(found), "ms of a minute", runs=len(found))
    yield from memory_rows(plan, f"run_{number}_", [record for record in minutes if "own_bytes" in record])


def memory_rows(plan: SoakPlan, run: str, minutes: Sequence[dict[str, Any]]) -> Iterator[Figure]:
    """Yield the memory once the load has settled, the memory in the last minute, and the growth between.

    The process keeps the memory of past calls for later ones. So memory also grows with the most connections
    at a time: the last figures give that number before and after the first reading.
    """
    if len(minutes) < 2:
        return
    start = min(plan.settle, len(minutes) // 2)
    before, after = minutes[: start + 1], minutes[start + 1 :]
    for what, name in (("own_bytes", "memory"), ("all_bytes", "resident")):
        first, last = minutes[start][what], minutes[-1][what]
        yield Figure(f"{run}{name}_settled", round(first / MIB, 1), "MiB")
        yield Figure(f"{run}{name}_at_the_end", round(last / MIB, 1), "MiB")
        goal = GOAL_GROWTH if name == "memory" else None
        yield Figure(f"{run}{name}_growth", round(last / first - 1, 4), "of it", goal, False)
    for when, some in (("at_first", before), ("later", after)):
        most = max((minute["connections"] for minute in some), default=0)
        yield Figure(f"{run}most_connections_{when}", most, "connections")
