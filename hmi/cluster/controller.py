"""The cluster on Ray: an actor that decides how many servers there are, and an actor beside each server.

Ray places the actors, restarts them, and brings machines for those that have no place. Calls never pass
through Ray: they go to the servers' own listeners, which pass them to the tenant's server (`hmi.api.nodes`).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import ray

from hmi.cluster.keeper import LOOK_S, Keeper, ServerSpec
from hmi.cluster.scaling import Scaling
from hmi.errors import Unavailable

log = logging.getLogger("hmi.cluster")
NAMESPACE: Final = "hmi"
CONTROLLER: Final = "hmi-controller"
SERVER: Final = "hmi-server-"
RESOURCE: Final = "hmi_server"
"""The resource of Ray that a machine has one of for each server that it may run."""
ANSWER_S: Final = 5.0
"""A keeper that does not answer within this many seconds counts as away."""
PROMOTE_S: Final = 3.0
"""Another server becomes the primary when none has been seen for this many seconds."""


@dataclass(frozen=True)
class ClusterSpec:
    """What a cluster is to be."""

    server: ServerSpec
    least: int
    most: int
    data: str
    """The folder of servers' data folders, on machines whose environment has no HMI_DATA."""
    host: str
    """The address to listen on, on machines whose environment has no HMI_HOST; "" = Ray's address of the
    machine."""
    port: int


class NodeKeeper(Keeper):
    """A keeper as an actor, which takes folder and address from the environment of the machine's Ray."""

    def __init__(self, spec: ClusterSpec) -> None:
        address = ray.util.get_node_ip_address()
        host, port = (
            os.environ.get("HMI_HOST") or spec.host or address,
            os.environ.get("HMI_PORT") or spec.port,
        )
        folder = Path(os.environ.get("HMI_DATA") or spec.data).absolute()
        super().__init__(spec.server, folder, host, int(port), address)


