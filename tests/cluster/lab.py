"""A cluster on this machine: Ray with three nodes on loopback addresses of their own, and a bucket. Each node
has a server and a data folder of its own."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hmi
from hmi.api.process.lock import live_server
from hmi.cli.framework.client import HttpClient
from hmi.errors import HmiError

PYTHON = str(Path(os.environ.get("HMI_CLUSTER", sys.executable)).absolute())
"""The interpreter that has Ray."""
HEAD = "127.0.0.2"
NODES = (HEAD, "127.0.0.3", "127.0.0.4")
RAY_PORT, SERVER_PORT = 6390, 18090
ROUND_S = 240.0


@dataclass
class Cluster:
    """Ray, its servers, and what they answered before anything happened to them."""

    work: Path
    tenants: list[str]
    redis: bool = False
    rays: dict[str, list[int]] = field(default_factory=dict)
    """The processes of each node's Ray, by address."""
    right: dict[str, list[float]] = field(default_factory=dict)

    @property
    def bucket(self) -> Path:
        return self.work / "bucket"

    def data(self, node: str) -> Path:
        return self.work / node / "data"

    def environment(self, node: str) -> dict[str, str]:
        source = str(Path(hmi.__file__).parent.parent)
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([source, f"{source}/kernels"]),
            "HMI_DATA": str(self.data(node)),
            "HMI_HOST": node,
            "HMI_PORT": str(SERVER_PORT),
            "HMI_IMPROVE": "false",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": "t" * 64,
            # A node whose head is away waits this long for it, and then ends.
            "RAY_gcs_rpc_server_reconnect_timeout_s": "20",
            "OMP_NUM_THREADS": "1",
        }

    def start_ray(self, node: str) -> None:
        before = set(processes("ray"))
        first = 20000 + 300 * NODES.index(node)
        command = [PYTHON, "-m", "ray.scripts.scripts", "start", f"--node-ip-address={node}", "--num-cpus=1"]
        command += [f"--min-worker-port={first}", f"--max-worker-port={first + 200}", "--disable-usage-stats"]
        command += ["--object-store-memory=80000000", '--resources={"hmi_server": 1}']
        if node == HEAD:
            command += ["--head", f"--port={RAY_PORT}", "--include-dashboard=false"]
        else:
            command += [f"--address={HEAD}:{RAY_PORT}"]
        done = subprocess.run(
            command, env=self.environment(node), capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr
        self.rays[node] = [pid for pid in processes("ray") if pid not in before]

    def kill_ray(self, node: str) -> None:
        for pid in self.rays.pop(node):
            kill(pid)

    def hmi(self, *arguments: str) -> Any:
        command = [PYTHON, "-m", "hmi", "cluster", *arguments, "--address", f"{HEAD}:{RAY_PORT}", "--json"]
        done = subprocess.run(
            command, env=self.environment(HEAD), capture_output=True, text=True, timeout=2 * ROUND_S
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    def up(self) -> Any:
        return self.hmi("up", "--bucket", str(self.bucket), "--servers", "3")

    def server(self, node: str) -> Any:
        """The server that runs on a node; None if none does."""
        return live_server(self.data(node) / "1")

    def client(self, node: str) -> HttpClient:
        return HttpClient(f"http://{node}:{SERVER_PORT}", timeout_s=30.0)

    def view(self, node: str) -> dict[str, Any] | None:
        with suppress(HmiError):
            found: dict[str, Any] = self.client(node).request("GET", "/manage/server")
            return found
        return None

    def primary(self) -> str | None:
        return next((node for node in NODES if (view := self.view(node)) and view["primary"]), None)

    def whole(self) -> bool:
        """Return whether all servers answer, are listed, and one of them is the primary."""
        views = [self.view(node) for node in NODES]
        if not all(view and view["ready"] for view in views) or sum(v["primary"] for v in views if v) != 1:
            return False
        return len(self.client(HEAD).request("GET", "/manage/servers")["servers"]) == len(NODES)

    def await_whole(self) -> float:
        """Wait until the cluster is whole; returns the seconds that it took."""
        began = time.monotonic()
        while not self.whole():
            assert time.monotonic() - began < ROUND_S, [self.view(node) for node in NODES]
            time.sleep(0.25)
        return time.monotonic() - began

    def all_tenants(self) -> set[str]:
        page = self.client(HEAD).request("GET", "/manage/tenants")
        return {one["tenant"] for one in page["tenants"]}

    def embed(self, node: str, tenant: str) -> list[float]:
        found = self.client(node).request("POST", f"/infer/{tenant}.e", {"inputs": ["good market"]})
        return [round(value, 3) for value in found["outputs"][0]["embedding"]]


@dataclass
class Load:
    """What callers saw while something happened to the cluster."""

    answers: int = 0
    wrong: list[str] = field(default_factory=list)
    failed: Counter[str] = field(default_factory=Counter)
    """Calls that failed, by the server that was called."""
    unanswered: int = 0
    """Calls that failed at another server, too."""
    created: list[str] = field(default_factory=list)
    """Tenants whose creation was acknowledged."""
    refused: int = 0
    longest_s: float = 0.0
    """The longest time without an acknowledged change."""


@contextmanager
def load(cluster: Cluster, name: str) -> Iterator[Load]:
    """While the block runs, each server is asked by a caller of its own, and tenants are created at any.

    A caller whose server fails asks another one, as a load balancer does.
    """
    found, over = Load(), threading.Event()

    def ask(node: str) -> None:
        draw = random.Random(node)
        while not over.is_set():
            tenant = draw.choice(cluster.tenants)
            for at in (node, NODES[NODES.index(node) - 1]):
                try:
                    got = cluster.embed(at, tenant)
                except HmiError:
                    found.failed[at] += 1
                    continue
                found.answers += 1
                if got != cluster.right[tenant]:
                    found.wrong.append(f"{tenant} at {at}")
                break
            else:
                found.unanswered += 1
                time.sleep(0.05)

    def change() -> None:
        draw, number, last = random.Random(name), 0, time.monotonic()
        while not over.is_set():
            number += 1
            tenant = f"{name}-{number}"
            try:
                cluster.client(draw.choice(NODES)).request("POST", "/manage/tenants", {"tenant": tenant})
                found.created.append(tenant)
                found.longest_s, last = max(found.longest_s, time.monotonic() - last), time.monotonic()
            except HmiError:
                found.refused += 1
            time.sleep(0.2)

    threads = [threading.Thread(target=ask, args=(node,)) for node in NODES]
    threads.append(threading.Thread(target=change))
    for thread in threads:
        thread.start()
    try:
        yield found
    finally:
        over.set()
        for thread in threads:
            thread.join()


def processes(name: str) -> list[int]:
    """The processes of this user whose command line contains a name."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                words = (folder / "cmdline").read_bytes().split(b"\0")
                if any(name.encode() in word for word in words[:3]) and int(folder.name) != os.getpid():
                    found.append(int(folder.name))
    return found


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def is_free(address: str, port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex((address, port)) != 0
