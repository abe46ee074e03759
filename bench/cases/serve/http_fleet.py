"""The servers that calls over HTTP are timed on. All run at once; those not being measured are halted."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.cases.serve import http_models
from bench.cases.serve.http_driver import Client, Seen, client
from bench.cases.serve.http_servers import Arm, Server, hmi, running
from bench.cases.serve.plan import Plan
from bench.harness.home import Home
from bench.harness.report import Row
from hmi.api.auth import has_admin_key
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


@dataclass(frozen=True)
class Fleet:
    """The running servers and the client. `chosen` is HMI's executor in its default precision."""

    servers: Sequence[Server]
    client: Client
    home: Home
    chosen: str

    def load(
        self, server: Server, bodies: Sequence[str], seconds: float, callers: int = 1
    ) -> tuple[Seen, float]:
        """Send the bodies again and again for one tenant. Returns what was seen, and CPU seconds a call."""
        server.go_on()
        try:
            targets, turn = [server.arm.target(self.home, 0)], [(0, i) for i in range(len(bodies))]
            where, warm = (server.port, targets, bodies, turn), max(WARM_CALLS, callers)
            self.client.closed(*where, seconds=0.0, callers=callers, least=warm)
            before = server.cpu_s()
            seen = self.client.closed(*where, seconds=seconds, callers=callers, least=LEAST_CALLS)
            return seen, (server.cpu_s() - before) / len(seen.ms)
        finally:
            server.halt()


@contextmanager
def fleet(plan: Plan, home: Home, folder: Path, missing: list[Row]) -> Iterator[Fleet]:
    """Start HMI in each precision of this machine, and the peers. `missing` gets a row for each absent peer.

    A quick plan starts HMI in its default precision alone.
    """
    precisions: list[str] = [] if plan.quick else [p for p in available() if p in PRECISIONS]
    with client() as sender, ExitStack() as stack:
        servers: list[Server] = []
        chosen: list[str] = []
        for precision in ["", *precisions]:
            data = copied(home, folder / f"data-{precision}")
            server = stack.enter_context(running(hmi(data, precision), folder))
            servers.append(server)
            chosen.append(wait_chosen(plan, server, sender, home))
            server.halt()
        if not plan.quick:
            servers += halted(_peers(plan, folder / "models", missing), folder, stack, missing)
        yield Fleet(servers, sender, home, chosen[0])


def halted(arms: Sequence[Arm], folder: Path, stack: ExitStack, missing: list[Row]) -> list[Server]:
    """Start the peers' servers and halt each. A row in `missing` names each that does not start."""
    servers: list[Server] = []
    for arm in arms:
        try:
            servers.append(stack.enter_context(running(arm, folder)))
            servers[-1].halt()
        except Unavailable as error:
            missing.append(absent(arm.name, error))
    return servers


def guard(home: Home) -> None:
    """Make an administrator's key, if the home has none, so that the server checks the key of every call."""
    with closing(Manager(Settings(data=home.data, job_workers=0))) as manager:
        if not has_admin_key(manager.registry):
            manager.create_key(None, ("admin",))


def absent(name: str, error: Exception) -> Row:
    """A row that says why a peer was not measured."""
    return Row(f"http_{slug(name)}_absent", None, "", why=str(error))


def slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower())


def copied(home: Home, to: Path) -> Path:
    """Copy the home's data folder, since a folder belongs to one server. Artefacts are linked, not copied."""

    def copy(source: str, target: str) -> object:
        same = Path(source).parent.name == "adapters" and source.endswith(".safetensors")
        return (os.link if same and _one_disk(home.folder, to.parent) else shutil.copy2)(source, target)

    shutil.copytree(home.data, to, copy_function=copy)
    return to


def wait_chosen(plan: Plan, server: Server, sender: Client, home: Home) -> str:
    """Ask the server, and wait until it has measured its executors. Returns the one that it chose.

    A quick run does not wait.
    """
    target, body = [server.arm.target(home, 0)], [server.arm.body(["first"])]
    sender.closed(server.port, target, body, [(0, 0)], seconds=0.0)
    until = time.monotonic() + (0.0 if plan.quick else CHOICE_S)
    while time.monotonic() < until:
        if found := _executor(server):
            return found
        time.sleep(1.1)  # the metrics are up to a second old
    return ""


def _executor(server: Server) -> str:
    """Return the executor of the root, or "" while it has not been chosen."""
    text = server.get("/metrics")
    found = re.search(r'hmi_executor\{[^}]*executor="([^"]+)"[^}]*\} 1', text)
    if found is None:
        return ""
    on_device = found[1].startswith("cuda ")  # nothing is measured there
    return found[1] if on_device or "hmi_executor_token_seconds{" in text else ""


def _one_disk(a: Path, b: Path) -> bool:
    return a.stat().st_dev == b.stat().st_dev


def _peers(plan: Plan, models: Path, missing: list[Row]) -> list[Arm]:
    try:
        http_models.write(plan.packages, models)
    except Unavailable as error:
        missing.append(absent("peers", error))
        return []
    kinds: list[Callable[[Path, str, Path | None], Arm]] = [
        http_models.litserve,
        http_models.litserve_batching,
        http_models.infinity,
    ]
    return [kind(models, precision, plan.packages) for kind in kinds for precision in PRECISIONS]
