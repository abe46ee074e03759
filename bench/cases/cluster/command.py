"""The command `bench cluster`."""

from __future__ import annotations

from pathlib import Path

import click

from bench.harness.commands import Rows, amount, case, quick_flag
from hmi.cli.framework.output import notes
from hmi.cli.framework.session import CliSession

PYTHON = click.Path(exists=True, dir_okay=False, path_type=Path)


@case(
    click.option("--peer-python", type=PYTHON, required=True, help="A Python with the peer's packages."),
    click.option("--only", multiple=True, metavar="ARM", help="Some of the arms. Repeatable."),
    amount("--tenants", 300, click.IntRange(1, 10_000), "Tenants."),
    amount("--pairs", 5, click.IntRange(1, 100), "Turns, in which all arms run once."),
    amount("--seconds", 4.0, click.FloatRange(0.05), "Duration of an arm's run."),
    amount("--streams", 1, click.IntRange(1, 64), "HMI's compute threads. Ray Serve has two replicas."),
    quick_flag("Few tenants and one short run"),
)
def cluster(
    session: CliSession,
    peer_python: Path,
    only: tuple[str, ...],
    tenants: int,
    pairs: int,
    seconds: float,
    streams: int,
    quick: bool,
) -> Rows:
    """HMI beside Ray Serve. --data names a folder that keeps HMI's tenants for later runs.

    The peer's packages: ray[serve], onnxruntime, onnx, torch, transformers, safetensors, xxhash. It writes
    23 MB for each tenant to a temporary folder.
    """
    from bench.cases.cluster.beside import ClusterPlan
    from bench.cases.cluster.run import run

    plan = ClusterPlan(4, 1, 1.0) if quick else ClusterPlan(tenants, pairs, seconds, streams)
    return run(plan, peer_python, only, session.data, notes.print)
