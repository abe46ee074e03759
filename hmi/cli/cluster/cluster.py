"""`hmi cluster`: servers, lead, up, status, scale, upgrade, leave, down, plan."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import click

from hmi.cli.cluster.plan import plan
from hmi.cli.framework.base import (
    CommandGroup,
    FileCommand,
    FolderCommand,
    ServerCommand,
    as_json,
    pass_session,
)
from hmi.cli.framework.options import Whole
from hmi.cli.framework.output import notes, print_done, print_json, print_table
from hmi.cli.framework.session import CliSession
from hmi.config.settings import DEFAULTS
from hmi.config.values import variable
from hmi.errors import InvalidInput, Unavailable

COLUMNS: Final = {
    "url": "URL",
    "part": "PART",
    "phase": "PHASE",
    "models": "MODELS",
    "texts": "TEXTS",
    "wait_s": "WAIT S",
    "passed": "PASSED ON",
    "answered": "FOR OTHERS",
    "version": "RELEASE",
    "id": "ID",
}
LAPTOP: Final = "127.0.0.2"
"""The name of this machine in a Ray of its own. Ray would replace 127.0.0.1 by an address that others reach.
Some of Ray's processes listen on all addresses all the same, so it always has a token."""
TOKEN: Final = Path("~/.ray/auth_token")
"""Where Ray keeps the token that its clients need, if it wants one."""

STARTS: Final = 3
"""After this many starts a server that ends is not waited for."""
ASKED_S: Final = 5.0
"""Longest wait for a connection to Ray."""


@click.group(cls=CommandGroup)
def cluster() -> None:
    """Many servers that share a bucket (docs/operations/cluster.md)."""


cluster.add_command(plan)


@cluster.command("servers", cls=ServerCommand)
@as_json
@pass_session
def servers(session: CliSession, as_json: bool) -> None:
    """List the servers that share the bucket of the one at --url."""
    found = _called(session, "GET", "/manage/servers")
    if as_json:
        print_json(found)
        return
    print_table([_row(one["url"], one["id"], one["view"]) for one in found["servers"]], COLUMNS, "no servers")


@cluster.command("lead", cls=ServerCommand)
@as_json
@pass_session
def lead(session: CliSession, as_json: bool) -> None:
    """Make the server at --url the primary, which manages and runs jobs."""
    found = _called(session, "POST", "/manage/server/lead")
    print_done(found, f"server {found['id']} is the primary", as_json)


