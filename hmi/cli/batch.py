"""A progress bar and a summary for the batch scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hmi.cli.client import Client
from hmi.cli.onboarding import Onboarding, Outcome, State
from hmi.cli.output import notes, print_table
from hmi.cli.plans import read_onboarding
from hmi.errors import HmiError

Run = Callable[[Callable[[Outcome], None]], list[Outcome]]


def run_with_bar(total: int, run: Run) -> int:
    """Run a batch, show the outcomes, return the exit code: 1 if any failed, 130 for Ctrl-C.

    Without a terminal there is no bar, and each entry that ends is a line.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    try:
        with Progress(*columns, console=notes, disable=not notes.is_terminal) as bar:
            task, ended = bar.add_task("starting", total=total), 0

            def show(outcome: Outcome) -> None:
                nonlocal ended
                ended += 1
                bar.update(task, advance=1, description=outcome.id)
                if outcome.state == "failed" or not notes.is_terminal:
                    bar.console.print(f"{ended}/{total} {_line(outcome)}", markup=False, soft_wrap=True)

            outcomes = run(show)
    except KeyboardInterrupt:
        notes.print("interrupted: the same command goes on where it stopped")
        return 130
    return summary(outcomes)


def _line(outcome: Outcome) -> str:
    told = [outcome.reason, *(f"{name} {value}" for name, value in outcome.figures.items())]
    return f"{outcome.id} {outcome.state} in {outcome.seconds:.0f} s: {'; '.join(t for t in told if t)}"


def summary(outcomes: Iterable[Outcome]) -> int:
    """Print a line for each outcome; 1 if any failed."""
    outcomes = list(outcomes)
    headings = dict.fromkeys(name for outcome in outcomes for name in outcome.figures)
    rows = [
        {"id": o.id, "state": o.state, **o.figures, "seconds": o.seconds, "reason": o.reason}
        for o in outcomes
    ]
    columns = {
        "id": "NAME",
        "state": "STATE",
        **{name: name.upper() for name in headings},
        "seconds": "SECONDS",
        "reason": "REASON",
    }
    print_table(rows, columns, "nothing")
    failed = sum(row["state"] == "failed" for row in rows)
    notes.print(f"{len(rows) - failed} done, {failed} failed")
    return 1 if failed else 0


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("plan", type=click.Path(exists=True, path_type=Path))
@click.option("--url", default="http://127.0.0.1:8080", show_default=True, envvar="HMI_URL")
@click.option("--key", envvar="HMI_KEY", help="An administrator's key (environment: HMI_KEY).")
@click.option("--parallel", type=click.IntRange(1, 64), default=4, show_default=True)
@click.option("--state", type=click.Path(dir_okay=False, path_type=Path), help="Default: PLAN.state.json.")
@click.option("--keys", type=click.Path(dir_okay=False, path_type=Path), help="Default: PLAN.keys.json.")
@click.pass_context
def onboard(
    context: click.Context,
    plan: Path,
    url: str,
    key: str | None,
    parallel: int,
    state: Path | None,
    keys: Path | None,
) -> None:
    """Create tenants, keys and models on a running server.

    PLAN is a folder with a subfolder for each tenant (model.json, train.jsonl and maybe dev.jsonl and
    unlabelled.jsonl), or a .csv, .json or .jsonl table with the columns tenant, model, domain, task, data and
    maybe dev, unlabelled and options. Tenants' keys go to a file that only you can read. Run it again to go
    on where it stopped.
    """
    base = plan.resolve()
    kept = State(
        state or base.with_name(f"{base.name}.state.json"), keys or base.with_name(f"{base.name}.keys.json")
    )
    try:
        entries = read_onboarding(plan)
        client = Client(url, key, patience_s=120.0)
        client.request("GET", "/manage/roots")
    except HmiError as error:
        raise click.ClickException(error.message) from error
    work = Onboarding(client, kept, parallel)
    context.exit(run_with_bar(len(entries), lambda show: work.run(entries, show)))
