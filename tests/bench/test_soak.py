"""The figures of a soak, and the checks of its clients."""

from __future__ import annotations

import json
import os
import signal
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.cases.quality.runs import RunFile
from bench.cases.soak.figures import IDLE, MIB, figures, memory_rows
from bench.cases.soak.ground import ClientFigures, NotOk, SoakPlan, Standing
from bench.cases.soak.kills import tracebacks
from bench.cases.soak.run import connections_of
from bench.cases.soak.writing import WAYS, Heard, WritingSoil
from bench.harness.server import Server, hmi


def minute(mib: float, connections: int) -> dict[str, int]:
    return {"own_bytes": int(mib * MIB), "all_bytes": int(2 * mib * MIB), "connections": connections}


def test_growth_counts_from_the_settled_load_and_stands_beside_the_most_connections() -> None:
    minutes = [minute(300, 20), minute(300, 70), minute(300, 20), minute(400, 20)]
    minutes += [minute(400, 500 if at == 10 else 20) for at in range(25)] + [minute(410, 20)]
    found = {row.id: row for row in memory_rows(SoakPlan(), "", minutes)}
    assert {name: row.value for name, row in found.items()} == {
        "memory_settled": 400.0,
        "memory_at_the_end": 410.0,
        "memory_growth": 0.025,
        "resident_settled": 800.0,
        "resident_at_the_end": 820.0,
        "resident_growth": 0.025,
        "most_connections_at_first": 70,
        "most_connections_later": 500,
    }
    assert found["memory_growth"].ok
    assert [*memory_rows(SoakPlan(), "", minutes[:1])] == []


def test_a_process_s_connections_are_counted() -> None:
    before = connections_of(os.getpid())
    pair = socket.socketpair()
    try:
        assert connections_of(os.getpid()) == before + 2
    finally:
        for end in pair:
            end.close()
    assert connections_of(os.getpid()) == before


def test_figures_are_sums_over_all_runs_of_a_file(tmp_path: Path) -> None:
    kept = RunFile(tmp_path / "soak.jsonl")
    seen = ClientFigures(wrong=["w"], late=[1.0, 3.0])
    seen.counts.update({"calls": 5, "streams_accepted": 2})
    for run in ("one", "two"):
        kept.put({"run": run, "minute": 1}, seen.record())
        kept.put({"run": run, "capacity": "now"}, {"calls_s": 10.0})
        kept.put({"run": run, "idle": True}, dict.fromkeys(IDLE, 0.0))
        for way, code in (("SIGKILL", -signal.SIGKILL), ("SIGTERM", -signal.SIGTERM)):
            own = {
                "exit": code,
                "stop_s": 3.0,
                "tracebacks": [],
                "lacking": ["v"] if way == "SIGTERM" else [],
            }
            kept.put({"run": run, "kill": way, "round": 0}, {**ClientFigures().record(), **own})
    rows = {row.id: row for row in figures(SoakPlan(), RunFile(tmp_path / "soak.jsonl"))}
    assert (rows["calls"].value, rows["streams_accepted"].value) == (10, 4)
    assert (rows["wrong"].value, rows["wrong"].ok, rows["lost"].ok) == (2, False, True)
    assert (rows["wrong_exit_after_SIGKILL"].value, rows["wrong_exit_after_SIGTERM"].value) == (0, 2)
    assert rows["acknowledged_changes_lost"].value == 2
    assert rows["run_2_p50"].value == 2.0


def test_versions_that_may_answer() -> None:
    standing = Standing("t.m", {2})
    allowed = standing.asked()
    with suppress(NotOk), standing.changing(1):
        assert standing.asked()() == {1, 2}
        raise NotOk
    assert (standing.may, allowed()) == ({2}, {1, 2})
    with suppress(OSError), standing.changing(1):  # nobody knows whether it was made
        raise OSError
    assert standing.may == {1, 2}
    with standing.changing(1):
        pass
    assert (standing.may, standing.asked()()) == ({1}, {1})


def test_texts_are_held_against_those_of_their_version() -> None:
    soil = WritingSoil(["p"], {(0, 1, 0): "abcd", (0, 2, 0): "abxy\ufffd"}, [Standing("t.m")])

    def fault(may: set[int], version: int | None, text: str, *, whole: bool) -> bool:
        return soil.fault(0, 0, may, version, text, whole=whole) is not None

    assert not fault({1}, 1, "abcd", whole=True)
    assert not fault({1, 2}, None, "abxy\ufffd", whole=True)
    assert fault({2}, 1, "abcd", whole=True)
    assert fault({2}, None, "abcd", whole=True)
    assert fault({1}, 1, "abc", whole=True)
    assert not fault({1}, 1, "abc", whole=False)
    assert fault({1}, 1, "abx", whole=False)
    assert not fault({2}, 2, "abxyü and more", whole=False)
    assert soil.told_apart() == 1


def heard(way: str, *told: tuple[str, Any]) -> Heard:
    found = Heard()
    for name, data in told:
        found.take(WAYS[way], name, data if isinstance(data, str) else json.dumps(data))
    return found


def chunk(text: str, reason: str | None = None) -> tuple[str, Any]:
    return "", {"system_fingerprint": "v2", "choices": [{"text": text, "finish_reason": reason}]}


def test_streams_and_their_ends() -> None:
    ended = heard("native", ("text", {"text": "a"}), ("end", {"text": "a", "version": 2}))
    assert (ended.end, ended.version, ended.text, ended.improper) == ("end", 2, "a", "")
    assert heard("native", ("text", {"text": "a"}), ("end", {"text": "b", "version": 2})).improper
    assert heard("native", ("error", {"error": {"kind": "unavailable"}})).end == "unavailable"
    assert heard("native", ("end", {"text": "", "version": 2}), ("text", {"text": "b"})).improper
    ended = heard("openai", chunk("a"), chunk("", "stop"), ("", "[DONE]"))
    assert (ended.end, ended.version, ended.text, ended.improper) == ("end", 2, "a", "")
    assert heard("openai", chunk("a"), ("", "[DONE]")).improper
    assert heard("openai", chunk("a")).end == ""
    assert heard("openai", ("", {"error": {"code": "unavailable"}})).end == "unavailable"


def test_tracebacks_are_found_in_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    lines = ["2026-11-29 11:00:00 INFO a", "2026-11-29 11:00:01 ERROR b"]
    lines += ["  | Traceback (most recent call last):", "  | ValueError: c", "2026-11-29 11:00:02 INFO d"]
    log.write_text("\n".join(lines))
    process: Any = None
    assert tracebacks(Server(hmi(tmp_path), 1, process, log)) == [f"{lines[1]} {lines[3]}"]