def _on_ray(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option --address."""
    return click.option(
        "--address",
        envvar="RAY_ADDRESS",
        metavar="HOST:PORT",
        help="The Ray to use (environment: RAY_ADDRESS; default: one on this machine).",
    )(function)


@cluster.command("up", cls=FolderCommand)
@_on_ray
@click.option("--bucket", envvar="HMI_BUCKET", required=True, metavar="PLACE", help="What the servers share.")
@click.option(
    "--servers", "least", type=Whole(1, 10_000), default=3, show_default=True, help="Servers at least."
)
@click.option(
    "--most", type=Whole(1, 10_000), help="Servers at most, as load needs them (default: --servers)."
)
@click.option(
    "--host", default="", metavar="ADDRESS", help="Where each server listens (environment: HMI_HOST)."
)
@click.option("--port", type=Whole(1, 65535), default=8080, show_default=True, help="A machine's first port.")
@as_json
@pass_session
def up(
    session: CliSession,
    address: str | None,
    bucket: str,
    least: int,
    most: int | None,
    host: str,
    port: int,
    as_json: bool,
) -> None:
    """Bring up servers on Ray, or take over those that run.

    Without --address, Ray is started on this machine, with a token in ~/.ray. Servers' settings
    are variables of this command's environment (HMI_POOL_BYTES, …). A machine whose Ray was started with
    HMI_DATA or HMI_HOST uses its own.
    """
    session.not_remote("this starts servers, under Ray: leave --url out")
    if most is not None and most < least:
        raise InvalidInput("--most is below --servers: give at least as many", field="most")
    _need_ray()
    from hmi.cluster.controller import ClusterSpec, begin
    from hmi.cluster.keeper import ServerSpec

    most = most or least
    begun = time.monotonic()
    _join(address, most)
    place = bucket if "://" in bucket else str(Path(bucket).absolute())
    settings = {variable("replica_jobs"): "1", **_own_settings()}
    server = ServerSpec(place, settings=settings, key=session.key)
    data = str(session.settings().data)
    here = "" if address else "127.0.0.1"
    spec = ClusterSpec(server, least, most, data, host or os.environ.get("HMI_HOST") or here, port)
    found = begin(spec)
    _await_servers(found, least)
    _show(found, as_json, f"{least} servers are up after {time.monotonic() - begun:.0f} s")


@cluster.command("status", cls=FileCommand)
@_on_ray
@as_json
@pass_session
def status(session: CliSession, address: str | None, as_json: bool) -> None:
    """Show the servers that Ray keeps."""
    _show(_running(address), as_json, "")


@cluster.command("scale", cls=FileCommand)
@_on_ray
@click.argument("least", type=Whole(1, 10_000))
@click.argument("most", type=Whole(1, 10_000), required=False)
@as_json
@pass_session
def scale(session: CliSession, address: str | None, least: int, most: int | None, as_json: bool) -> None:
    """Let there be from LEAST to MOST servers, as load needs them."""
    if most is not None and most < least:
        raise InvalidInput("MOST is below LEAST: give at least as many", field="most")
    found = _running(address)
    import ray

    ray.get(found.resize.remote(least, most or least))
    print_done(
        {"least": least, "most": most or least},
        f"from {least} to {most or least} servers from now on",
        as_json,
    )


@cluster.command("upgrade", cls=FileCommand)
@_on_ray
@click.option(
    "--python", metavar="FILE", help="The interpreter with the new release (default: that of the servers)."
)
@as_json
@pass_session
def upgrade(session: CliSession, address: str | None, python: str | None, as_json: bool) -> None:
    """Start all servers anew, one after another, without a failed call: the primary last."""
    found = _running(address)
    import ray

    names = ray.get(found.upgrade.remote(python))
    print_done({"servers": names}, f"{len(names)} servers started anew", as_json)


@cluster.command("leave", cls=FolderCommand)
@as_json
@pass_session
def leave(session: CliSession, as_json: bool) -> None:
    """Stop the servers of this machine in order, before it ends.

    They are not started again here until Ray is. --data is what 'hmi cluster up' had, or HMI_DATA of the
    machine's Ray.
    """
    session.not_remote("this stops servers of this machine: leave --url out")
    from hmi.cluster.keeper import leave as stop

    stopped = [str(place) for place in stop(session.settings().data)]
    print_done({"folders": stopped}, f"{len(stopped)} servers of this machine have left", as_json)


@cluster.command("down", cls=FileCommand)
@_on_ray
@click.option("--yes", is_flag=True, help="Do not ask.")
@as_json
@pass_session
def down(session: CliSession, address: str | None, yes: bool, as_json: bool) -> None:
    """Stop all servers in order. Nothing is lost: the bucket has everything."""
    found = _running(address)
    if not yes:
        click.confirm("Stop all servers of this cluster?", abort=True, err=True)
    import ray

    ray.get(found.end.remote())
    ray.kill(found, no_restart=True)
    print_done({"servers": []}, "all servers have stopped; 'ray stop' ends Ray itself", as_json)


def _called(session: CliSession, method: str, path: str) -> Any:
    if not session.remote:
        raise InvalidInput("this is about a running server: add --url")
    with session.calls() as calls:
        return calls.request(method, path)


def _row(url: str, id: str, view: Mapping[str, Any] | None) -> dict[str, Any]:
    if view is None:
        return {"url": url, "id": id, "phase": "does not answer"}
    part = "primary" if view["primary"] else "replica"
    return {**view, "url": url, "part": part, "texts": view["since_start"]["texts"]}


def _show(found: Any, as_json: bool, text: str) -> None:
    import ray

    states = ray.get(found.status.remote())
    if as_json:
        print_json(states)
        return
    if text:
        notes.print(text)
    rows = [_row(one["url"], "", one["view"]) for one in states["servers"].values()]
    print_table(rows, COLUMNS, "no servers yet")


def _need_ray() -> None:
    if TOKEN.expanduser().exists():  # to be said before Ray is imported
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    try:
        import ray  # noqa: F401
    except ImportError as error:
        raise InvalidInput(
            "this command needs the extra cluster: pip install 'hmi-server[cluster]'", field="cluster"
        ) from error


def _running(address: str | None) -> Any:
    _need_ray()
    from hmi.cluster.controller import controller

    _connect(address or _local())
    return controller()


def _join(address: str | None, places: int) -> None:
    """Join a Ray, which is started on this machine if none is named and none runs here."""
    if address is None:
        try:
            _connect(_local())
            return
        except Unavailable:
            _start_ray(places)
            address = _local()
    _connect(address)


def _local() -> str:
    return f"{LAPTOP}:6379"


def _connect(address: str) -> None:
    import ray

    from hmi.cluster.controller import NAMESPACE

    host, _, port = address.rpartition("://")[2].rpartition(":")
    try:  # Ray itself would try for minutes
        socket.create_connection((host, int(port)), timeout=ASKED_S).close()
    except (OSError, ValueError) as error:
        raise Unavailable(
            f"no Ray answers at {address}: start one, or leave --address out ({error})"
        ) from error
    own = {"_node_ip_address": host} if host.startswith("127.") else {}
    try:
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR", **own)
    except (ConnectionError, RuntimeError) as error:
        raise Unavailable(f"the Ray at {address} cannot be joined: {error}") from error


def _start_ray(places: int) -> None:
    from hmi.cluster.controller import RESOURCE

    ray = [sys.executable, "-m", "ray.scripts.scripts"]
    if not TOKEN.expanduser().exists():
        subprocess.run([*ray, "get-auth-token", "--generate"], capture_output=True, check=True)
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    command = [*ray, "start", "--head", f"--node-ip-address={LAPTOP}"]
    command += ["--port=6379", "--include-dashboard=false", "--disable-usage-stats"]
    command += ["--object-store-memory=80000000", f'--resources={{"{RESOURCE}": {places}}}']
    command += ["--min-worker-port=20000", "--max-worker-port=20999"]
    ended = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    )
    if ended.returncode:
        raise Unavailable(f"Ray did not start: {ended.stderr[-500:] or ended.stdout[-500:]}")


def _own_settings() -> dict[str, str]:
    """The settings of this command's environment that concern every server."""
    own = {"data", "bucket", "role", "node_url", "host", "port", "grpc_port"}
    names = (variable(name) for name in DEFAULTS if name not in own)
    return {name: os.environ[name] for name in names if name in os.environ}


def _await_servers(found: Any, wanted: int) -> None:
    """Wait until so many servers answer, and one of them is the primary."""
    import ray

    from hmi.cluster.keeper import READY_S

    until = time.monotonic() + READY_S
    with notes.status("starting") as shown:
        while True:
            states = ray.get(found.status.remote())
            views = [one["view"] for one in states["servers"].values() if one["view"]]
            ready = [view for view in views if view["ready"]]
            if len(ready) >= wanted and any(view["primary"] for view in views):
                return
            for one in states["servers"].values():
                if one["ended"] and one["starts"] >= STARTS:
                    raise Unavailable(f"the server at {one['url']} ends whenever it starts: {one['ended']}")
            shown.update(f"{len(ready)} of {wanted} servers answer {states['trouble']}")
            if time.monotonic() > until:
                raise Unavailable(
                    f"only {len(ready)} of {wanted} servers answer after {READY_S:.0f} s: see the logs "
                    "beside their data folders, and 'ray status' for places"
                )
            time.sleep(0.5)
