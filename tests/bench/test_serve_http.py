"""The sections of `bench serve` over HTTP: its client, its loads, its plots, and a run on a tiny root."""

from __future__ import annotations

import http.client
import importlib.util
import socketserver
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bench.cases.serve import http_calls, http_flat, http_models
from bench.cases.serve.http_fleet import Fleet, body, executor_in, guard, target
from bench.cases.serve.plan import OVER_HTTP, ServePlan
from bench.cases.serve.run import run, steps
from bench.cases.serve.traffic import Throughputs
from bench.harness.home import Home
from bench.harness.load import LoadClient, LoadRequests, RequestTarget, client
from bench.harness.report import quantile
from bench.harness.server import NO_JOBS, Server, free_port, hmi, running
from hmi.errors import HmiError, Unavailable
from tests.bench.lab import tiny_home, tiny_plan

SLOW_S = 0.05


class _Answers(socketserver.StreamRequestHandler):
    """Answers after SLOW_S, with the status that the header X-Status names, or else the path."""

    def handle(self) -> None:
        while line := self.rfile.readline():
            length, status = 0, line.split()[1].decode().strip("/")
            while (header := self.rfile.readline()) != b"\r\n":
                if header.lower().startswith(b"content-length:"):
                    length = int(header.split(b":")[1])
                elif header.startswith(b"X-Status: "):
                    status = header.decode().split()[1]
            self.rfile.read(length)
            time.sleep(SLOW_S)
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
def sender() -> Iterator[LoadClient]:
    with client() as found:
        yield found


def test_latency_of_open_load_counts_from_the_time_at_which_it_was_to_be_sent(
    slow: int, sender: LoadClient
) -> None:
    arrivals = [(0.0, 0, 0)] * 5
    seen = sender.opened(
        LoadRequests(slow, [RequestTarget("/200")], ["{}"]), arrivals, connections=1, grace_s=30.0
    )
    assert seen.failed == {}
    for place, ms in enumerate(sorted(seen.ms), start=1):
        assert ms >= place * SLOW_S * 1e3


def test_a_request_that_fails_counts_with_the_time_until_the_end(slow: int, sender: LoadClient) -> None:
    targets, arrivals = [RequestTarget("/200"), RequestTarget("/503")], [(0.0, 0, 0), (0.0, 1, 0)]
    seen = sender.opened(LoadRequests(slow, targets, ["{}"]), arrivals, connections=2, grace_s=0.5)
    assert seen.failed == {"503": 1}
    assert seen.in_time == 1
    assert max(seen.ms) >= 500
    assert seen.failures == 1


def test_callers_wait_for_their_answers_and_late_ones_are_no_throughput(
    slow: int, sender: LoadClient
) -> None:
    seen = sender.closed(LoadRequests(slow, [RequestTarget("/200")], ["{}"]), callers=3, least=7)
    assert len(seen.ms) >= 7
    assert min(seen.ms) >= SLOW_S * 1e3
    assert seen.in_time == 7
    with pytest.raises(HmiError, match="no request"):
        quantile([], 0.5)


def test_a_caller_may_take_a_connection_for_each_request_and_counts_refused_ones(
    slow: int, sender: LoadClient
) -> None:
    fresh = {"least": 3, "think_s": 0.001}
    seen = sender.closed(LoadRequests(slow, [RequestTarget("/200")], [""]), **fresh)
    assert (len(seen.ms), seen.in_time) == (3, 3)
    nobody = free_port()
    assert sender.closed(LoadRequests(nobody, [RequestTarget("/200")], [""]), **fresh).failed == {"0": 3}


def test_a_target_may_have_a_header_of_its_own(slow: int, sender: LoadClient) -> None:
    targets = [RequestTarget("/200"), RequestTarget("/200", header="X-Status: 503")]
    assert sender.closed(LoadRequests(slow, targets, ["{}"]), least=4).failed == {"503": 2}


@pytest.mark.skipif(importlib.util.find_spec("onnx") is not None, reason="onnx is installed")
def test_a_missing_peer_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="onnx"):
        http_models.write(None, tmp_path)


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> ServePlan:
    """The quick plan on a tiny root, without a section."""
    return tiny_plan(tmp_path_factory.mktemp("bench-http"))


@pytest.fixture(scope="module")
def home(quick: ServePlan) -> Home:
    return tiny_home(quick)


@pytest.mark.slow
def test_the_quick_run_measures_every_section_over_http(quick: ServePlan, home: Home) -> None:
    plan, reports = replace(quick, sections=OVER_HTTP), []
    rows = {row.id: row for row in run(plan, home.folder.parent, reports.append)}
    assert len(reports) == steps(plan)
    assert rows["http_1_text_of_14_hmi_p50"].value > 0
    assert rows["http_16_texts_of_110_other_threads_of_compute"].value > 0
    assert rows["http_flat_default_pool_uniform_16_over_1"].value > 0


@pytest.fixture(scope="module")
def server(home: Home, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    guard(home)
    with running(hmi(home.data, *NO_JOBS), tmp_path_factory.mktemp("server")) as found:
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


def test_calls_are_timed_on_a_server(
    quick: ServePlan, home: Home, server: Server, sender: LoadClient
) -> None:
    fleet, reports = Fleet([server], sender, home, "none"), []
    case = http_calls.CASES[2]
    arms = http_calls.measured(quick, case, fleet, reports.append)
    rows = {row.id: row for row in http_calls.times(case, arms, quick.runs)}
    assert rows["http_16_texts_of_110_hmi_p50"].value > 0
    assert rows["http_16_texts_of_110_hmi_cpu"].value > 0
    assert "http_16_texts_of_110_hmi_failed" not in rows
    assert list(http_calls.ratios(case, arms, quick.runs, "none")) == []  # no peer
    seen = arms["HMI"].seen[0]
    slower = http_calls.ArmValues([replace(seen, ms=[ms * 4 for ms in seen.ms])], [1.0])
    beside = {**arms, "LitServe int8": slower}
    ratios = {row.id: row for row in http_calls.ratios(case, beside, quick.runs, "none")}
    assert ratios["http_16_texts_of_110_default_over_litserve_int8"].value == 0.25
    assert ratios["http_16_texts_of_110_default_over_litserve_int8"].ok
    before = http_calls.stages(server)
    server.go_on()
    call = LoadRequests(server.port, [target(server.arm, home, 0)], [body(server.arm, ["a text"])])
    sender.closed(call, least=3)
    after = http_calls.stages(server)
    assert after["calls"] - before["calls"] == 3
    assert after["compute"] > before["compute"]


def test_rates_are_measured_on_a_server(
    quick: ServePlan, home: Home, server: Server, sender: LoadClient
) -> None:
    server.go_on()
    rates = Throughputs("http_flat_uniform")
    http_flat.measured(quick, home, server, sender, "uniform", rates, lambda _: None)
    rows = {row.id: row for row in rates.rows()}
    assert rows["http_flat_uniform_16_over_1"].value > 0
    assert rows["http_flat_uniform_16_over_1_by_cpu"].goal == 0.95


def _status(server: Server, home: Home, key: str) -> int:
    path = target(server.arm, home, 0).path
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request("POST", path, body(server.arm, ["a text"]), headers)
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
    assert executor_in(text) == found
