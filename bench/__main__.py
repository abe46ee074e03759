"""`bench CASE`, from a clone: measurements on this machine, as a table or as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.commands.background import background
from bench.commands.fleet import fleet
from bench.commands.improved import improved
from bench.commands.quality import FOLDER, MEASURED_HERE, quality, tenants
from bench.commands.rows import shown
from bench.commands.stages import stages
from hmi.cli import main
from hmi.cli.base import FolderCommand, Group, as_json, pass_session
from hmi.cli.options import FILE, Whole
from hmi.cli.output import notes
from hmi.cli.progress import job_bar
from hmi.cli.session import Session


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
def bench() -> None:
    """Measure speed (medians of paired, interleaved runs) and quality (means over seeds)."""


bench.add_command(quality)
bench.add_command(improved)
bench.add_command(tenants)
bench.add_command(fleet)
bench.add_command(stages)
bench.add_command(background)


@bench.command(cls=FolderCommand)
@click.option(
    "--runs", default=21, show_default=True, type=click.IntRange(3, 10_000), help="Pairs for each ratio."
)
@click.option(
    "--peers", is_flag=True, help="Measure ONNX Runtime, OpenVINO and CTranslate2, if installed, instead."
)
@click.option(
    "--modules", is_flag=True, help="Measure the cost of 64 tenants' modules and the layers' FLOP/s instead."
)
@click.option(
    "--split", type=Whole(0), help="Layers that are looked up (default: half, to which the goals belong)."
)
@as_json
@pass_session
def path(session: Session, runs: int, peers: bool, modules: bool, split: int | None, as_json: bool) -> None:
    """Speed-up from looking the lower layers up, on the default root with one thread."""
    session.not_remote(MEASURED_HERE)
    from bench import path as measured
    from bench import path_modules, path_peers

    measures = [m.run for m, wanted in ((path_peers, peers), (path_modules, modules)) if wanted]
    with shown("path", as_json) as found:
        found.extend(measured.run(runs, notes.print, measures, split))


@bench.command(cls=FolderCommand)
@click.option(
    "--keys", type=click.IntRange(5_000, 10**8), help="Trigrams in the root's PLOT.  [default: 1000000]"
)
@click.option("--large", is_flag=True, help="Same as --keys 10000000.")
@click.option(
    "--quick",
    is_flag=True,
    help="20,000 trigrams and few runs: shows that the benchmark works, not how fast the store is.",
)
@click.option(
    "--dim", "dims", multiple=True, type=click.IntRange(16, 4096), help="Hidden size.  [default: 384, 768]"
)
@click.option(
    "--runs", type=click.IntRange(3, 10_000), help="Pairs for each ratio of look-ups.  [default: 101]"
)
@click.option("--corpus", type=FILE, help="Real text, one document a line, instead of synthetic text.")
@click.option(
    "--only",
    multiple=True,
    metavar="SECTION",
    help="lookup, peers, cold, index, bulk, publish or live. Repeatable.  [default: all]",
)
@as_json
@pass_session
def store(
    session: Session,
    keys: int | None,
    large: bool,
    quick: bool,
    dims: tuple[int, ...],
    runs: int | None,
    corpus: Path | None,
    only: tuple[str, ...],
    as_json: bool,
) -> None:
    """Compare the PLOT store with this machine's limits, LMDB, RocksDB and numpy.

    --data names a folder on the disk to measure.
    """
    session.not_remote(MEASURED_HERE)
    from dataclasses import replace

    from bench import store as measured

    plan = measured.QUICK if quick else measured.Plan()
    wanted: dict[str, Any] = {
        "keys": keys or (measured.LARGE if large else None),
        "dims": dims,
        "runs": runs,
        "corpus": corpus,
        "sections": only,
    }
    plan = replace(plan, **{name: value for name, value in wanted.items() if value})
    with shown("store", as_json) as found, _bar(plan.steps) as report:
        found.extend(measured.run(plan, session.data, report))


@bench.command(cls=FolderCommand)
@click.option(
    "--corpus", type=FILE, required=True, help="Real text, one document a line; gzip and zstd are read."
)
@click.option("--root", help="A root of the data folder.  [default: the one that this benchmark imports]")
@click.option(
    "--alpha",
    "alphas",
    multiple=True,
    type=click.FloatRange(1, 100),
    help="Percent of n-gram occurrences to cover. Repeatable.  [default: 50, 100]",
)
@click.option(
    "--minutes", type=click.FloatRange(min=0.5), help="Use as many documents as should take this long."
)
@click.option("--limit-documents", type=click.IntRange(min=2), help="Use at most this many documents.")
@as_json
@pass_session
def plot(
    session: Session,
    corpus: Path,
    root: str | None,
    alphas: tuple[float, ...],
    minutes: float | None,
    limit_documents: int | None,
    as_json: bool,
) -> None:
    """Build PLOTs of a real corpus with the real jobs; measure hits and times on held-out documents."""
    session.not_remote(MEASURED_HERE)
    from bench import plot_corpus as measured

    session.may_start_jobs()
    plan = measured.Plan(corpus, alphas or (50.0, 100.0), minutes, limit_documents, root)
    with shown("plot", as_json) as found, job_bar() as bar:
        found.extend(measured.run(plan, session.data, notes.print, bar.show))


@bench.command(cls=FolderCommand)
@click.option("--sets", type=FOLDER, required=True, help="Labelled sets: NAME/{train,dev,test}.jsonl.gz.")
@click.option("--corpora", type=FOLDER, required=True, help="Unlabelled text: a folder with cs.txt.gz.")
@click.option(
    "--megabytes",
    default=2.0,
    show_default=True,
    type=click.FloatRange(0.1),
    help="Megabytes of text for the PLOT.",
)
@click.option(
    "--rows",
    default=1_000,
    show_default=True,
    type=click.IntRange(20, 2_000),
    help="Training rows of each tenant.",
)
@as_json
@pass_session
def steps(session: Session, sets: Path, corpora: Path, megabytes: float, rows: int, as_json: bool) -> None:
    """CPU time and peak memory of a root import, a PLOT build, and tenants with and without a teacher."""
    session.not_remote(MEASURED_HERE)
    from bench.quality import steps as measured

    session.may_start_jobs()
    with shown("steps", as_json) as found, job_bar() as bar:
        found.extend(measured.run(measured.Steps(sets, corpora, megabytes, rows), notes.print, bar.show))


@bench.command(cls=FolderCommand)
@click.option(
    "--only",
    multiple=True,
    metavar="FLOOD",
    help="short, long, many, exact, spaces, … Repeatable.  [default: all]",
)
@click.option(
    "--seconds",
    default=10.0,
    show_default=True,
    type=click.FloatRange(1),
    help="Duration of each measurement.",
)
@click.option(
    "--rounds",
    default=3,
    show_default=True,
    type=click.IntRange(1, 100),
    help="Measurements alone and under each flood.",
)
@click.option(
    "--beside", type=FOLDER, help="A second checkout of this project, measured in turn with this one."
)
@as_json
@pass_session
def floods(
    session: Session, only: tuple[str, ...], seconds: float, rounds: int, beside: Path | None, as_json: bool
) -> None:
    """Latency of a quiet tenant while another tenant, or a client without a key, floods the server."""
    session.not_remote(MEASURED_HERE)
    from bench.floods import run as measured

    with shown("floods", as_json) as found:
        found.extend(measured.run(measured.Plan(only, seconds, rounds, beside), notes.print))


@bench.command(cls=FolderCommand)
@click.option(
    "--only", multiple=True, metavar="SECTION", help="flat, cold, pieces, memory, isolation, … Repeatable."
)
@click.option("--peers", is_flag=True, help="Also measure peers at 1,000 tenants, if they are installed.")
@click.option("--quick", is_flag=True, help="Few tenants and runs: shows that the benchmark works.")
@click.option("--tenants", type=click.IntRange(1, 100_000), help="Tenants on disk.  [default: 10000]")
@click.option("--runs", type=click.IntRange(1, 10_000), help="Repetitions of each ratio.  [default: 7]")
@click.option("--seconds", type=click.FloatRange(0.05), help="Duration of each repetition.  [default: 2]")
@click.option("--minutes", type=click.FloatRange(0.01), help="Duration of the mixed load.  [default: 30]")
@click.option("--cycles", type=click.IntRange(1), help="Loads and evictions.  [default: 10000]")
@click.option("--answers", type=click.IntRange(1), help="Answers to check.  [default: 1000000]")
@click.option("--corpus", type=FILE, help="Real text, one document a line.")
@click.option("--packages", type=FOLDER, help="Packages of LitServe and infinity: pip install --target.")
@click.option(
    "--plots", type=click.Path(file_okay=False, path_type=Path), help="Write plots (SVG) to this folder."
)
@click.option(
    "--trace",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a timeline of the batches to this file, in Chrome's trace format. Choose short runs.",
)
@as_json
@pass_session
def serve(
    session: Session,
    only: tuple[str, ...],
    peers: bool,
    quick: bool,
    trace: Path | None,
    as_json: bool,
    **wanted: Any,
) -> None:
    """Serve up to 10,000 tenants: throughput, cold starts, memory, isolation.

    --data names a folder that keeps the tenants for later runs; 10,000 take 4 GB.
    """
    session.not_remote(MEASURED_HERE)
    from dataclasses import replace

    from bench.serve import run as measured
    from bench.serve.plan import QUICK, Plan

    plan = QUICK if quick else Plan()
    sections = (only or plan.sections) + (("peers",) if peers else ())
    given = {name: value for name, value in wanted.items() if value is not None}
    plan = replace(plan, sections=tuple(dict.fromkeys(sections)), **given)
    with shown("serve", as_json) as found, _bar(measured.steps(plan)) as report, _traced(trace):
        found.extend(measured.run(plan, session.data, report))


@bench.command(cls=FolderCommand)
@click.option("--minutes", default=30.0, show_default=True, type=click.FloatRange(0.05), help="Duration.")
@click.option("--tenants", default=100, show_default=True, type=click.IntRange(2, 10_000), help="Tenants.")
@click.option(
    "--share",
    default=0.8,
    show_default=True,
    type=click.FloatRange(0.05, 1.5),
    help="Load, as a fraction of the capacity that is measured first.",
)
@as_json
@pass_session
def soak(session: Session, minutes: float, tenants: int, share: float, as_json: bool) -> None:
    """A server under mixed load for half an hour: wrong and lost answers, memory, p99 by minute."""
    session.not_remote(MEASURED_HERE)
    from bench.soak import run as measured
    from bench.soak.plan import Plan

    with shown("soak", as_json) as found:
        found.extend(measured.run(Plan(minutes, share, tenants), notes.print))


@contextmanager
def _traced(file: Path | None) -> Iterator[None]:
    """Write a timeline of the work in the context to `file`, if one is given."""
    if file is None:
        yield
        return
    from hmi.execution import trace

    with trace.collected() as timeline:
        yield
    timeline.write(file)


@contextmanager
def _bar(steps: int) -> Iterator[Callable[[str], None]]:
    """Yield a function to call as each of `steps` steps begins.

    Without a terminal it prints a line each time.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=notes, transient=True) as bar:
        task = bar.add_task("", total=steps)
        begun = 0

        def report(what: str) -> None:
            nonlocal begun
            bar.update(task, description=what, completed=begun)
            begun += 1
            if not notes.is_terminal:
                notes.print(what)

        yield report


if __name__ == "__main__":
    main(command=bench, name="python -m bench")
