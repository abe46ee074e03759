"""`hmi cluster plan`: what many servers would answer, and what they would cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Any, Final

import click

from hmi.cli.framework.base import FileCommand, as_json
from hmi.cli.framework.options import Bytes, Number, Whole, nested
from hmi.cli.framework.output import notes, print_json, print_table
from hmi.errors import InvalidInput

if TYPE_CHECKING:
    from hmi.cluster.simulation.outcome import Outcome
    from hmi.cluster.simulation.parameters import Costs

WINDOW_S: Final = 5.0
COLUMNS: Final = {
    "replicas": "SERVERS",
    "routing": "ROUTING",
    "calls_s": "CALLS/S",
    "busy": "COMPUTE",
    "loop": "EVENT LOOP",
    "memory": "IN MEMORY",
    "disk": "ON DISK",
    "bucket": "IN BUCKET",
    "rows": "ROWS IN MEMORY",
    "passed": "PASSED ON",
    "spilled": "SPILLED",
    "several": "SEVERAL COPIES",
    "p50": "P50",
    "p99": "P99",
    "disk_gb": "DISK",
    "cost": "COST",
}
LOST: Final = {
    "replicas": "SERVERS",
    "routing": "ROUTING",
    "at": "SECONDS",
    "failed": "FAILED",
    "memory": "IN MEMORY",
    "bucket": "IN BUCKET",
    "p50": "P50",
    "p99": "P99",
}


@click.command(cls=FileCommand)
@click.option(
    "--replicas", type=Whole(1), multiple=True, default=[3], show_default=True, help="Servers. Repeatable."
)
@click.option(
    "--routing",
    type=click.Choice(["tenant", "domain", "random"]),
    multiple=True,
    default=["tenant"],
    show_default=True,
    help="What decides which server answers: the tenant, as in HMI; its domain; nothing. Repeatable.",
)
@click.option(
    "--calls", type=Number(0.001, 1e7), help="Calls a second of all tenants.  [default: 100 a server]"
)
@click.option(
    "--tenants", type=Whole(1), default=10_000, show_default=True, help="Tenants with a model each."
)
@click.option(
    "--zipf", type=Number(0, 5), default=0.9, show_default=True, help="How unlike tenants are; 0: alike."
)
@click.option("--texts", type=Whole(1), default=1, show_default=True, help="Texts of a call.")
@click.option("--tokens", type=Number(1, 512), default=56, show_default=True, help="Mean tokens of a text.")
@click.option(
    "--direct",
    type=Number(0, 1),
    default=0,
    show_default=True,
    help="Share of calls that callers send to the right server.",
)
@click.option("--domains", type=Whole(1), default=10, show_default=True, help="Domains, each with a PLOT.")
@click.option("--ngrams", type=Whole(1), default=10_000_000, show_default=True, help="N-grams of all PLOTs.")
@click.option("--pool", type=Bytes(), default="8G", show_default=True, help="A server's memory for modules.")
@click.option(
    "--rows", type=Bytes(), default="32G", show_default=True, help="A server's memory for rows of PLOTs."
)
@click.option("--lost", type=Whole(0), default=0, help="Servers that vanish after a quarter of the time.")
@click.option("--seconds", type=Number(1, 86_400), default=30, show_default=True, help="Simulated time.")
@click.option("--seed", type=Whole(0), default=0, show_default=True, help="Another seed draws other calls.")
@click.option(
    "--cost",
    "costs",
    multiple=True,
    metavar="NAME=VALUE",
    callback=lambda _context, _parameter, pairs: nested(pairs),
    help="A cost measured on your machine, such as token_s=20e-6. --json shows all. Repeatable.",
)
@click.option("--price-server", type=Number(0, 1e9), help="Price of a server for an hour.")
@click.option(
    "--price-disk", type=Number(0, 1e9), default=0, help="Price of a GB of a server's disk for a month."
)
@click.option(
    "--price-bucket", type=Number(0, 1e9), default=0, help="Price of a GB in the bucket for a month."
)
@as_json
def plan(
    replicas: Sequence[int], routing: Sequence[str], as_json: bool, costs: dict[str, Any], **given: Any
) -> None:
    """Simulate servers that share a bucket: what they answer, how fast, and what a tenant costs.

    The costs of a server's work were measured on one machine: measure yours, and give them with --cost. The
    page "Capacity" says how, and what the simulation leaves out.
    """
    measured = _costs(costs)
    rows, lost = list[dict[str, Any]](), list[dict[str, Any]]()
    for count in replicas:
        for by in routing:
            notes.print(f"{count} servers, routing by {by}", markup=False)
            found = _simulated(measured, count, by, given)
            named = {"replicas": count, "routing": by}
            rows.append(named | _row(found, given))
            lost += [named | each for each in _windows(found)]
    if as_json:
        print_json({"costs": asdict(measured), "load": asdict(found.load), "servers": rows, "lost": lost})
        return
    print_table([_shown(row) for row in rows], COLUMNS, "")
    if lost:
        print_table([_shown(row) for row in lost], LOST, "")


def _costs(given: dict[str, Any]) -> Costs:
    """The measured costs with those that were given. Raises InvalidInput."""
    from hmi.cluster.simulation.parameters import Costs

    names = [field.name for field in fields(Costs)]
    for name, value in given.items():
        if name not in names:
            raise InvalidInput(f"--cost {name}: there is no such cost: use one of {', '.join(names)}")
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise InvalidInput(f"--cost {name}={value}: give a number, 0 or more")
    return replace(Costs(), **given)


def _simulated(costs: Costs, count: int, routing: str, given: dict[str, Any]) -> Outcome:
    from hmi.cluster.simulation.parameters import Cluster, Load
    from hmi.cluster.simulation.run import simulate

    names = ("tenants", "zipf", "texts", "tokens", "direct", "domains", "ngrams")
    load = Load(given["calls"] or 100.0 * count, **{name: given[name] for name in names})
    servers = Cluster(
        count,
        routing,  # type: ignore[arg-type]  # click has checked it
        pool_bytes=given["pool"],
        plot_bytes=given["rows"],
        lost=given["lost"],
        lost_s=given["seconds"] / 4,
    )
    return simulate(costs, load, servers, seconds=given["seconds"], seed=given["seed"])


def _row(found: Outcome, given: dict[str, Any]) -> dict[str, Any]:
    """The figures of a simulation: shares, seconds, and bytes in GB."""
    from hmi.cluster.simulation.parameters import Prices

    figures = found.figures
    price = given["price_server"]
    prices = None if price is None else Prices(price, given["price_disk"], given["price_bucket"])
    return {
        "calls_s": figures.calls_s,
        "failed": figures.failed,
        "busy": found.busy,
        "loop": found.loop,
        "memory": figures.module_memory,
        "disk": figures.module_disk,
        "bucket": figures.module_bucket,
        "plot_bucket": figures.plot_bucket,
        "rows": found.rows_in_memory,
        "passed": figures.passed,
        "spilled": figures.spilled,
        "several": found.several,
        "p50": figures.p50_s,
        "p99": figures.p99_s,
        "disk_gb": (found.module_disk_bytes + found.plot_disk_bytes) / 1e9,
        "recovered_s": found.recovered_s() if found.cluster.lost else None,
        "cost": None if prices is None else found.cost(prices),
    }


def _windows(found: Outcome) -> list[dict[str, Any]]:
    """The figures of spans from just before the loss on; none if nothing is lost."""
    if not found.cluster.lost:
        return []
    return [
        {
            "at": at - found.cluster.lost_s,
            "failed": each.failed / max(1, each.calls),
            "memory": each.module_memory,
            "bucket": each.module_bucket,
            "p50": each.p50_s,
            "p99": each.p99_s,
        }
        for at, each in found.windows(WINDOW_S)
        if at >= found.cluster.lost_s - 2 * WINDOW_S
    ]


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """A row with units, for people."""
    shown = dict(row)
    for name, value in row.items():
        if name in (
            "busy",
            "loop",
            "memory",
            "disk",
            "bucket",
            "rows",
            "passed",
            "spilled",
            "several",
            "failed",
        ):
            shown[name] = f"{100 * value:.1f}%"
        elif name in ("p50", "p99"):
            shown[name] = f"{1e3 * value:.1f} ms"
        elif name == "disk_gb":
            shown[name] = f"{value:,.0f} GB"
        elif name == "cost" and value is not None:
            shown[name] = f"{value:.5f}"
        elif name in ("calls_s", "at"):
            shown[name] = f"{value:,.0f}"
    return shown