class Controller:
    """Keeps the number of servers, and a primary among them."""

    def __init__(self, spec: ClusterSpec) -> None:
        self._spec = spec
        self._scaling = Scaling(spec.least, spec.most)
        self._wanted = max(spec.least, len(_keepers()))
        self._primary_seen = time.monotonic()
        self._computed: dict[str, tuple[float, float]] = {}
        """When each server was last seen, and the seconds that it had computed by then, by its name."""
        self._states: dict[str, dict[str, Any]] = {}
        self._told = ""
        self._busy, self._ending = threading.Lock(), threading.Event()
        threading.Thread(target=self._run, name="hmi-controller", daemon=True).start()

    def status(self) -> dict[str, Any]:
        """How many servers there are to be, and how each one stands."""
        return {"wanted": self._wanted, "servers": dict(self._states), "trouble": self._told}

    def resize(self, least: int, most: int) -> None:
        """Let there be from `least` to `most` servers from now on."""
        with self._busy:
            self._scaling = Scaling(least, most)
            self._wanted = max(least, min(most, self._wanted))

    def upgrade(self, python: str | None) -> list[str]:
        """Start all servers anew, one after another, as `python` has them; the primary comes last.

        Each server lets the others load its models before it ends. Returns the names. Raises Unavailable.
        """
        with self._busy:
            server = replace(self._spec.server, python=python or self._spec.server.python)
            self._spec = replace(self._spec, server=server)
            states = self._look()
            order = sorted(states, key=lambda name: _is_primary(states[name]))
            for name in order:
                if _is_primary(states[name]) and len(order) > 1:
                    ray.get(_keepers()[order[0]].lead.remote())
                ray.get(_keepers()[name].renew.remote(server))
            return order

    def end(self) -> None:
        """Stop all servers in order."""
        self._ending.set()
        with self._busy:
            for name in list(_keepers()):
                self._remove(name)

    def _run(self) -> None:
        while not self._ending.wait(2 * LOOK_S):
            try:
                with self._busy:
                    self._round()
                self._told = ""
            except Exception as error:  # whatever it was: servers go on, and the next round tries again
                if str(error) != self._told:
                    log.exception("a round of the controller failed; the next one follows")
                self._told = str(error) or type(error).__name__

    def _round(self) -> None:
        have = _keepers()
        for i in range(self._wanted):
            if f"{SERVER}{i}" not in have:
                _keep(f"{SERVER}{i}", self._spec)
        for name in list(have):
            if int(name.removeprefix(SERVER)) >= self._wanted:
                self._remove(name)
        self._states = states = self._look()
        views = {name: state["view"] for name, state in states.items() if state["view"]}
        ready = {name: view for name, view in views.items() if view["ready"]}
        at = time.monotonic()
        if any(view["primary"] for view in views.values()) or not ready:
            self._primary_seen = at
        elif at - self._primary_seen >= PROMOTE_S:
            name = max(ready, key=lambda one: ready[one]["position"])
            keeper = _keepers()[name]
            if not ray.get(keeper.sees_primary.remote()):  # else only its keeper is away
                log.warning("no primary: %s becomes it", states[name]["url"])
                ray.get(keeper.lead.remote())
        busy = [self._busy_share(name, view, at) for name, view in ready.items()]
        if len(ready) == self._wanted:  # else some are coming or going
            self._wanted = self._scaling.decide([view["wait_s"] for view in ready.values()], busy, at)

    def _busy_share(self, name: str, view: dict[str, Any], at: float) -> float:
        """The share of the time since the last look in which a server computed."""
        seconds = view["since_start"]["compute_ms"] / 1e3
        before, had = self._computed.get(name, (at, seconds))
        self._computed[name] = at, seconds
        return max(0.0, seconds - had) / max(at - before, 1e-9) if at > before else 0.0

    def _look(self) -> dict[str, dict[str, Any]]:
        """The states of the keepers that answer, by name."""
        asked = {keeper.state.remote(): name for name, keeper in _keepers().items()}
        done, late = ray.wait(list(asked), num_returns=len(asked), timeout=ANSWER_S) if asked else ([], [])
        for one in late:
            ray.cancel(one, force=False)
        found = {}
        for one in done:
            try:
                found[asked[one]] = ray.get(one)
            except ray.exceptions.RayError as error:
                log.warning("%s does not answer: %s", asked[one], error)
        return found

    def _remove(self, name: str) -> None:
        keeper = _keepers()[name]
        try:
            ray.get(keeper.end.remote(), timeout=120)
        except ray.exceptions.RayError as error:
            log.warning("%s could not stop its server in order: %s", name, error)
        ray.kill(keeper, no_restart=True)


def _keep(name: str, spec: ClusterSpec) -> None:
    ray.remote(NodeKeeper).options(
        name=name,
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        num_cpus=0,
        resources={RESOURCE: 1},
        max_restarts=-1,
        max_concurrency=4,
        scheduling_strategy="SPREAD",
    ).remote(spec)


def _keepers() -> dict[str, Any]:
    """The actors beside servers, by name, also those that wait for a place."""
    named = [one["name"] for one in ray.util.list_named_actors(all_namespaces=True)]
    found = {}
    for name in sorted(one for one in named if one.startswith(SERVER)):
        try:
            found[name] = ray.get_actor(name, NAMESPACE)
        except ValueError:  # it has just ended
            continue
    return found


def _is_primary(state: dict[str, Any]) -> bool:
    return bool(state["view"] and state["view"]["primary"])


def controller() -> Any:
    """The actor that decides. Raises Unavailable if the cluster is not up."""
    try:
        return ray.get_actor(CONTROLLER, NAMESPACE)
    except ValueError:
        raise Unavailable("no HMI runs on this Ray: start it with 'hmi cluster up'") from None


def begin(spec: ClusterSpec) -> Any:
    """Start the actor that decides, on a Ray that this process has joined. One that runs stays as it is."""
    return (
        ray.remote(Controller)
        .options(
            name=CONTROLLER,
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            max_restarts=-1,
            max_concurrency=8,
        )
        .remote(spec)
    )
