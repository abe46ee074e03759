"""`hmi tenant onboard`: many tenants, keys and models from one table."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import click

from hmi.cli.framework.base import Command, as_json, pass_session
from hmi.cli.framework.client import HttpClient
from hmi.cli.framework.options import Whole, check_target
from hmi.cli.framework.output import print_json
from hmi.cli.framework.session import Calls, CliSession
from hmi.cli.tenants.batch import jobs_running, run_with_bar, summary
from hmi.cli.tenants.batch_state import Outcome, State
from hmi.cli.tenants.onboarding import Onboarding
from hmi.cli.tenants.plans import read_onboarding
from hmi.errors import InvalidInput

FORMS = (".json", ".csv")
FILE = click.Path(dir_okay=False, path_type=Path)


@click.command(cls=Command)
@click.argument("plan", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--parallel", type=Whole(1, 64), default=4, show_default=True, help="Models in progress at a time."
)
@click.option("--state", type=FILE, help="File that records what is done.  [default: PLAN.state.jsonl]")
@click.option("--keys", type=FILE, help="File for the tenants' keys.  [default: PLAN.keys.jsonl]")
@click.option(
    "--report", type=FILE, help="Also write all outcomes with their scores to this .json or .csv file."
)
@click.option(
    "--patience",
    type=Whole(0, 86_400),
    default=600,
    show_default=True,
    help="Seconds for which a call is repeated while the server is busy, away, or over a quota.",
)
@as_json
@pass_session
def onboard(
    session: CliSession,
    plan: Path,
    parallel: int,
    state: Path | None,
    keys: Path | None,
    report: Path | None,
    patience: int,
    as_json: bool,
) -> None:
    """Create tenants, keys and models, on a running server (--url) or a data folder.

    PLAN is a folder or a table. A folder has a subfolder for each tenant with model.json, train.jsonl and
    optionally dev.jsonl and unlabelled.jsonl. A table (.csv, .json or .jsonl) has the columns tenant, model,
    domain, task, and data (a path) or rows (the rows themselves), and optionally dev, unlabelled, options,
    weight, limits, and those that say how to read the files, such as text_column and label_column.

    The tenants' keys are written to a file that only you can read. Run the command again to continue an
    interrupted run or to retry failed entries; what is done is not done again.
    """
    if report is not None:
        _check_report(report)
    session.overrides["job_workers"] = parallel
    base = plan.resolve()
    with _calls(session, patience) as calls:
        entries = read_onboarding(plan)
        calls.request("GET", "/manage/roots")
        beside = [base.with_name(f"{base.name}.{what}.jsonl") for what in ("state", "keys")]
        kept = State(state or beside[0], keys or beside[1])
        work = Onboarding(calls, kept, parallel)
        outcomes, ended = run_with_bar(len(entries), lambda show: work.run(entries, show))
    if report is not None:
        write_report(report, outcomes)
    if as_json:
        print_json([asdict(outcome) for outcome in outcomes])
    code = summary(outcomes)
    raise click.exceptions.Exit(code if ended else 130)


@contextmanager
def _calls(session: CliSession, patience: int) -> Iterator[Calls]:
    """The calls to the server that the options name, or to the data folder, where jobs run meanwhile."""
    if session.url is not None:
        yield HttpClient(session.url, session.key, patience_s=float(patience))
        return
    session.may_start_jobs()
    with session.calls() as calls, jobs_running(session, calls):
        yield calls


def _check_report(file: Path) -> None:
    check_target(file)
    if file.suffix not in FORMS:
        raise InvalidInput(f"--report {file}: name a file that ends in {' or '.join(FORMS)}", field="report")


def write_report(file: Path, outcomes: list[Outcome]) -> None:
    """Write all outcomes, the worst scores first, as JSON or CSV by the file's name."""
    ordered = sorted(outcomes, key=lambda o: (o.done, o.score is None, o.score or 0.0))
    if file.suffix == ".json":
        file.write_text(json.dumps([asdict(o) for o in ordered], indent=1, ensure_ascii=False) + "\n")
        return
    columns = ("id", "state", "unchanged", "metric", "score", "rows", "seconds", "job", "reason")
    with file.open("w", newline="", encoding="utf-8") as out:
        table = csv.DictWriter(out, columns, extrasaction="ignore")
        table.writeheader()
        table.writerows(asdict(o) for o in ordered)
