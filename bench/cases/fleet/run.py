"""A data folder with thousands of tenants: its size, and the start of a server on it.

The models are written through the real stores, and not trained: their weights are random and of the size that
training gives. Each has the record of an ended job, as if it had been fine-tuned.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.harness.home import MODEL, Ground, Model, key_of, write_tenants
from hmi.config import Settings
from hmi.core import JobRecord, ModelId, now
from hmi.errors import InvalidInput, NotFound, Unavailable
from hmi.jobs.runtime.child import environment
from hmi.manager import Manager
from hmi.resident import resident
from hmi.stores import job_table
from hmi.stores.layout import Layout, folder_bytes
from hmi.stores.registry_database import RegistryDatabase
from hmi.stores.sealed import RegistryTxn
from hmi.stores.table import Table

LIMIT_S = 300.0
SETTLED_S = 20.0
"""The server's first housekeeping, which reads all records, has ended after about this time."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class Start:
    """One start of a server. Times are seconds since its process began."""

    alive_s: float
    ready_s: float
    cpu_s: float
    """Processor time until it was ready."""
    ready_bytes: int
    """Resident memory when it was ready, and `own_bytes` of these the process's own."""
    own_bytes: int
    settled_bytes: int
    """Resident memory after the first housekeeping."""
    first_answer_ms: float
    """Time of the first answer, by a model that was not in memory."""


def fill(data: Path, count: int, say: Say) -> float:
    """Complete the tenants of the folder to `count`, with a model and an ended job each. Returns the seconds.

    Raises InvalidInput if the folder has no root, StorageFull.
    """
    began = time.monotonic()
    manager = Manager(Settings.from_env(data=data, job_workers=0))
    try:
        roots = manager.registry.roots()
        if not roots:
            raise InvalidInput(f"{data} has no root: import one first (hmi root import)", field="data")
        ground = Ground.of(manager, roots[0].name)
        models = [Model(f"fleet-{i:05}", i) for i in range(count)]
        missing = [model for model in models if not _exists(manager, model.id)]
        for done in write_tenants(manager, ground, missing):
            say(f"{done} of {len(missing)} tenants written")
        _write_jobs(data, missing)
    finally:
        manager.close()
    return time.monotonic() - began


def _exists(manager: Manager, model: ModelId) -> bool:
    try:
        manager.registry.model(model)
    except NotFound:
        return False
    return True


def _write_jobs(data: Path, models: list[Model]) -> None:
    """Write the record of each model's job, in one transaction."""
    database, table, at = RegistryDatabase.open(Layout(data).registry), Table(), now()

    def body(txn: RegistryTxn) -> None:
        for model in models:
            fields = {"created": at, "started": at, "ended": at, "spec": {"model": str(model.id)}}
            job = {"job": f"{model.tenant}-1", "kind": "fine_tune", "state": "succeeded", **fields}
            job_table.put_job(table, txn, JobRecord.model_validate({**job, "tenant": model.tenant}))

    try:
        database.write(body)
    finally:
        database.release()


def start(data: Path) -> Start:
    """Start a server on the folder, ask one model, and stop it. Raises Unavailable if it is not ready."""
    note = Layout(data).server_note
    note.unlink(missing_ok=True)
    began = time.monotonic()
    command = [sys.executable, "-m", "hmi", "serve", "--data", str(data), "--port", "0"]
    env = environment(Settings.from_env(data=data))
    server = subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL)
    try:
        alive_s, url = _wait(server, began, note, "healthz")
        ready_s, _ = _wait(server, began, note, "readyz")
        cpu_s = _cpu_s(server.pid)
        ready = resident(server.pid)
        first_ms = _ask(url)
        time.sleep(SETTLED_S)
        settled = resident(server.pid).all
        return Start(alive_s, ready_s, cpu_s, ready.all, ready.anonymous, settled, first_ms)
    finally:
        server.terminate()
        server.wait()


def measure(data: Path, count: int, say: Say, starts: int = 3) -> dict[str, Any]:
    """Fill the folder and start servers on it. Returns figures by name; times of starts are medians."""
    seconds = fill(data, count, say)
    found = sorted((start(data) for _ in range(starts)), key=lambda s: s.ready_s)
    layout = Layout(data)
    middle = found[len(found) // 2]
    return {
        "tenants": count,
        "writing_s": round(seconds, 1),
        "registry_bytes": folder_bytes(layout.registry),
        "adapters_bytes": folder_bytes(layout.adapters),
        "free_bytes": shutil.disk_usage(data).free,
        "load": round(os.getloadavg()[0], 1),
        **{name: round(value, 3) for name, value in vars(middle).items()},
        "ready_s_of_each_start": [round(s.ready_s, 2) for s in found],
    }


def _wait(server: subprocess.Popen[bytes], began: float, note: Path, path: str) -> tuple[float, str]:
    """Wait until the server answers 200 to a health call. Returns the time since `began`, and its address."""
    while time.monotonic() - began < LIMIT_S and server.poll() is None:
        try:
            url = str(json.loads(note.read_text())["url"])
            with urllib.request.urlopen(f"{url}/{path}", timeout=5):
                return time.monotonic() - began, url
        except (OSError, ValueError, KeyError):
            time.sleep(0.01)
    raise Unavailable(f"the server did not answer /{path} within {LIMIT_S:.0f} s")


def _ask(url: str) -> float:
    tenant = "fleet-00000"
    headers = {"Authorization": f"Bearer {key_of(tenant)}", "Content-Type": "application/json"}
    body = json.dumps({"inputs": "a first text"}).encode()
    began = time.monotonic()
    with urllib.request.urlopen(urllib.request.Request(f"{url}/infer/{tenant}.{MODEL}", body, headers)):
        return (time.monotonic() - began) * 1000


def _cpu_s(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
