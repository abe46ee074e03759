"""A client goes on while its server is stopped and started again."""

from __future__ import annotations

import shutil
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import hmi
from hmi.client.answers import JobStatus
from tests.e2e.conftest import QUICK, Home, mood_rows
from tests.hmi.labs.server_lab import ready, serving
from tests.waiting import wait_until


@pytest.mark.slow
def test_calls_and_a_waited_job_survive_a_restart(home: Home, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(home.settings.data, data)
    running, seen, over = threading.Event(), list[JobStatus](), threading.Event()

    def watch(status: JobStatus) -> None:
        seen.append(status)
        if status.progress.step:
            running.set()

    def ask(url: str) -> int:
        with hmi.Client(url, timeout_s=300, attempts=1000) as client:
            asked = 0
            while not over.is_set():
                assert client.infer("acme.mood", "a good film").label in ("pos", "neg")
                asked += 1
            return asked

    with ThreadPoolExecutor(2) as pool, serving(data) as (url, first):
        ready(url)
        client = hmi.Client(url)
        options = {**QUICK, "epochs": 30, "ramps": False}
        job = client.models.create("acme.survivor", mood_rows(15, 400), domain="tiny/half", options=options)
        waited = pool.submit(job.wait, progress=watch)
        asking = pool.submit(ask, url)
        try:
            assert running.wait(300)
            first.send_signal(signal.SIGTERM)
            wait_until(lambda: first.poll() is not None, 120)
            assert not waited.done()
            assert not asking.done()
            with serving(data, "--port", str(urlsplit(url).port)) as (again, _):
                assert again == url
                assert waited.result(600).state == "succeeded"
                over.set()
                assert asking.result(600) > 0
                assert client.models.get("acme.survivor").current == 1
        finally:
            over.set()
            client.close()
    assert [status.state for status in seen if status.done] == ["succeeded"]
