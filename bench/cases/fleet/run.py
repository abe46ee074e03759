"""A data folder with thousands of tenants: its size, and the start of a server on it.

The models are those of `bench serve`: written through the real stores, not trained, their weights random and
of the size that training gives. Each has the record of an ended job, as if it had been fine-tuned.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.cases.serve.http_fleet import body, target, tenants
from bench.harness.home import Home, in_one_transaction
from bench.harness.load import LoadRequests, client
from bench.harness.report import Figure
from bench.harness.server import hmi, running
from hmi.core import JobRecord, now
from hmi.stores.layout import Layout, folder_bytes
from hmi.stores.records import job_table
from hmi.stores.records.sealed import RegistryTxn
from hmi.stores.records.table import RecordTable

SETTLED_S = 20.0
"""The server's first housekeeping, which reads all records, has ended after about this time."""
MIB = 1 << 20


@dataclass(frozen=True)
class FleetPlan:
    """The sizes of a run."""

    tenants: int = 10_000
    starts: int = 3
    settled_s: float = SETTLED_S


def run(plan: FleetPlan, data: Path | None, report: Callable[[str], None]) -> Iterator[Figure]:
    """Write the tenants that the folder lacks, and start servers on it. Times of starts are medians.

    data: a folder that keeps the tenants for later runs; None: a temporary one. Raises StorageFull;
    Unavailable if a server does not start.
    """
    report(f"{plan.tenants} tenants with a model each")
    began = time.monotonic()
    with tenants(plan.tenants, data) as (home, folder):
        write_jobs(home)
        yield Figure("writing", round(time.monotonic() - began, 1), "s", peer=f"{home.tenants} tenants")
        layout = Layout(home.data)
        for name, part in (("registry", layout.registry), ("adapters", layout.adapters)):
            yield Figure(name, round(folder_bytes(part) / MIB, 1), "MiB")
        starts = []
        for i in range(plan.starts):
            report(f"start {i + 1} of {plan.starts}")
            starts.append(_start(home, folder, plan.settled_s))
        for name, unit in starts[0]:
            middle = statistics.median(start[name, unit] for start in starts)
            yield Figure(name, round(middle, 3), unit, runs=plan.starts)


def write_jobs(home: Home) -> None:
    """Write the record of each model's ended job, in one transaction."""
    at = now()

    def write(table: RecordTable, txn: RegistryTxn) -> None:
        for i in range(home.tenants):
            model = home.model(i)
            fields = {"created": at, "started": at, "ended": at, "spec": {"model": str(model)}}
            job = {"job": f"{model.tenant}-1", "kind": "fine_tune", "state": "succeeded", **fields}
            job_table.put_job(table, txn, JobRecord.model_validate({**job, "tenant": model.tenant}))

    in_one_transaction(home.data, write)


def _start(home: Home, folder: Path, settled_s: float) -> dict[tuple[str, str], float]:
    """Start a server, ask a model that is not in memory, and stop it. Returns figures by name and unit."""
    with client() as sender, ExitStack() as stack:
        began = time.monotonic()
        server = stack.enter_context(running(hmi(home.data), folder))
        ready_s, cpu_s, ready = time.monotonic() - began, server.cpu_s(), server.memory()
        first = LoadRequests(server.port, [target(server.arm, home, 0)], [body(server.arm, ["a first text"])])
        seen = sender.closed(first)
        time.sleep(settled_s)
        return {
            ("ready", "s"): ready_s,
            ("ready_cpu", "CPU s"): cpu_s,
            ("ready_memory", "MiB"): ready.all / MIB,
            ("ready_own_memory", "MiB"): ready.anonymous / MIB,
            ("settled_memory", "MiB"): server.memory().all / MIB,
            ("first_answer", "ms"): seen.at(0.5),
        }
