"""The figures of a soak."""

from __future__ import annotations

import os
import socket

from bench.cases.soak.ground import ClientFigures, SoakPlan
from bench.cases.soak.run import MIB, connections_of, memory_rows


def test_growth_counts_from_the_settled_load_and_stands_beside_the_most_connections() -> None:
    times = [float(at) for at in range(0, 1800, 5)]
    seen = ClientFigures(
        memory=[(at, (300 if at < 180 else 400 if at < 900 else 410) * MIB) for at in times],
        connections=[(at, 70 if at == 100 else 500 if at == 900 else 20) for at in times],
    )
    found = {row.id: row for row in memory_rows(SoakPlan(), seen, begun=0.0)}
    assert {name: row.value for name, row in found.items()} == {
        "memory_settled": 400.0,
        "memory_at_the_end": 410.0,
        "most_connections_at_first": 70,
        "most_connections_later": 500,
        "memory_growth": 0.025,
    }
    assert found["memory_growth"].ok


def test_a_process_s_connections_are_counted() -> None:
    before = connections_of(os.getpid())
    pair = socket.socketpair()
    try:
        assert connections_of(os.getpid()) == before + 2
    finally:
        for end in pair:
            end.close()
    assert connections_of(os.getpid()) == before
