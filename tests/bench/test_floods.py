"""`bench floods` on a real server: each flood arrives as named, and its harm is measured."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import pytest

from bench.cases.floods.kinds import BODY_BYTES, FLOODS, FULL_BYTES, MOST_BYTES, TEXT_BYTES
from bench.cases.floods.run import FloodPlan, FloodWatch, flooding
from bench.harness.load import RequestTarget, client
from bench.harness.server import hmi, running
from hmi.config import Settings
from hmi.errors import InvalidInput


@pytest.mark.parametrize("name", sorted(FLOODS))
def test_a_floods_bodies_are_within_the_servers_limits_or_meant_not_to_be(name: str) -> None:
    request = FLOODS[name].make()
    head = request.head("KEY").decode()
    assert head.endswith("\r\n\r\n")
    assert ("Bearer KEY" in head) is request.keyed
    assert len(request.body) < 32 << 20
    if name == "bombs":
        with gzip.open(io.BytesIO(request.body)) as unpacked:
            assert len(request.body) < 2 << 20 < len(unpacked.read(64 << 20))
    elif request.body:
        inputs = json.loads(request.body)["inputs"]
        assert len(inputs) > 15
        assert all(len(str(text).encode()) <= TEXT_BYTES for text in inputs)
        for size, said in ((BODY_BYTES, "30 MB"), (FULL_BYTES, " 7 MB"), (MOST_BYTES, "3.9 MB")):
            assert said not in f" {FLOODS[name].what}" or 0.9 * size < len(request.body) < 1.07 * size
        refused = name in ("spaces", "word", "cjk", "objects", "unfinished") or name.startswith("full")
        assert (len(request.body) > Settings().max_body_bytes) is refused


def test_an_unknown_flood_is_named_with_those_there_are() -> None:
    with pytest.raises(InvalidInput, match=r"'rain'.*openapi"):
        FloodPlan(only=("rain",)).floods()


def test_a_flood_reaches_the_server_while_the_quiet_tenant_is_watched(tmp_path: Path) -> None:
    with running(hmi(tmp_path / "data"), tmp_path, 300) as server, client() as one, client() as two:
        with flooding("openapi", server, "none"):
            seen = FloodWatch(server, RequestTarget("/infer/none.m", "none"), (one, two)).phase(1.0)
        scraped = server.get("/metrics")
    # The quiet tenant's model does not exist: its requests fail, which the report must show.
    assert seen.quiet.failures == len(seen.quiet.ms) > 0
    assert seen.health.failures == 0 < min(seen.health.ms)
    assert seen.memory > 10
    (line,) = [x for x in scraped.splitlines() if "openapi" in x and 'outcome="ok"' in x and "_total" in x]
    assert float(line.rsplit(" ", 1)[1]) > 0
