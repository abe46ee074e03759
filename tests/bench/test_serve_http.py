"""The sections of `bench serve` over HTTP: its client, its loads, its plots, and a run on a tiny root."""

from __future__ import annotations

import http.client
import importlib.util
import re
import socketserver
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from bench.cases.serve import flood, http_flat, http_models, response
from bench.cases.serve import http_calls as calls
from bench.cases.serve.curves import shares_svg, times_svg
from bench.cases.serve.http_calls import CASES
from bench.cases.serve.http_driver import Client, Target, client
from bench.cases.serve.http_fleet import Fleet, _executor, guard
from bench.cases.serve.http_servers import Server, hmi, running
from bench.cases.serve.plan import OVER_HTTP, QUICK, Plan
from bench.cases.serve.response import BURST_CLIENTS, BURST_PERIOD_S, BURST_REQUESTS, _burst, _constant
from bench.cases.serve.run import run, steps
from bench.harness.home import Home
from bench.harness.report import quantile
from hmi.errors import HmiError, Unavailable
from tests.bench.lab import tiny_home, tiny_plan

SLOW_S = 0.05


class _Answers(socketserver.StreamRequestHandler):
    """Answers after SLOW_S, with the status that the path names."""

    def handle(self) -> None:
        while line := self.rfile.readline():
            length = 0
            while (header := self.rfile.readline()) != b"\r\n":
                if header.lower().startswith(b"content-length:"):
                    length = int(header.split(b":")[1])
            self.rfile.read(length)
            time.sleep(SLOW_S)
            status = line.split()[1].decode().strip("/")
            self.wfile.write(f"HTTP/1.1 {status} X\r\nContent-Length: 2\r\n\r\n{{}}".encode())


