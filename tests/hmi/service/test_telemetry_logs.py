"""Log lines: text and JSON, with their request, never forged, without keys and texts."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hmi.telemetry import logs
from hmi.telemetry.context import CURRENT, RequestContext
from tests.hmi.labs.api_world import running, tenant

SECRET = "a text that nobody else may read"


Written = Callable[[], str]


@pytest.fixture
def written(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Written]:
    """The log lines so far, written as a server writes them."""
    monkeypatch.setattr(logging.getLogger("aiohttp.access"), "disabled", True)  # the test server's own
    before, level = list(logging.getLogger().handlers), logging.getLogger().level
    yield lambda: capsys.readouterr().err
    logging.getLogger().handlers[:] = before
    logging.getLogger().setLevel(level)


def test_a_line_is_one_line_whatever_it_says(written: Written) -> None:
    log, forged = logging.getLogger("hmi.test"), "x\n2026 ERROR forged\r\x1b[31m\u2028\x85end"
    for form in ("text", "json"):
        logs.configure(form)
        try:
            raise ValueError(forged)
        except ValueError:
            log.exception("said %s", forged)
    text, _, last = written().rstrip("\n").rpartition("\n")
    shown = text.splitlines()
    assert "said x\\n2026 ERROR forged\\r\\x1b[31m\\u2028\\x85end" in shown[0]
    assert all(line.startswith("  | ") for line in shown[1:]), "a traceback cannot be taken for lines"
    line = json.loads(last)
    assert last.isascii()
    assert line["message"] == f"said {forged}"
    assert "ValueError" in line["exception"]
    assert {"time", "level", "logger"} <= line.keys()


def test_lines_below_the_level_are_left_out(written: Written) -> None:
    logs.configure("json", "warning")
    logging.getLogger("hmi.test").info("quiet")
    logging.getLogger("hmi.test").warning("loud")
    assert [json.loads(line)["message"] for line in written().splitlines()] == ["loud"]


def test_a_line_names_its_request(written: Written) -> None:
    logs.configure("text")
    token = CURRENT.set(RequestContext("r1", "ab" * 16, tenant="acme"))
    logging.getLogger("hmi.test").warning("slow")
    CURRENT.reset(token)
    logging.getLogger("hmi.test").warning("none")
    first, second = written().splitlines()
    assert first.endswith(f"WARNING slow [request_id=r1 trace_id={'ab' * 16} tenant=acme]")
    assert second.endswith("WARNING none")


async def test_each_request_has_one_access_line_without_key_and_text(
    tmp_path: Path, written: Written
) -> None:
    logs.configure("json")
    async with running(tmp_path, access_log=True) as world:
        key = await tenant(world)
        trace = "0af7651916cd43dd8448eb211c80319c"
        headers = {"traceparent": f"00-{trace}-b7ad6b7169203331-01", "X-Request-Id": "mine-1"}
        status, _, _ = await world.call(
            "POST", "/infer/acme.none", {"inputs": SECRET}, key=key, headers=headers
        )
        assert status == 404
        await world.call("GET", f"/nowhere/{SECRET}\nforged")
        await world.call("GET", "/healthz")
    told = written()
    lines = [json.loads(line) for line in told.splitlines()]
    access = [line for line in lines if line["logger"] == "hmi.access"]
    assert [(line["route"], line["status"]) for line in access] == [
        ("/manage/tenants", 201),
        ("/infer/{model}", 404),
        ("unknown", 404),
        ("/healthz", 200),
    ]
    asked = access[1]
    known = {"request_id": "mine-1", "trace_id": trace, "tenant": "acme", "model": "acme.none"}
    assert known.items() <= asked.items()
    assert asked["method"] == "POST"
    assert asked["bytes"] > 0
    assert asked["duration_ms"] > 0
    assert asked["key"].startswith("k")
    assert asked["outcome"] == "not_found"
    assert key not in told
    assert SECRET not in told


async def test_without_the_setting_no_request_has_a_line(tmp_path: Path, written: Written) -> None:
    logs.configure("text")
    async with running(tmp_path) as world:
        await world.call("GET", "/healthz")
    assert written() == ""
