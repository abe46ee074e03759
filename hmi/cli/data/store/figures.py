"""`hmi store diff` and `top`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import click
from rich.console import Group as Lines
from rich.live import Live

from hmi.cli.data.store.arguments import opened, version_of
from hmi.cli.framework.base import Command, FolderCommand, as_json, pass_session
from hmi.cli.framework.client import HttpClient
from hmi.cli.framework.options import Number
from hmi.cli.framework.output import notes, print_json, print_table, size, table_of
from hmi.cli.framework.session import CliSession
from hmi.errors import HmiError
from hmi.stores.plot.plots import plot_errors

ORDERS = ("trigram", "bigram", "unigram", "miss")
COLUMNS = {
    "domain": "DOMAIN",
    "lookups": "LOOK-UPS",
    "rate": "PER S",
    "trigram": "TRIGRAM",
    "bigram": "BIGRAM",
    "unigram": "UNIGRAM",
    "miss": "MISS",
    "bytes": "SIZE",
    "segments": "SEGMENTS",
    "small_segments": "SMALL",
    "chain": "CHAIN",
}
Row = dict[str, Any]


@click.command(cls=FolderCommand)
@click.argument("old")
@click.argument("new")
@as_json
@pass_session
def diff(session: CliSession, old: str, new: str, as_json: bool) -> None:
    """Compare the n-grams of two PLOT versions. OLD and NEW are domains, version ids or ROOT/BRANCH@TAG."""
    with opened(session) as local, plot_errors():
        manager = local.services.manager
        report = manager.plots.diff(version_of(manager, old), version_of(manager, new))
    rows = [
        {"order": order, "added": of.added, "removed": of.removed, "changed": of.changed, "same": of.same}
        for order, of in report.orders.items()
    ]
    if as_json:
        print_json({"old": report.a, "new": report.b, "equal": report.equal, "orders": rows})
        return
    print_table(
        rows,
        {"order": "ORDER", "added": "ADDED", "removed": "REMOVED", "changed": "CHANGED", "same": "SAME"},
        "no n-grams",
    )


@click.command(cls=Command)
@click.option(
    "--watch",
    is_flag=False,
    flag_value=2.0,
    type=Number(0.1, 86_400),
    metavar="[SECONDS]",
    help="Refresh every SECONDS (default 2) until Ctrl-C. With --json, print a line each time.",
)
@as_json
@pass_session
def top(session: CliSession, watch: float | None, as_json: bool) -> None:
    """Show each domain's PLOT: look-ups and what answered them, bytes, segments, length of the chain.

    Look-ups are counted by the running server since its start. Without one they are unknown.
    """
    with _sampler(session) as sample:
        if watch is None:
            rows, where = sample()
            _show(rows, where, as_json)
            return
        _refresh(sample, watch, as_json)


def _show(rows: list[Row], where: str, as_json: bool) -> None:
    if as_json:
        print_json({"source": where, "domains": rows})
        return
    print_table([_for_people(row) for row in rows], COLUMNS, "no domains yet")
    notes.print(where, markup=False)


def _refresh(sample: Callable[[], tuple[list[Row], str]], seconds: float, as_json: bool) -> None:
    with Live(console=notes, auto_refresh=False, transient=False) as live:
        before: dict[str, int] = {}
        at = time.monotonic()
        while True:
            rows, where = sample()
            now = time.monotonic()
            for row in rows:
                row["rate"] = _rate(row["lookups"], before.get(row["domain"]), now - at)
            before, at = {row["domain"]: row["lookups"] for row in rows if row["lookups"] is not None}, now
            if as_json:
                click.echo(json.dumps({"source": where, "domains": rows}))
            else:
                live.update(Lines(table_of([_for_people(row) for row in rows], COLUMNS), where), refresh=True)
            time.sleep(seconds)


def _rate(count: int | None, before: int | None, seconds: float) -> float | None:
    """Return look-ups a second since the last sample, None if there is none or the server restarted."""
    if count is None or before is None or count < before or seconds <= 0:
        return None
    return (count - before) / seconds


@contextmanager
def _sampler(session: CliSession) -> Iterator[Callable[[], tuple[list[Row], str]]]:
    """Yield a function that returns the current rows and where they come from."""
    if session.url is not None:
        client = session.client(session.url)
        yield lambda: (
            _joined(_remote_disk(client), _lookups(client)),
            f"look-ups of the server at {client.url}",
        )
        return
    from hmi.api.process.lock import live_server

    data = session.settings().data
    with opened(session) as local:

        def sample() -> tuple[list[Row], str]:
            disk = [asdict(row) for row in local.services.manager.maintenance.on_disk()]
            server = live_server(data)
            if server is None or not server.url:
                return _joined(disk, None), f"no server runs on {data}: the figures are from the disk alone"
            try:
                found = _lookups(session.client(server.url))
            except HmiError as error:
                return _joined(
                    disk, None
                ), f"the figures are from the disk alone; {server.url}: {error.message}"
            return _joined(disk, found), f"look-ups of the server at {server.url}"

        yield sample


def _lookups(client: HttpClient) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = client.request("GET", "/manage/stats")["plot_lookups"]
    return found


def _remote_disk(client: HttpClient) -> list[Row]:
    domains = client.request("GET", "/manage/domains")["domains"]
    return [
        {"domain": d["domain"], "version": d["current"], "bytes": d["bytes"], "entries": d["entries"]}
        for d in domains
    ]


def _joined(disk: list[Row], lookups: dict[str, dict[str, int]] | None) -> list[Row]:
    """Return a row for each domain: tokens looked up (None: unknown), the share of each order, and bytes."""
    rows = []
    for row in disk:
        counts = None if lookups is None else lookups.get(row["domain"], {})
        total = None if counts is None else sum(counts.get(order, 0) for order in ORDERS)
        shares = {order: counts.get(order, 0) / total if counts and total else None for order in ORDERS}
        rows.append({**row, "lookups": total, **shares})
    return sorted(rows, key=lambda row: (-(row["lookups"] or 0), row["domain"]))


def _for_people(row: Row) -> Row:
    shares = {order: None if row[order] is None else f"{row[order]:.1%}" for order in ORDERS}
    return {**row, **shares, "bytes": size(row["bytes"])}
