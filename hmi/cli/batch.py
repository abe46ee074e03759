"""The script that onboards tenants; a progress bar and a summary for all batch scripts."""

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
    """Run a batch of `total` entries and show each outcome.

    Without a terminal there is no bar; each entry that ends prints a line. Returns the exit code: 0, 1 if an
    entry failed, 130 for Ctrl-C.
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
        notes.print("interrupted: run the same command again to continue")
        return 130
    return summary(outcomes)


def _line(outcome: Outcome) -> str:
    parts = [outcome.reason, *(f"{name} {value}" for name, value in outcome.figures.items())]
    return f"{outcome.id} {outcome.state} in {outcome.seconds:.0f} s: {'; '.join(p for p in parts if p)}"


def summary(outcomes: Iterable[Outcome]) -> int:
    """Print a table of outcomes and their number. Returns the exit code: 1 if any failed, else 0."""
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
@click.option(
    "--url",
    default="http://127.0.0.1:8080",
    show_default=True,
    envvar="HMI_URL",
    help="The server (environment: HMI_URL).",
)
@click.option("--key", envvar="HMI_KEY", help="An administrator's key (environment: HMI_KEY).")
@click.option(
    "--parallel",
    type=click.IntRange(1, 64),
    default=4,
    show_default=True,
    help="Models in progress at a time.",
)
@click.option(
    "--state",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File that records what is done.  [default: PLAN.state.json]",
)
@click.option(
    "--keys",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File for the tenants' keys.  [default: PLAN.keys.json]",
)
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

    PLAN is a folder or a table. A folder has a subfolder for each tenant with model.json, train.jsonl and
    optionally dev.jsonl and unlabelled.jsonl. A table (.csv, .json or .jsonl) has the columns tenant, model,
    domain, task, data and optionally dev, unlabelled and options.

    The tenants' keys are written to a file that only you can read. Run the script again to continue an
    interrupted run or to retry failed entries.
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
