"""`hmi tenant` and `hmi key`."""

from __future__ import annotations

from typing import Any

import click

from hmi.cli.base import Group, as_json, pass_session
from hmi.cli.onboard import onboard
from hmi.cli.options import confirm, yes_option
from hmi.cli.output import notes, print_done, print_json, print_table
from hmi.cli.session import Calls, Session, segment
from hmi.errors import NotFound

ONCE = "the key is shown only once: store it now"
ADMINISTRATORS = (
    "administrators' keys are created, listed and revoked on the data folder itself: leave --url out and "
    "give --data"
)


@click.group(cls=Group)
def tenant() -> None:
    """Tenants: owners of models and keys."""


WEIGHT = "Its share of compute beside other tenants that wait: twice the weight, twice the time."


@tenant.command()
@click.argument("name")
@click.option("--weight", type=float, default=1.0, show_default=True, help=WEIGHT)
@as_json
@pass_session
def create(session: Session, name: str, weight: float, as_json: bool) -> None:
    """Create the tenant NAME and print its first key."""
    with session.calls(creates=True) as calls:
        made = calls.request("POST", "/manage/tenants", {"tenant": name, "weight": weight})
    _print_key(made, as_json)


@tenant.command("set")
@click.argument("name")
@click.option("--weight", type=float, required=True, help=WEIGHT)
@as_json
@pass_session
def set_(session: Session, name: str, weight: float, as_json: bool) -> None:
    """Change a tenant's settings. They hold from its next call on."""
    with session.calls() as calls:
        found = calls.request("PATCH", f"/manage/tenants/{segment(name)}", {"weight": weight})
    print_done(found, f"{name}: weight {found['weight']:g}", as_json)


@tenant.command("list")
@as_json
@pass_session
def list_(session: Session, as_json: bool) -> None:
    """List the tenants."""
    with session.calls() as calls:
        tenants = calls.request("GET", "/manage/tenants")["tenants"]
    if as_json:
        print_json(tenants)
    else:
        columns = {"tenant": "TENANT", "weight": "WEIGHT", "created": "CREATED"}
        print_table(tenants, columns, "no tenants yet: 'hmi tenant create NAME' creates one")


@tenant.command()
@click.argument("name")
@yes_option
@as_json
@pass_session
def delete(session: Session, name: str, yes: bool, as_json: bool) -> None:
    """Delete the tenant NAME with its models, keys and jobs."""
    with session.calls() as calls:
        confirm(f"the tenant {name} with its models, keys and jobs", yes, lambda: _look(calls, name))
        found = calls.request("DELETE", f"/manage/tenants/{segment(name)}")
    print_done({"deleted": name, **found}, f"{name} is deleted", as_json)


tenant.add_command(onboard)


@click.group(cls=Group)
def key() -> None:
    """Access keys, stored as hashes."""


@key.command("create")
@click.argument("tenant", required=False)
@click.option(
    "--admin",
    is_flag=True,
    help="Create an administrator's key, on a data folder only. From then on every request needs a key.",
)
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    type=click.Choice(["infer", "manage"]),
    help="What the key may do. Repeatable.  [default: both]",
)
@as_json
@pass_session
def create_key(
    session: Session, tenant: str | None, admin: bool, scopes: tuple[Any, ...], as_json: bool
) -> None:
    """Create a key for TENANT, or with --admin for an administrator, and print it."""
    if admin == (tenant is not None):
        raise click.UsageError("give either a tenant's name or --admin")
    if tenant is None:
        session.not_remote(ADMINISTRATORS)
        with session.local(creates=True) as local:
            record, plain = local.services.manager.create_key(None, scopes or ("admin",))
        _print_key({"key_id": record.key_id, "key": plain}, as_json)
        return
    body = {"scopes": list(scopes)} if scopes else {}
    with session.calls() as calls:
        _print_key(calls.request("POST", f"/manage/tenants/{segment(tenant)}/keys", body), as_json)


@key.command("list")
@click.argument("tenant", required=False)
@as_json
@pass_session
def list_keys(session: Session, tenant: str | None, as_json: bool) -> None:
    """List the keys of TENANT, or without TENANT the administrators' keys (on a data folder only)."""
    if tenant is None:
        session.not_remote(ADMINISTRATORS)
        with session.local() as local:
            from hmi.api.views import key_view

            keys = [key_view(k).model_dump(mode="json") for k in local.services.manager.registry.keys(None)]
    else:
        with session.calls() as calls:
            keys = calls.request("GET", f"/manage/tenants/{segment(tenant)}/keys")["keys"]
    if as_json:
        print_json(keys)
    else:
        columns = {"key_id": "KEY ID", "tenant": "TENANT", "scopes": "SCOPES", "created": "CREATED"}
        print_table(keys, columns, "no keys: 'hmi key create' creates one")


@key.command()
@click.argument("key_id")
@click.argument("tenant", required=False)
@as_json
@pass_session
def revoke(session: Session, key_id: str, tenant: str | None, as_json: bool) -> None:
    """Revoke the key KEY_ID (see 'hmi key list'). With --url, TENANT is required."""
    if tenant is None:
        session.not_remote(f"{ADMINISTRATORS}, or add the TENANT that the key belongs to")
        with session.local() as local:
            local.services.manager.revoke_key(key_id)
    else:
        with session.calls() as calls:
            calls.request("DELETE", f"/manage/tenants/{segment(tenant)}/keys/{segment(key_id)}")
    print_done({"revoked": key_id}, f"key {key_id} is revoked", as_json)


def _look(calls: Calls, name: str) -> None:
    """Raises NotFound unless the tenant exists."""
    if all(tenant["tenant"] != name for tenant in calls.request("GET", "/manage/tenants")["tenants"]):
        raise NotFound(f"there is no tenant {name!r}: see 'hmi tenant list'")


def _print_key(made: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(made)
        return
    notes.print(f"key id {made['key_id']}; {ONCE}")
    click.echo(made["key"])
