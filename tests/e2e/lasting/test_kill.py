"""SIGKILL of the server while it builds a domain, fine-tunes a model and answers a load of requests.

After each restart every published model must answer as before, nothing half-made may be visible, and every
job must go on or have failed with a reason. Two rounds in `make test`, twenty in `make stress`.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bench.harness.server import free_port
from hmi.cli.framework.client import HttpClient
from hmi.errors import HmiError
from plot_store import Store
from tests.e2e.conftest import mood_rows
from tests.forks import Forked, run_hmi
from tests.tiny import random_texts

ENDED = ("succeeded", "failed", "cancelled")
PROBES = random_texts(12, seed=99)
READY_S = 90.0
JOBS_S = 240.0
GONE_S = 60.0
"""A job dies at once with its server; a busy disk may keep its process for a while longer."""


@dataclass
class Lab:
    """A data folder, a server on it, and the first answers of each published model."""

    data: Path
    work: Path
    port: int
    arguments: tuple[str, ...] = ()
    server: Forked | subprocess.Popen[bytes] | None = None
    trusted: Path | None = None
    """The authority of the server's certificate, if it speaks HTTPS."""
    shown: Path | None = None
    """The certificate that the client shows."""
    answers: dict[str, list[tuple[str, float]]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    @property
    def client(self) -> HttpClient:
        scheme = "http" if self.trusted is None else "https"
        return HttpClient(f"{scheme}://127.0.0.1:{self.port}", None, self.trusted, self.shown, timeout_s=20.0)

    def start(self) -> None:
        given = ["serve", "--data", str(self.data), "--port", str(self.port), "--job-workers", "2"]
        self.server = run_hmi([*given, *self.arguments], self.work / "server.log")
        until = time.monotonic() + READY_S
        while True:
            assert self.server.poll() is None, (self.work / "server.log").read_text()[-2000:]
            assert time.monotonic() < until, "the server was not ready in time"
            try:
                self.client.request("GET", "/readyz")
                return
            except HmiError:
                time.sleep(0.1)

    def kill(self) -> None:
        assert self.server is not None
        self.server.send_signal(signal.SIGKILL)
        self.server.wait()

    def file(self, name: str, content: bytes) -> Path:
        path = self.work / name
        path.write_bytes(content)
        return path

    def ask(self, model: str) -> list[tuple[str, float]]:
        body = {"inputs": PROBES}
        outputs = self.client.request("POST", f"/infer/{model}", body)["outputs"]
        return [(o["label"], round(o["score"], 4)) for o in outputs]

    def finish(self, jobs: list[str]) -> list[dict[str, Any]]:
        until = time.monotonic() + JOBS_S
        while True:
            views = [self.client.request("GET", f"/manage/jobs/{job}") for job in jobs]
            if all(v["state"] in ENDED for v in views):
                return views
            assert time.monotonic() < until, f"jobs never ended: {views}"
            time.sleep(0.2)

    def models(self) -> list[str]:
        return [m["model"] for m in self.client.request("GET", "/manage/models")["models"]]

    def domains(self) -> list[str]:
        return [d["domain"] for d in self.client.request("GET", "/manage/domains")["domains"]]

    def check_published(self) -> None:
        """Each model answers as it first did; a new model's answers are recorded."""
        found = self.models()
        assert set(self.answers) <= set(found), "a published model is gone"
        for model in found:
            assert self.ask(model) == self.answers.setdefault(model, self.ask(model)), model


@pytest.fixture
def lab(folder: Path, tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(folder, tmp_path, free_port())
    lab.start()
    lab.check_published()
    yield lab
    lab.kill()


def fine_tune(lab: Lab, model: str, epochs: int, domain: str = "tiny") -> str:
    options = {"epochs": epochs, "lr": 0.01, "module": {"kind": "lora", "rank": 4}}
    body = {"model": model, "domain": domain, "task": "classification", "options": options}
    data = lab.file("rows", mood_rows(7, 160))
    return str(lab.client.request("POST", "/manage/models", body, files={"data": data})["job"])


def build(lab: Lab, domain: str) -> str:
    corpus = lab.file("corpus", "\n".join(random_texts(6000, seed=len(domain), high=40)).encode())
    body = {"domain": domain, "alpha": 100}
    return str(lab.client.request("POST", "/manage/domains", body, files={"corpus": corpus})["job"])


@contextmanager
def load(lab: Lab) -> Iterator[None]:
    """While the block runs, three threads ask the first model: wrong answers are
    noted, a lost server is not."""
    over = threading.Event()

    def go() -> None:
        while not over.is_set():
            try:
                got = lab.ask("acme.m")
            except (HmiError, OSError):
                time.sleep(0.05)
                continue
            if got != lab.answers["acme.m"]:
                lab.wrong.append(str(got))

    threads = [threading.Thread(target=go) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def one_round(lab: Lab, number: int, rng: random.Random, longest_s: float = 8.0) -> None:
    """Kill the server within `longest_s`, while two jobs run or soon after."""
    model, domain = f"acme.m{number}", f"tiny/d{number}"
    with load(lab):
        jobs = [build(lab, domain), fine_tune(lab, model, epochs=4)]
        time.sleep(rng.uniform(0.1, longest_s))
        lab.kill()
    assert none_is_left(lab.data), "a job outlived its server"
    with Store.open(lab.data / "plots", read_only=True) as store:
        assert store.verify().ok
    lab.start()
    lab.check_published()
    for view in lab.finish(jobs):
        assert view["state"] == "succeeded" or view["error"]["message"], view
        if view["state"] == "succeeded":
            assert (domain in lab.domains()) if view["kind"] == "build_plot" else (model in lab.models())
    lab.check_published()
    assert not lab.wrong, "an answer changed under load"


def none_is_left(data: Path) -> bool:
    """Wait for all processes of jobs to end; whether they end in time."""
    until = time.monotonic() + GONE_S
    while job_processes(data):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def job_processes(data: Path) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if "hmi.jobs" in command and str(data) in command:
            found.append(command)
    return found


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="finds job processes in /proc")
def test_two_kills(lab: Lab) -> None:
    rng = random.Random(0)
    for number in range(2):
        one_round(lab, number, rng, longest_s=3.0)


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc"), reason="finds job processes in /proc")
def test_twenty_kills(lab: Lab) -> None:
    rng = random.Random(time.time_ns())
    for number in range(20):
        one_round(lab, 100 + number, rng)
        print(f"round {number + 1} of 20 passed", flush=True)
