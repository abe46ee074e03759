"""A cluster on this machine: Ray with three nodes and a bucket. Each node has a server and a data folder of
its own, and where the machine allows it a network namespace; else a loopback address."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
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
APART = os.geteuid() == 0 and bool(shutil.which("ip")) and bool(shutil.which("nsenter"))
"""Whether nodes have network namespaces of their own, joined by a bridge."""
NODES = tuple(f"10.213.0.{i}" if APART else f"127.0.0.{i}" for i in (2, 3, 4))
HEAD, BRIDGE = NODES[0], "10.213.0.1"
RAY_PORT, REDIS_PORT, SERVER_PORT = 6390, 6391, 18090
ROUND_S = 240.0


@dataclass
class Cluster:
    """Ray, its servers, and what they answered before anything happened to them."""

    work: Path
    tenants: list[str]
    key: str
    """An administrator's: servers listen on more than loopback."""
    redis: subprocess.Popen[bytes] | None = None
    """Where Ray's head keeps what it knows, if anywhere."""
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
            **{name: value for name, value in os.environ.items() if name != "HMI_CLUSTER"},
            "PYTHONPATH": os.pathsep.join([source, f"{source}/kernels"]),
            "HMI_DATA": str(self.data(node)),
            "HMI_HOST": node,
            "HMI_KEY": self.key,
            "HMI_PORT": str(SERVER_PORT),
            "HMI_IMPROVE": "false",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": "t" * 64,
            "OMP_NUM_THREADS": "1",
            **self._head(),
        }

    def _head(self) -> dict[str, str]:
        """Where Ray keeps what its head knows; or how long nodes wait for a head that does not come back."""
        if self.redis is None:
            return {"RAY_gcs_rpc_server_reconnect_timeout_s": "20"}
        return {"RAY_REDIS_ADDRESS": f"{HEAD}:{REDIS_PORT}"}

    def start_redis(self) -> None:
        """Let the head keep what it knows in Redis, beside its Ray, from its next start on."""
        command = [*inside(HEAD), "redis-server", "--bind", HEAD, "--port", str(REDIS_PORT), "--save", ""]
        self.redis = subprocess.Popen([*command, "--protected-mode", "no"], stdout=subprocess.DEVNULL)

    def start_ray(self, node: str) -> None:
        before = set(processes("ray"))
        first = 20000 + 300 * NODES.index(node)
        command = [*inside(node), PYTHON, "-m", "ray.scripts.scripts", "start", f"--node-ip-address={node}"]
        command += ["--num-cpus=1"]
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
        if node == HEAD:
            # By this file, and processes that nodes share here, Ray would believe that the head runs.
            Path("/tmp/ray/ray_current_cluster").unlink(missing_ok=True)

    def hmi(self, *arguments: str) -> Any:
        command = [*inside(HEAD), PYTHON, "-m", "hmi", "cluster", *arguments]
        command += ["--address", f"{HEAD}:{RAY_PORT}", "--json"]
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
        return HttpClient(f"http://{node}:{SERVER_PORT}", self.key, timeout_s=30.0)

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


@contextmanager
def networks() -> Iterator[None]:
    """While the block runs, each node has its network, if this machine gives it one."""
    if not APART:
        yield
        return
    _remove_networks()
    _ip("link add hmibr type bridge", f"addr add {BRIDGE}/24 dev hmibr", "link set hmibr up")
    for node in NODES:
        name, link = _name(node), f"v{_name(node)}"
        _ip(f"netns add {name}", f"link add {link} type veth peer name eth0 netns {name}")
        _ip(f"link set {link} master hmibr up", f"-n {name} addr add {node}/24 dev eth0")
        _ip(f"-n {name} link set eth0 up", f"-n {name} link set lo up")
    try:
        yield
    finally:
        _remove_networks()


def connect(node: str, *, up: bool) -> None:
    """Cut a node off from all others and from the callers, or connect it again. Its bucket stays."""
    _ip(f"link set v{_name(node)} {'up' if up else 'down'}")


def inside(node: str) -> list[str]:
    """What runs a command in the network of a node."""
    return ["nsenter", f"--net=/run/netns/{_name(node)}"] if APART else []


def _name(node: str) -> str:
    return f"hmi{node.rpartition('.')[2]}"


def _remove_networks() -> None:
    for node in NODES:
        subprocess.run(["ip", "netns", "del", _name(node)], capture_output=True)
        subprocess.run(["ip", "link", "del", f"v{_name(node)}"], capture_output=True)
    subprocess.run(["ip", "link", "del", "hmibr"], capture_output=True)


def _ip(*commands: str) -> None:
    for command in commands:
        subprocess.run(["ip", *command.split()], check=True)


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
