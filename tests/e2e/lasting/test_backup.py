"""Backups of a data folder whose server infers, fine-tunes, publishes, rolls back, builds and deletes.

Every restored folder must pass `hmi store verify`, and each model that no call changed must answer from
it as the server did. One backup in `make test`, twenty in `make stress`.
"""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from hmi.api.process.local import LocalCalls
from hmi.backup.collection import entries, newest, verify
from hmi.backup.create import create
from hmi.backup.restore import restore
from hmi.backup.target import open_target
from hmi.cli.framework.client import HttpClient
from hmi.config import Settings
from hmi.core import ENDED
from hmi.stores.plot.plots import open_plots
from hmi.stores.records.registry import Registry
from tests.e2e.conftest import QUICK, Home, mood_rows
from tests.hmi.labs.server_lab import ready, serving
from tests.tiny import random_texts

KEPT = ("acme.mood", "acme.pairs", "globex.mood", "globex.tags")
"""Models that the load does not change."""
PROBES: dict[str, list[Any]] = {
    "acme.mood": random_texts(6, seed=41),
    "globex.mood": random_texts(6, seed=42),
    "acme.pairs": [{"text": a, "text_pair": b} for a, b in pairwise(random_texts(7, seed=43))],
    "globex.tags": [{"tokens": text.split()} for text in random_texts(6, seed=44)],
}


def answers(ask: Callable[[str, Any], Any], models: Sequence[str] = KEPT) -> dict[str, Any]:
    return {model: rounded(ask(f"/infer/{model}", {"inputs": PROBES[model]})["outputs"]) for model in models}


def rounded(value: Any) -> Any:
    """Without the last digits of floats, which depend on the texts of a batch."""
    if isinstance(value, dict):
        return {name: rounded(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [rounded(inner) for inner in value]
    return round(value, 4) if isinstance(value, float) else value


class Load:
    """Calls that change the data folder, from several threads, until the block ends."""

    def __init__(self, client: HttpClient, work: Path, before: dict[str, Any]) -> None:
        self.client, self.work, self.before = client, work, before
        self.stop = threading.Event()
        self.done = dict.fromkeys(("infer", "tenants", "models", "domains"), 0)

    @contextmanager
    def running(self) -> Iterator[None]:
        with ThreadPoolExecutor(len(self.done)) as pool:
            futures = [pool.submit(self._repeat, name) for name in self.done]
            try:
                yield
            finally:
                self.stop.set()
            for future in futures:
                future.result()

    def _repeat(self, name: str) -> None:
        while not self.stop.is_set():
            getattr(self, name)(self.done[name])
            self.done[name] += 1

    def infer(self, i: int) -> None:
        model = random.Random(i).choice(KEPT)
        found = answers(self.ask, [model])
        assert found[model] == self.before[model]

    def ask(self, path: str, body: Any) -> Any:
        return self.client.request("POST", path, body)

    def tenants(self, i: int) -> None:
        self.client.request("POST", "/manage/tenants", {"tenant": f"t{i}"})
        if i % 2:
            self.client.request("DELETE", f"/manage/tenants/t{i}")

    def models(self, i: int) -> None:
        rows = self._file("rows", mood_rows(i, 20))
        options = {**QUICK, "epochs": 1, "ramps": False}
        spec = {"model": "acme.changing", "domain": "tiny/full", "task": "classification", "options": options}
        path = "/manage/models/acme.changing/update" if i else "/manage/models"
        body = {"publish": "always", "options": options} if i else spec
        self._finish(self.client.request("POST", path, body, {"data": rows}))
        # Version 1 is dropped after some updates. The version before is always kept.
        self.client.request("POST", "/manage/models/acme.changing/rollback", {"version": max(i, 1)})

    def domains(self, i: int) -> None:
        corpus = self._file("corpus", "\n".join(random_texts(20, seed=i)).encode())
        made = self.client.request("POST", "/manage/domains", {"domain": f"tiny/d{i}"}, {"corpus": corpus})
        self._finish(made)
        if i % 2:
            self.client.request("DELETE", f"/manage/domains/tiny.d{i}")

    def _file(self, name: str, content: bytes) -> Path:
        path = self.work / name
        path.write_bytes(content)
        return path

    def _finish(self, made: dict[str, Any]) -> None:
        """Wait for the job's end, also after `stop`: what comes next needs what the job makes."""
        path = f"/manage/jobs/{made['job']}"
        give_up = time.monotonic() + 300
        while (view := self.client.request("GET", path))["state"] not in ENDED:
            assert time.monotonic() < give_up, view
            time.sleep(0.1)
        assert view["state"] == "succeeded", view


def back_up_under_load(home: Home, folder: Path, count: int) -> int:
    """Make and check backups while the server is loaded. Returns how many there are at the end."""
    data = folder / "data"
    shutil.copytree(home.settings.data, data)
    target = open_target(str(folder / "backups"))
    with serving(data, "--job-workers", "2") as (url, _):
        ready(url)
        client = HttpClient(url, timeout_s=60.0, patience_s=60.0)
        before = answers(lambda path, body: client.request("POST", path, body))
        load = Load(client, folder, before)
        registry, plots = Registry.open(data / "registry"), open_plots(data / "plots")
        with load.running():
            for _ in range(count):
                goal = {name: n + 1 for name, n in load.done.items() if name != "domains"}
                while any(load.done[name] < n for name, n in goal.items()):
                    load.stop.wait(0.05)
                manifest = create(data, registry, plots, target)
                assert manifest.remarks == ()
                check(target_place=folder / "backups", new=folder / "new", before=before)
        plots.close()
        registry.close()
    return len(entries(target))


def check(target_place: Path, new: Path, before: dict[str, Any]) -> None:
    """Restore the newest backup, verify the folder, and compare the answers of models that did not change."""
    target = open_target(str(target_place))
    assert verify(target, newest(target)) == ()
    restore(target, newest(target), new)
    local = LocalCalls(Settings(data=new, job_workers=0, precision="fp32"))
    try:
        manager = local.services.manager
        assert (manager.verify(), manager.verify_files()) == ((), ())
        assert manager.plots.verify().damages == ()
        assert answers(local.infer) == before
    finally:
        local.close()
    shutil.rmtree(new)


def test_backups_under_load(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HMI_PRECISION", "fp32")  # what is fastest may differ between two processes
    assert back_up_under_load(home, tmp_path, 1) == 1


@pytest.mark.slow
def test_many_backups_under_load(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HMI_PRECISION", "fp32")
    assert back_up_under_load(home, tmp_path, 20) == 20
