"""`hmi top` and `hmi profile` beside a real server, and the figures that they show."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hmi.api.views.scrape import totals
from hmi.cli.framework.client import HttpClient
from hmi.cli.top.figures import Figures, figures
from hmi.cli.top.scrape import Scrape, between
from hmi.cli.top.view import view
from hmi.engine.schedule.waiting import WaitingTexts
from hmi.metrics import Metrics
from hmi.usage import OTHERS, TOP_TENANTS
from tests.hmi.engine.test_queue_model import item
from tests.hmi.labs.api_world import hmi
from tests.hmi.labs.server_lab import PYTHON, REPO, ready, serving


@contextmanager
def load(client: HttpClient) -> Iterator[None]:
    """Ask acme's model again and again during the block."""
    over = threading.Event()

    def ask() -> None:
        while not over.wait(0.02):
            client.request("POST", "/infer/acme.m", {"inputs": ["profit and loss", "cells and genes"]})

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield
    finally:
        over.set()
        asking.join()


def test_top_and_profile_beside_a_server(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = ("--data", folder)
    assert "start one with 'hmi serve'" in hmi(capsys, "top", "--once", *data, code=1)
    key = json.loads(hmi(capsys, "key", "create", "--admin", "--json", *data))["key"]
    with serving(folder, "--job-workers", "0") as (url, server):
        ready(url)
        admin = ("--url", url, "--key", key)
        with load(HttpClient(url, key)):
            HttpClient(url, key).request("POST", "/infer/acme.m", {"inputs": ["profit"]})
            found = json.loads(hmi(capsys, "top", "--json", *admin))
            printed = hmi(capsys, "top", "--once", *data)
            assert live(folder, key, "q") == 0
        check_figures(found, url)
        assert "only for an administrator's key" in printed
        assert "tiny" in printed
        assert all(len(line.rstrip()) <= 80 for line in printed.splitlines())

        shown = json.loads(hmi(capsys, "root", "show", "tiny", "--json", *admin))
        assert shown["execution"]["executor"] == "packed fp32"
        assert (shown["execution"]["measured"], shown["execution"]["measured_at"]) == ([], None)
        profiled = json.loads(hmi(capsys, "profile", "tiny", "--json", *data))
        assert [(p["root"], p["measured"], p["changes"]) for p in profiled] == [("tiny", True, [])]
        shown = json.loads(hmi(capsys, "root", "show", "tiny", "--json", *admin))
        assert shown["execution"] == profiled[0]["execution"]
        assert shown["execution"]["executor"] == "packed fp32"
        server.terminate()
        server.wait()
    again = json.loads(hmi(capsys, "profile", "tiny", "--json", *data))
    assert [(p["measured"], p["execution"]) for p in again] == [(False, profiled[0]["execution"])]
    assert "packed fp32" in hmi(capsys, "root", "show", "tiny", *data)


def check_figures(found: dict[str, Any], url: str) -> None:
    assert (found["url"], found["state"]) == (url, "ready")
    assert found["traffic"]["texts_s"] > 0
    assert found["traffic"]["tokens_s"] > found["traffic"]["calls_s"] > 0
    assert found["traffic"]["p95_ms"] >= found["traffic"]["p50_ms"] > 0
    assert [tenant["tenant"] for tenant in found["tenants"]] == ["acme"]
    assert found["tenants"][0]["compute_share"] == 1
    assert found["batches"]["texts"] >= 1
    assert 0 < found["process"]["busy"] <= 2
    assert found["process"]["memory_bytes"]["anonymous"] > 0
    assert 0 < found["pool"]["bytes"] < found["pool"]["limit_bytes"]
    assert found["pool"]["events_s"]["hit"] > 0
    assert [(runs["root"], runs["executor"]) for runs in found["executors"]] == [("tiny", "packed fp32")]
    assert found["queue"]["oldest_ms"] >= 0


def live(folder: Path, key: str, typed: str) -> int:
    """Run `hmi top` in a terminal of its own, type once a view is shown, and return its exit code."""
    ours, theirs = pty.openpty()
    environ = {**os.environ, "TERM": "xterm", "HMI_KEY": key, "COLUMNS": "80", "LINES": "24"}
    command = [*PYTHON, "top", "--data", str(folder)]
    process = subprocess.Popen(
        command, cwd=REPO, env=environ, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    shown, until, told = b"", time.monotonic() + 60, False
    while process.poll() is None and time.monotonic() < until:
        if select.select([ours], [], [], 0.1)[0]:
            try:
                shown += os.read(ours, 1 << 16)
            except OSError:  # the command has left its terminal
                break
        if b"TENANT" in shown and b"acme" in shown and not told:
            os.write(ours, typed.encode())
            told = True
    assert told, shown.decode(errors="replace")
    try:
        return process.wait(timeout=30)
    finally:
        process.kill()
        os.close(ours)


def scrape(metrics: Metrics) -> Scrape:
    return Scrape.parse(metrics.render().decode())


def test_rates_and_quantiles_between_two_scrapes() -> None:
    metrics = Metrics()
    metrics.request("/infer/{model}", "ok", 0.3)
    metrics.request("/metrics", "ok", 9.0)
    before = scrape(metrics)
    for seconds in (0.06, 0.06, 0.06, 0.15):
        metrics.request("/infer/{model}", "ok", seconds)
    metrics.request("/infer/{model}", "quota_exceeded", 0.06)
    metrics.batch(inputs=4, tokens=100, tenants=2, seconds=0.01)
    metrics.batch(inputs=2, tokens=50, tenants=1, seconds=0.03)
    metrics.usage.add("acme", requests=3, inputs=6, tokens=150, compute_ms=30)
    metrics.usage.add("acme", early=6, saved_ms=10, cascaded=4, small=1, deep=3)
    metrics.usage.add("globex", requests=1, inputs=1, tokens=10, compute_ms=10)
    metrics.execution_stage("tokens", "merge 20%", 2)
    metrics.execution_stage("tokens", "merge 50%", 1)
    after = scrape(metrics)
    found, span = figures(before, after), between(before, after)
    assert span is not None
    traffic, s = found.traffic, span.seconds
    assert traffic.calls_s is not None
    assert traffic.texts_s is not None
    # Five calls to infer, of which four took 50 to 100 ms and one 100 to 200.
    assert traffic.calls_s * s == pytest.approx(5)
    assert traffic.texts_s / traffic.calls_s == pytest.approx(7 / 5)
    assert traffic.p50_ms == pytest.approx(50 + 50 * 2.5 / 4)
    assert traffic.p95_ms == pytest.approx(100 + 100 * 0.75)
    assert list(traffic.refused_s) == ["quota_exceeded"]
    batches = found.batches
    assert (batches.texts, batches.tokens, batches.tenants) == pytest.approx((3, 75, 1.5))
    assert found.batches.ms == pytest.approx(20)
    assert list(vars(found.saving).values()) == pytest.approx([6 / 7, 10 / 50, 1 / 4, 3 / 7])
    assert [t.early_share for t in found.tenants] == pytest.approx([1, 0])
    assert [t.deep_share for t in found.tenants] == pytest.approx([0.5, 0])
    assert [t.us_per_token for t in found.tenants] == pytest.approx([200, 1000])
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(view(found, "http://127.0.0.1:8080", "ready"))
    shown = " ".join(console.export_text().split())
    assert "86% of texts left early, 20% of compute avoided, 25% returned by cascades" in shown
    assert "43% gave up rows" in shown
    assert [(t.tenant, round(t.compute_share, 3)) for t in found.tenants] == [
        ("acme", 0.75),
        ("globex", 0.25),
    ]


def test_a_restart_and_a_repeated_scrape_give_no_rates() -> None:
    now = scrape(Metrics())
    assert between(now, now) is None
    restarted = Scrape({**now.samples, "process_start_time_seconds": [({}, 1.0)]})
    assert figures(restarted, scrape(Metrics())).traffic.calls_s is None
    assert figures(None, now).tenants == []


def test_without_an_administrator_s_key_tenants_are_not_told() -> None:
    metrics = Metrics()
    metrics.usage.add("acme", requests=1)
    before = Scrape.parse(totals(metrics).decode())
    metrics.usage.add("acme", requests=1, inputs=5)
    found = figures(before, Scrape.parse(totals(metrics).decode()))
    assert (found.tenants, found.tenants_told) == ([], False)
    assert found.traffic.texts_s


def test_the_tenants_shown_are_the_busiest_of_late(monkeypatch: pytest.MonkeyPatch) -> None:
    at = 1000.0
    monkeypatch.setattr("hmi.usage.time.monotonic", lambda: at)
    metrics = Metrics()
    for i in range(TOP_TENANTS):
        metrics.usage.add(f"old{i}", requests=100, compute_ms=1000)
    metrics.usage.top()
    at += 600
    metrics.usage.add("new", requests=1, compute_ms=50)
    told = metrics.usage.top()
    assert next(iter(told)) == "new"
    assert len(told) == TOP_TENANTS + 1
    assert told["_other"].compute_ms == 1000


def test_a_tenant_seen_first_counts_unless_it_may_come_from_the_others() -> None:
    metrics = Metrics()
    before = scrape(metrics)
    metrics.usage.add("acme", requests=4)
    assert [t.tenant for t in figures(before, scrape(metrics)).tenants] == ["acme"]
    for i in range(TOP_TENANTS + 1):
        metrics.usage.add(f"t{i}", requests=i + 5, compute_ms=i)
    before = scrape(metrics)
    metrics.usage.add("acme", requests=1, compute_ms=1e6)
    found = figures(before, scrape(metrics))
    assert "acme" not in [t.tenant for t in found.tenants]
    assert OTHERS in scrape(metrics).by("hmi_tenant_requests_total", "tenant")


def test_waiting_texts_are_those_that_no_batch_has_begun() -> None:
    waiting = WaitingTexts()
    first, second = item("acme", "cls", [3, 4]), item("globex", "cls", [5])
    assert waiting.seen() == (0, 0.0)
    first.queued -= 10
    calls = [first], [second]
    for items in calls:
        waiting.add(items)
    texts, oldest = waiting.seen()
    assert texts == 2
    assert oldest >= 10
    first.cut = 1
    texts, oldest = waiting.seen()
    assert texts == 1
    assert oldest < 10
    for items in calls:
        waiting.remove(items)
    assert waiting.seen() == (0, 0.0)


def test_writing_is_shown_once_a_model_writes() -> None:
    metrics = Metrics()
    state = dict.fromkeys(("running", "waiting", "pages", "held", "kept", "set_back"), 0)
    metrics.watch_writing(lambda: state)
    before = scrape(metrics)
    assert figures(None, before).writing is None
    assert "WRITING" not in printed(figures(None, before))
    state |= {"running": 12, "waiting": 3, "pages": 1000, "held": 90, "kept": 10}
    for _ in range(4):
        metrics.wrote(30, 12, 9)
        metrics.text(50, 16, 0.06, 0.01)
    after = scrape(metrics)
    found, span = figures(before, after), between(before, after)
    assert span is not None
    assert found.writing is not None
    assert (found.writing.running, found.writing.waiting) == (12, 3)
    assert found.writing.pages == {"held": 90, "kept": 10, "free": 900}
    assert (found.writing.tokens_s or 0) * span.seconds == pytest.approx(120)
    assert found.writing.first_p50_ms == pytest.approx(75)
    shown = printed(found)
    assert "12 texts, 3 wait" in shown
    assert "first token p50 75.0 ms, p95 97.5 ms" in shown
    assert "90 held, 10 kept, 900 free" in shown
    assert len(shown.splitlines()) == len(printed(figures(None, before)).splitlines()) + 2


def printed(found: Figures) -> str:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(view(found, "http://127.0.0.1:8080", "ready"))
    return console.export_text()


def test_a_low_terminal_shows_fewer_tenants() -> None:
    metrics = Metrics()
    before = scrape(metrics)
    for i in range(TOP_TENANTS):
        metrics.usage.add(f"t{i}", requests=i + 1, compute_ms=i)
    found = figures(before, scrape(metrics))
    for height in (18, 24, 60):
        console = Console(width=80, height=height, record=True, file=io.StringIO())
        console.print(view(found, "http://127.0.0.1:8080", "ready", 80, height))
        lines = console.export_text().splitlines()
        assert len(lines) <= height
        assert ("more" in lines[-1]) == (height < 60)


def test_several_servers_are_shown_as_one() -> None:
    one = {"hmi_requests_total": [({"route": "/a"}, 3.0)], "process_start_time_seconds": [({}, 100.0)]}
    other = {"hmi_requests_total": [({"route": "/a"}, 4.0)], "process_start_time_seconds": [({}, 90.0)]}
    at = "hmi_scrape_timestamp_seconds"
    both = Scrape.of_all([Scrape({**one, at: [({}, 1000.0)]}), Scrape({**other, at: [({}, 1001.0)]})])
    assert both.value("hmi_requests_total", route="/a") == 7.0
    assert both.value("process_start_time_seconds") == 100.0
    assert both.at == 1001.0
