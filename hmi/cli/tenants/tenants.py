"""`hmi tenant`."""

from __future__ import annotations

from typing import Any

import click

from hmi.cli.framework.base import CommandGroup, as_json, pass_session
from hmi.cli.framework.limits import given_limits, in_words, limit_options, quota_fields
from hmi.cli.framework.options import confirm, yes_option
from hmi.cli.framework.output import print_done, print_fields, print_json, print_table
from hmi.cli.framework.session import Calls, CliSession, segment
from hmi.cli.tenants.keys import print_key
from hmi.cli.tenants.onboard import onboard
from hmi.errors import NotFound


@click.group(cls=CommandGroup)
def tenant() -> None:
    """Tenants: owners of models and keys."""


WEIGHT = "Its share of compute beside other tenants that wait: twice the weight, twice the time."


@tenant.command()
@click.argument("name")
@click.option("--weight", type=float, default=1.0, show_default=True, help=WEIGHT)
@limit_options
@as_json
@pass_session
def create(session: CliSession, name: str, weight: float, as_json: bool, **limits: Any) -> None:
    """Create the tenant NAME and print its first key."""
    body = {"tenant": name, "weight": weight, "limits": given_limits(limits)}
    with session.calls(creates=True) as calls:
        made = calls.request("POST", "/manage/tenants", body)
    print_key(made, as_json)


@tenant.command("set")
@click.argument("name")
@click.option("--weight", type=float, help=WEIGHT)
@limit_options
@as_json
@pass_session
def set_(session: CliSession, name: str, weight: float | None, as_json: bool, **limits: Any) -> None:
    """Change a tenant's weight or limits. They hold from its next call on."""
    changes: dict[str, Any] = {} if weight is None else {"weight": weight}
    if changed := given_limits(limits):
        changes["limits"] = changed
    if not changes:
        raise click.UsageError("nothing to change: give --weight or a limit such as --requests-per-s")
    with session.calls() as calls:
        found = calls.request("PATCH", f"/manage/tenants/{segment(name)}", changes)
    print_done(found, f"{name}: weight {found['weight']:g}; limits: {in_words(found['limits'])}", as_json)


@tenant.command()
@click.argument("name")
@as_json
@pass_session
def show(session: CliSession, name: str, as_json: bool) -> None:
    """Show a tenant, and what is left of its limits."""
    with session.calls(server=True) as calls:
        found = calls.request("GET", f"/manage/tenants/{segment(name)}")
    if as_json:
        print_json(found)
        return
    own = {"tenant": name, "created": found["created"], "weight": found["weight"]}
    print_fields({**own, "limits": in_words(found["limits"]), **quota_fields(found["quota"])})


@tenant.command("list")
@as_json
@pass_session
def list_(session: CliSession, as_json: bool) -> None:
    """List the tenants."""
    with session.calls() as calls:
        tenants = calls.request("GET", "/manage/tenants")["tenants"]
    if as_json:
        print_json(tenants)
    else:
        columns = {"tenant": "TENANT", "weight": "WEIGHT", "limits": "LIMITS", "created": "CREATED"}
        rows = [{**found, "limits": in_words(found["limits"])} for found in tenants]
        print_table(rows, columns, "no tenants yet: 'hmi tenant create NAME' creates one")


@tenant.command()
@click.argument("name")
@yes_option
@as_json
@pass_session
def delete(session: CliSession, name: str, yes: bool, as_json: bool) -> None:
    """Delete the tenant NAME with its models, keys and jobs."""
    with session.calls() as calls:
        confirm(f"the tenant {name} with its models, keys and jobs", yes, lambda: _look(calls, name))
        found = calls.request("DELETE", f"/manage/tenants/{segment(name)}")
    print_done({"deleted": name, **found}, f"{name} is deleted", as_json)


def _look(calls: Calls, name: str) -> None:
    """Raises NotFound unless the tenant exists."""
    if all(tenant["tenant"] != name for tenant in calls.request("GET", "/manage/tenants")["tenants"]):
        raise NotFound(f"there is no tenant {name!r}: see 'hmi tenant list'")


tenant.add_command(onboard)
