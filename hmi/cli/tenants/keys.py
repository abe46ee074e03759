"""`hmi key`: access keys of tenants, and those of administrators, which are made on the data folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from hmi.cli.framework.base import CommandGroup, as_json, pass_session
from hmi.cli.framework.options import Number
from hmi.cli.framework.output import notes, print_done, print_json, print_table
from hmi.cli.framework.session import CliSession, segment

if TYPE_CHECKING:
    from hmi.api.process.local import LocalCalls

ONCE = "the key is shown only once: store it now"
ADMINISTRATORS = (
    "administrators' keys are created, listed, rotated and revoked on the data folder itself: leave --url "
    "out and give --data"
)
MAX_DAYS = 3650


class Time(click.ParamType):  # type: ignore[type-arg]  # click 8.1 has no argument there
    """A time with its offset, in RFC 3339."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            found = datetime.fromisoformat(value)
        except ValueError:
            found = datetime.min
        if found.tzinfo is None:
            self.fail(f"{value!r} is not a time with its offset: give one like 2030-01-31T12:00:00Z")
        return found


expires_option = click.option(
    "--expires", type=Time(), metavar="TIME", help="When the new key ends, such as 2030-01-31T12:00:00Z."
)
days_option = click.option("--days", type=Number(0, MAX_DAYS), help="Days until the new key ends.")
label_option = click.option("--label", help="A name for people, such as where the key is used.")


@click.group(cls=CommandGroup)
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
@days_option
@expires_option
@label_option
@as_json
@pass_session
def create(
    session: CliSession,
    tenant: str | None,
    admin: bool,
    scopes: tuple[Any, ...],
    days: float | None,
    expires: datetime | None,
    label: str | None,
    as_json: bool,
) -> None:
    """Create a key for TENANT, or with --admin for an administrator, and print it."""
    if admin == (tenant is not None):
        raise click.UsageError("give either a tenant's name or --admin")
    until = _expiry_of(days, expires)
    if tenant is None:
        with (
            _administrators(session, creates=True) as local,
            local.recorded("hmi key create --admin") as named,
        ):
            made = local.services.manager.tenants.create_key(
                None, scopes or ("admin",), expires=until, label=label or ""
            )
            named["key_id"] = made[0].key_id
        print_key({"key_id": made[0].key_id, "key": made[1]}, as_json)
        return
    body: dict[str, Any] = {"scopes": list(scopes)} if scopes else {}
    body |= _times(until) | ({} if label is None else {"label": label})
    with session.calls() as calls:
        print_key(calls.request("POST", f"/manage/tenants/{segment(tenant)}/keys", body), as_json)


@key.command("list")
@click.argument("tenant", required=False)
@as_json
@pass_session
def list_(session: CliSession, tenant: str | None, as_json: bool) -> None:
    """List the keys of TENANT, or without TENANT the administrators' keys (on a data folder only)."""
    if tenant is None:
        with _administrators(session) as local:
            keys = _listed(local)
    else:
        with session.calls() as calls:
            keys = calls.request("GET", f"/manage/tenants/{segment(tenant)}/keys")["keys"]
    if as_json:
        print_json(keys)
        return
    columns = {"key_id": "KEY ID", "label": "LABEL", "tenant": "TENANT", "scopes": "SCOPES"}
    columns |= {"created": "CREATED", "last_used": "LAST USED", "until": "EXPIRES"}
    print_table([{**k, "until": _ending(k)} for k in keys], columns, "no keys: 'hmi key create' creates one")


@key.command()
@click.argument("key_id")
@click.argument("tenant", required=False)
@click.option(
    "--overlap",
    type=Number(0, 90 * 86_400),
    default=3600.0,
    show_default=True,
    metavar="SECONDS",
    help="How long the old key works on.",
)
@days_option
@expires_option
@label_option
@as_json
@pass_session
def rotate(
    session: CliSession,
    key_id: str,
    tenant: str | None,
    overlap: float,
    days: float | None,
    expires: datetime | None,
    label: str | None,
    as_json: bool,
) -> None:
    """Print a new key that follows KEY_ID, with the same scopes. KEY_ID ends after the overlap.

    Without TENANT it is an administrator's key (on a data folder only). Without --days and --expires the new
    key lives as long as the old one was issued for.
    """
    until = _expiry_of(days, expires)
    if tenant is None:
        about = {"key": key_id}
        with _administrators(session) as local, local.recorded("hmi key rotate", about) as named:
            made = local.services.manager.tenants.rotate_key(key_id, overlap, expires=until, label=label)
            named["key_id"] = made.new.key_id
        found = {"key_id": made.new.key_id, "key": made.plain, "old_expires": made.old.expires}
    else:
        body = {"overlap_s": overlap, **_times(until)} | ({} if label is None else {"label": label})
        path = f"/manage/tenants/{segment(tenant)}/keys/{segment(key_id)}/rotate"
        with session.calls() as calls:
            found = calls.request("POST", path, body)
    if not as_json:
        notes.print(f"key {key_id} ends at {found['old_expires']}", markup=False)
    print_key(found, as_json)


@key.command()
@click.argument("key_id")
@click.argument("tenant", required=False)
@as_json
@pass_session
def revoke(session: CliSession, key_id: str, tenant: str | None, as_json: bool) -> None:
    """Revoke the key KEY_ID (see 'hmi key list'). With --url, TENANT is required."""
    if tenant is None:
        with _administrators(
            session, f"{ADMINISTRATORS}, or add the TENANT that the key belongs to"
        ) as local:
            with local.recorded("hmi key revoke", {"key": key_id}):
                local.services.manager.revoke_key(key_id)
    else:
        with session.calls() as calls:
            calls.request("DELETE", f"/manage/tenants/{segment(tenant)}/keys/{segment(key_id)}")
    print_done({"revoked": key_id}, f"key {key_id} is revoked", as_json)


def print_key(made: dict[str, Any], as_json: bool) -> None:
    """Print a new key on stdout, and its id beside it."""
    if as_json:
        print_json(made)
        return
    notes.print(f"key id {made['key_id']}; {ONCE}")
    click.echo(made["key"])


@contextmanager
def _administrators(
    session: CliSession, refusal: str = ADMINISTRATORS, *, creates: bool = False
) -> Iterator[LocalCalls]:
    """Open the data folder for administrators' keys. Raises InvalidInput if a server was named."""
    session.not_remote(refusal)
    with session.local(creates=creates) as local:
        yield local


def _listed(local: LocalCalls) -> list[dict[str, Any]]:
    from hmi.api.views.records import key_view

    registry = local.services.manager.registry
    keys = registry.keys(None)
    used = registry.key_ring.last_used(keys)
    return [key_view(k, used.get(k.key_id)).model_dump(mode="json") for k in keys]


def _expiry_of(days: float | None, expires: datetime | None) -> datetime | None:
    if days is not None and expires is not None:
        raise click.UsageError("give --days or --expires, not both")
    return expires if days is None else datetime.now(UTC) + timedelta(days=days)


def _times(until: datetime | None) -> dict[str, str]:
    return {} if until is None else {"expires": until.isoformat()}


def _ending(found: dict[str, Any]) -> str:
    if found["expires"] is None:
        return "never"
    follows = f", followed by {found['successor']}" if found["successor"] else ""
    return f"{'expired ' if found['expired'] else ''}{found['expires']}{follows}"
