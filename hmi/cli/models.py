"""`hmi model`: create, update, list, show, roll back, delete."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hmi.cli.base import Group, as_json, pass_session
from hmi.cli.options import FILE, confirm, job_options, settings_option, yes_option
from hmi.cli.output import notes, print_fields, print_json, print_table, size
from hmi.cli.progress import finish
from hmi.cli.session import Session

TASKS = click.Choice(["classification", "pair", "tagging"])
PAGE = 1000


@click.group(cls=Group)
def model() -> None:
    """Models: each a tenant's own, named TENANT.MODEL."""


@model.command()
@click.argument("name", metavar="TENANT.MODEL")
@click.argument("data", type=FILE)
@click.option("--domain", required=True, help="The domain it builds on, root/branch.")
@click.option("--task", type=TASKS, default="classification", show_default=True)
@click.option("--dev", type=FILE, help="Held-out rows (default: a share of the data).")
@settings_option()
@job_options
@pass_session
def create(
    session: Session, name: str, data: Path, domain: str, task: str, dev: Path | None,
    options: dict[str, Any], detach: bool, as_json: bool,
) -> None:  # fmt: skip
    """Fine-tune a new model on the rows of DATA (JSONL)."""
    session.may_start_jobs()
    body = {"model": name, "domain": domain, "task": task, "options": options}
    with session.calls() as calls:
        job = calls.request("POST", "/manage/models", body, _files(data, dev))["job"]
        finish(session, calls, job, detach=detach, as_json=as_json)


@model.command()
@click.argument("name", metavar="TENANT.MODEL")
@click.argument("data", type=FILE)
@click.option("--dev", type=FILE, help="Held-out rows (default: a share of the data).")
@settings_option()
@job_options
@pass_session
def update(
    session: Session, name: str, data: Path, dev: Path | None, options: dict[str, Any], detach: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Fine-tune a new version on the rows of DATA; the old one answers until it is there."""
    session.may_start_jobs()
    with session.calls() as calls:
        path = f"/manage/models/{name}/update"
        job = calls.request("POST", path, {"options": options}, _files(data, dev))["job"]
        finish(session, calls, job, detach=detach, as_json=as_json)


@model.command("list")
@click.option("--tenant", help="Only this tenant's.")
@click.option("--domain", help="Only those on this domain.")
@click.option("--task", type=TASKS, help="Only those for this task.")
@as_json
@pass_session
def list_(session: Session, tenant: str | None, domain: str | None, task: str | None, as_json: bool) -> None:
    """List the models."""
    query = {"tenant": tenant, "domain": domain, "task": task, "limit": str(PAGE)}
    given = {name: value for name, value in query.items() if value is not None}
    models: list[dict[str, Any]] = []
    with session.calls() as calls:
        while True:
            page = calls.request("GET", "/manage/models", query=given)
            models += page["models"]
            if page["next"] is None:
                break
            given["after"] = page["next"]
    if as_json:
        print_json(models)
        return
    rows = [{**m, "versions": len(m["versions"]), "bytes": size(m["bytes"])} for m in models]
    columns = {"model": "MODEL", "domain": "DOMAIN", "task": "TASK", "labels": "LABELS",
               "current": "CURRENT", "versions": "VERSIONS", "bytes": "SIZE"}  # fmt: skip
    print_table(rows, columns, "no models: 'hmi model create' makes one")


@model.command()
@click.argument("name", metavar="TENANT.MODEL")
@as_json
@pass_session
def show(session: Session, name: str, as_json: bool) -> None:
    """Show a model and its versions."""
    with session.calls() as calls:
        found = calls.request("GET", f"/manage/models/{name}")
    if as_json:
        print_json(found)
        return
    versions = found.pop("versions")
    print_fields({**found, "bytes": size(found["bytes"])})
    print_table(versions, {"version": "VERSION", "created": "CREATED", "domain": "DOMAIN",
                           "plot_version": "PLOT", "metrics": "METRICS"}, "no versions")  # fmt: skip


@model.command()
@click.argument("name", metavar="TENANT.MODEL")
@click.argument("version", type=int)
@pass_session
def rollback(session: Session, name: str, version: int) -> None:
    """Let an older VERSION answer."""
    with session.calls() as calls:
        calls.request("POST", f"/manage/models/{name}/rollback", {"version": version})
    notes.print(f"{name} is at version {version}")


@model.command()
@click.argument("name", metavar="TENANT.MODEL")
@yes_option
@pass_session
def delete(session: Session, name: str, yes: bool) -> None:
    """Delete a model with all its versions."""
    confirm(f"the model {name} with all its versions", yes)
    with session.calls() as calls:
        calls.request("DELETE", f"/manage/models/{name}")
    notes.print(f"{name} is deleted")


def _files(data: Path, dev: Path | None) -> dict[str, Path]:
    return {"data": data} if dev is None else {"data": data, "dev": dev}
