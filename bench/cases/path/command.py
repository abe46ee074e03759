"""The command `bench path`."""

from __future__ import annotations

import click

from bench.harness.commands import Rows, amount, case, quick_flag
from hmi.cli.framework.options import Whole
from hmi.cli.framework.output import notes
from hmi.cli.framework.session import CliSession


@case(
    amount("--runs", 21, click.IntRange(1, 10_000), "Pairs a ratio."),
    quick_flag("One pair a ratio"),
    click.option("--peers", is_flag=True, help="Measure ONNX Runtime, OpenVINO and CTranslate2 instead."),
    click.option("--modules", is_flag=True, help="Measure the cost of 64 tenants' modules instead."),
    click.option(
        "--split", type=Whole(0), help="Layers that are looked up (default: half, to which the goals belong)."
    ),
)
def path(session: CliSession, runs: int, quick: bool, peers: bool, modules: bool, split: int | None) -> Rows:
    """Speed-up from looking the lower layers up, on the default root with one thread."""
    from bench.cases.path import modules as of_modules
    from bench.cases.path import peers as of_peers
    from bench.cases.path import run as measured

    chosen = [m.measure for m, wanted in ((of_peers, peers), (of_modules, modules)) if wanted]
    return measured.run(1 if quick else runs, notes.print, chosen or [measured.measure], split)