@pytest.fixture(scope="module")
def slow() -> Iterator[int]:
    """The port of a server that answers one connection at a time, slowly."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Answers) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@pytest.fixture(scope="module")
def sender() -> Iterator[Client]:
    with client() as found:
        yield found


def test_latency_of_open_load_counts_from_the_time_at_which_it_was_to_be_sent(
    slow: int, sender: Client
) -> None:
    where = {"arrivals": [(0.0, 0, 0)] * 5, "connections": 1, "grace": 30.0}
    sender.begin(slow, [Target("/200")], ["{}"], **where)
    seen = sender.end()
    assert seen.failed == {}
    for place, ms in enumerate(sorted(seen.ms), start=1):
        assert ms >= place * SLOW_S * 1e3


def test_a_request_that_fails_counts_with_the_time_until_the_end(slow: int, sender: Client) -> None:
    given = {"arrivals": [(0.0, 0, 0), (0.0, 1, 0)], "connections": 2, "grace": 0.5}
    sender.begin(slow, [Target("/200"), Target("/503")], ["{}"], **given)
    seen = sender.end()
    assert seen.failed == {"503": 1}
    assert seen.in_time == 1
    assert max(seen.ms) >= 500
    assert seen.failed_share == 0.5


def test_callers_wait_for_their_answers_and_late_ones_are_no_throughput(slow: int, sender: Client) -> None:
    seen = sender.closed(slow, [Target("/200")], ["{}"], [(0, 0)], seconds=0.0, callers=3, least=7)
    assert len(seen.ms) >= 7
    assert min(seen.ms) >= SLOW_S * 1e3
    assert seen.in_time == 7
    with pytest.raises(HmiError, match="no request"):
        quantile([], 0.5)


def test_loads_are_repeatable_and_each_tenant_keeps_its_rate() -> None:
    plan = replace(QUICK, seconds=2.0, quick=False)
    assert _burst(plan) == _burst(plan)
    arrivals = _burst(plan).arrivals
    assert [at for at, _, _ in arrivals] == sorted(at for at, _, _ in arrivals)
    assert Counter(c for _, c, _ in arrivals) == dict.fromkeys(range(BURST_CLIENTS), BURST_REQUESTS)
    mine = [at for at, c, _ in arrivals if c == 9]
    assert [b - a for a, b in pairwise(mine)] == pytest.approx([BURST_PERIOD_S] * (BURST_REQUESTS - 1))
    constant = _constant(plan, 50).arrivals
    assert Counter(int(at) for at, _, _ in constant) == dict.fromkeys(range(4), 50)


def test_a_distribution_is_drawn_from_none_to_all() -> None:
    svg = shares_svg("a & b", {"ours": [1.0, 10.0, 100.0] * 300, "theirs": [5.0]})
    assert "a &amp; b" in svg
    first = re.findall(r'points="([^"]+)"', svg)[0]
    ys = [float(point.split(",")[1]) for point in first.split()]
    assert ys == sorted(ys, reverse=True)
    assert ys[-1] == 60
    assert "1000" in times_svg("t", {"ours": [(1, 3.0), (900, 70.0)]})


@pytest.mark.skipif(importlib.util.find_spec("onnx") is not None, reason="onnx is installed")
def test_a_missing_peer_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="onnx"):
        http_models.write(None, tmp_path)


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """The quick plan on a tiny root, without a section."""
    return tiny_plan(tmp_path_factory.mktemp("bench-http"))


@pytest.fixture(scope="module")
def home(quick: Plan) -> Home:
    return tiny_home(quick)


@pytest.fixture(scope="module")
def server(home: Home, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    guard(home)
    with running(hmi(home.data), tmp_path_factory.mktemp("server")) as found:
        yield found


def test_the_server_checks_keys_and_a_halted_one_takes_no_time(server: Server, home: Home) -> None:
    assert _status(server, home, "") == 401
    assert _status(server, home, home.key(1)) == 404
    assert _status(server, home, home.key(0)) == 200
    server.halt()
    time.sleep(0.1)  # signals take a moment
    before = server.cpu_s()
    time.sleep(0.1)
    assert server.cpu_s() == before > 0
    server.go_on()
    assert sum(server.threads_cpu_s().values()) > 0


def test_calls_are_timed_on_a_server(quick: Plan, home: Home, server: Server, sender: Client) -> None:
    fleet, reports = Fleet([server], sender, home, "none"), []
    case = CASES[2]
    arms = calls._measured(quick, case, fleet, reports.append)
    rows = {row.id: row for row in calls._times(case, arms, quick.runs)}
    assert 0 < rows["http_16_texts_of_110_hmi_p50"].value <= rows["http_16_texts_of_110_hmi_p95"].value
    assert rows["http_16_texts_of_110_hmi_cpu"].value > 0
    assert "http_16_texts_of_110_hmi_failed" not in rows
    assert list(calls._ratios(case, arms, quick.runs, "none")) == []  # no peer
    beside = {**arms, "LitServe int8": replace(arms["HMI"], p50=[ms * 4 for ms in arms["HMI"].p50])}
    ratios = {row.id: row for row in calls._ratios(case, beside, quick.runs, "none")}
    assert ratios["http_16_texts_of_110_default_over_litserve_int8"].value == 0.25
    assert ratios["http_16_texts_of_110_default_over_litserve_int8"].ok
    before = calls._stages(server)
    server.go_on()
    target, body = [server.arm.target(home, 0)], [server.arm.body(["a text"])]
    sender.closed(server.port, target, body, [(0, 0)], seconds=0.0, least=3)
    after = calls._stages(server)
    assert after["calls"] - before["calls"] == 3
    assert after["compute"] > before["compute"]


def test_rates_responses_and_floods_are_measured_on_a_server(
    quick: Plan, home: Home, server: Server, sender: Client
) -> None:
    server.go_on()
    rates = http_flat._rates(quick, home, server, sender, "uniform", "uniform", lambda _: None)
    rows = {row.id: row for row in http_flat._rows("uniform", rates)}
    assert rows["http_flat_uniform_16_over_1"].value > 0
    assert rows["http_flat_uniform_16_over_1_by_cpu"].goal == 0.95
    seen = response._sent(home, server, sender, response._burst(quick))
    assert (len(seen.ms), seen.failed) == (8, {})
    server.go_on()
    with client() as flooder:
        ground = flood.Ground(home, server, server, sender, flooder)
        times = flood._measured(quick, ground, "calls_of_32_texts", lambda _: None)
    rows = {row.id: row for row in flood._rows("calls_of_32_texts", times)}
    assert rows["flood_calls_of_32_texts_quiet_p99_over_alone"].goal == 1.1
    assert rows["flood_calls_of_32_texts_quiet_p99_over_machine"].value > 0
    assert rows["flood_calls_of_32_texts_quiet_failed"].value == 0


@pytest.mark.slow
def test_the_quick_run_measures_every_section_over_http(quick: Plan, home: Home) -> None:
    assert quick.plots is not None
    plan, reports = replace(quick, sections=OVER_HTTP), []
    rows = {row.id: row for row in run(plan, home.folder.parent, reports.append)}
    assert len(reports) == steps(plan)
    assert rows["http_1_text_of_14_hmi_p50"].value > 0
    assert rows["http_16_texts_of_110_other_threads_of_compute"].value > 0
    assert rows["http_flat_default_pool_uniform_16_over_1"].value > 0
    assert rows["response_constant_10_hmi_p99"].value >= rows["response_constant_10_hmi_p50"].value
    assert rows["flood_calls_of_1024_texts_quiet_p99_over_alone"].goal == 1.1
    drawn = {path.name for path in quick.plots.iterdir()}
    assert drawn >= {"http-flat.svg", "response-burst.svg", "response-constant.svg"}


def _status(server: Server, home: Home, key: str) -> int:
    target = server.arm.target(home, 0)
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request("POST", target.path, server.arm.body(["a text"]), headers)
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("name", "measured", "found"),
    [("cuda bf16", False, "cuda bf16"), ("packed fp32", False, ""), ("packed fp32", True, "packed fp32")],
)
def test_the_chosen_executor_is_read_from_the_metrics(name: str, measured: bool, found: str) -> None:
    text = f'hmi_executor{{executor="{name}",root="r"}} 1.0\n'
    text += 'hmi_executor_token_seconds{batch="short"} 1e-05\n' if measured else ""
    assert _executor(cast(Server, SimpleNamespace(get=lambda path: text))) == found
