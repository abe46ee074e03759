"""The servers that calls over HTTP are timed on. All run at once; those not being measured are halted."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from bench.cases.serve import http_models
from bench.cases.serve.plan import QUICK, ServePlan
from bench.harness.home import Home, build
from bench.harness.load import LoadClient, LoadFigures, LoadRequests, RequestTarget, client
from bench.harness.report import Figure
from bench.harness.server import NO_JOBS, Server, ServerArm, hmi, running
from hmi.api.access.auth import has_admin_key
from hmi.config import Settings
from hmi.errors import Unavailable
from hmi.execution.precision import available
from hmi.manager import Manager

DEFAULT = "HMI"
"""The arm of HMI in the precision that its server takes by itself."""
CHOICE_S = 120.0
"""Longest wait for the choice of the root's executor."""
WARM_CALLS = 3
"""Calls before each measurement that do not count."""
LEAST_CALLS = 4
"""The least calls of a measurement, even if they take longer than planned."""
PRECISIONS = ("fp32", "int8")
"""The precisions that the peers have on a CPU."""


def target(arm: ServerArm, home: Home, tenant: int) -> RequestTarget:
    """Return the path and the key of one of the home's tenants."""
    return (
        RequestTarget(arm.path)
        if arm.path
        else RequestTarget(f"/infer/{home.model(tenant)}", home.key(tenant))
    )


def body(arm: ServerArm, texts: Sequence[str]) -> str:
    """Return the body of a call."""
    if arm.name.startswith("infinity"):
        return json.dumps({"model": "peer", "input": texts, "encoding_format": "base64"})
    return json.dumps({"inputs": texts})


@dataclass(frozen=True)
class Fleet:
    """The running servers and the client. `chosen` is HMI's executor in its default precision."""

    servers: Sequence[Server]
    client: LoadClient
    home: Home
    chosen: str

    def load(
        self, server: Server, bodies: Sequence[str], seconds: float, callers: int = 1
    ) -> tuple[LoadFigures, float]:
        """Send the bodies again and again for one tenant. Returns what was seen, and CPU seconds a call."""
        requests = LoadRequests(server.port, [target(server.arm, self.home, 0)], bodies)
        with server.awake():
            self.client.closed(requests, callers=callers, least=max(WARM_CALLS, callers))
            before = server.cpu_s()
            seen = self.client.closed(requests, seconds=seconds, callers=callers, least=LEAST_CALLS)
            return seen, (server.cpu_s() - before) / len(seen.ms)


@contextmanager
def fleet(plan: ServePlan, home: Home, folder: Path, missing: list[Figure]) -> Iterator[Fleet]:
    """Start HMI in each precision of this machine, and the peers. `missing` gets a row for each absent peer.

    A quick plan starts HMI in its default precision alone.
    """
    precisions: list[str] = [] if plan.quick else [p for p in available() if p in PRECISIONS]
    with client() as sender, ExitStack() as stack:
        servers: list[Server] = []
        chosen: list[str] = []
        for precision in ["", *precisions]:
            given = {"HMI_PRECISION": precision} if precision else {}
            data = copied(home, folder / f"data-{precision}")
            arm = hmi(data, *NO_JOBS, name=f"HMI {precision}".strip(), **given)
            servers.append(stack.enter_context(running(arm, folder)))
            chosen.append(wait_chosen(servers[-1], sender, home, plan.quick))
            servers[-1].halt()
        for arm in [] if plan.quick else _peers(plan.packages, folder / "models", missing):
            try:
                servers.append(stack.enter_context(running(arm, folder)))
                servers[-1].halt()
            except Unavailable as error:
                missing.append(_absent(arm.name, error))
        yield Fleet(servers, sender, home, chosen[0])


@contextmanager
def tenants(count: int, data: Path | None = None, *, guarded: bool = True) -> Iterator[tuple[Home, Path]]:
    """Make a home, and yield it with a temporary folder.

    data: a folder that keeps the home for later runs; None: it is in the temporary one. guarded: see `guard`.
    Raises StorageFull.
    """
    with tempfile.TemporaryDirectory(prefix="hmi-bench-") as given:
        folder = Path(given)
        home = build(replace(QUICK, tenants=count), (data or folder) / "bench-serve")
        if guarded:
            guard(home)
        yield home, folder


def guard(home: Home) -> None:
    """Make an administrator's key, if the home has none, so that the server checks the key of every call."""
    with closing(Manager(Settings(data=home.data, job_workers=0))) as manager:
        if not has_admin_key(manager.registry):
            manager.create_key(None, ("admin",))


def _absent(name: str, error: Exception) -> Figure:
    """Return a row that says why a peer was not measured."""
    return Figure(f"http_{slug(name)}_absent", None, "", why=str(error))


def slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower())


def copied(home: Home, to: Path) -> Path:
    """Copy the home's data folder, since a folder belongs to one server. Artefacts are linked, not copied."""
    one_disk = home.folder.stat().st_dev == to.parent.stat().st_dev

    def copy(source: str, target: str) -> object:
        same = Path(source).parent.name == "adapters" and source.endswith(".safetensors")
        return (os.link if same and one_disk else shutil.copy2)(source, target)

    shutil.copytree(home.data, to, copy_function=copy)
    return to


def wait_chosen(server: Server, sender: LoadClient, home: Home, quick: bool = False) -> str:
    """Ask the server, and wait until it has measured its executors. Returns the one that it chose.

    A quick run does not wait.
    """
    sender.closed(LoadRequests(server.port, [target(server.arm, home, 0)], [body(server.arm, ["first"])]))
    until = time.monotonic() + (0.0 if quick else CHOICE_S)
    while time.monotonic() < until:
        if found := executor_in(server.get("/metrics")):
            return found
        time.sleep(1.1)  # the metrics are up to a second old
    return ""


def executor_in(metrics: str) -> str:
    """Return the executor of the root, or "" while it has not been chosen."""
    found = re.search(r'hmi_executor\{[^}]*executor="([^"]+)"[^}]*\} 1', metrics)
    if found is None:
        return ""
    on_device = found[1].startswith("cuda ")  # nothing is measured there
    return found[1] if on_device or "hmi_executor_token_seconds{" in metrics else ""


def _peers(packages: Path | None, models: Path, missing: list[Figure]) -> list[ServerArm]:
    try:
        http_models.write(packages, models)
    except Unavailable as error:
        missing.append(_absent("peers", error))
        return []
    both = [(p, batching) for batching in (False, True) for p in PRECISIONS]
    litserve = [http_models.litserve(models, precision, packages, batching) for precision, batching in both]
    return [*litserve, *(http_models.infinity(models, precision, packages) for precision in PRECISIONS)]
