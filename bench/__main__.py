"""`python -m bench CASE`, from a clone: measurements on this machine, as a table or as JSON."""

from __future__ import annotations

import click

from bench.cases.background.command import background
from bench.cases.cluster.command import cluster
from bench.cases.fleet.command import fleet
from bench.cases.floods.command import floods
from bench.cases.generation.command import generation
from bench.cases.nodes.command import nodes
from bench.cases.path.command import path
from bench.cases.plot.command import plot
from bench.cases.quality.command import improved, quality, steps, tenants
from bench.cases.serve.command import serve
from bench.cases.soak.command import soak
from bench.cases.stages.command import stages
from bench.cases.store.command import store
from hmi.cli import main
from hmi.cli.framework.base import CommandGroup


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
def bench() -> None:
    """Measure speed (medians of paired, interleaved runs) and quality (means over seeds)."""


CASES = (
    background,
    cluster,
    fleet,
    floods,
    generation,
    improved,
    nodes,
    path,
    plot,
    quality,
    serve,
    soak,
    stages,
    steps,
    store,
    tenants,
)
for case in CASES:
    bench.add_command(case)

if __name__ == "__main__":
    main(command=bench, name="python -m bench")
