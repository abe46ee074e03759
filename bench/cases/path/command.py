"""The command `bench path`."""

from __future__ import annotations

import click

from bench.harness.rows import MEASURED_HERE, shown
from hmi.cli.framework.base import FolderCommand, as_json, pass_session
from hmi.cli.framework.options import Whole
from hmi.cli.framework.output import notes
from hmi.cli.framework.session import CliSession


@click.command(cls=FolderCommand)
@click.option("--runs", default=21, show_default=True, type=click.IntRange(1, 10_000), help="Pairs a ratio.")
@click.option("--quick", is_flag=True, help="One pair a ratio: shows that it works, not how fast.")
@click.option("--peers", is_flag=True, help="Measure ONNX Runtime, OpenVINO and CTranslate2 instead.")
@click.option("--modules", is_flag=True, help="Measure the cost of 64 tenants' modules instead.")
@click.option(
    "--split", type=Whole(0), help="Layers that are looked up (default: half, to which the goals belong)."
)
@as_json
@pass_session
def path(
    session: CliSession, runs: int, quick: bool, peers: bool, modules: bool, split: int | None, as_json: bool
) -> None:
    """Speed-up from looking the lower layers up, on the default root with one thread."""
    session.not_remote(MEASURED_HERE)
    from bench.cases.path import modules as of_modules
    from bench.cases.path import peers as of_peers
    from bench.cases.path import run as measured

    chosen = [m.measure for m, wanted in ((of_peers, peers), (of_modules, modules)) if wanted]
    with shown("path", as_json) as found:
        rows = measured.run(1 if quick else runs, notes.print, chosen or [measured.measure], split)
        found.extend(rows)
