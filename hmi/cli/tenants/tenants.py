"""`hmi tenant`: tenants, their limits, and many of them from one table."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from hmi.cli.framework.base import Command, CommandGroup, as_json, pass_session
from hmi.cli.framework.client import HttpClient
from hmi.cli.framework.options import Bytes, Number, Whole, check_target, confirm, yes_option
from hmi.cli.framework.output import print_done, print_fields, print_json, print_table, size
from hmi.cli.framework.session import Calls, CliSession, segment
from hmi.cli.tenants.batch import jobs_running, run_with_bar, summary
from hmi.cli.tenants.batch_state import Outcome, State
from hmi.cli.tenants.keys import print_key
from hmi.cli.tenants.onboarding import Onboarding
from hmi.cli.tenants.plans import read_onboarding
from hmi.errors import InvalidInput, NotFound
from hmi.tenancy import MAX_BYTES, MAX_MODELS, MAX_REQUESTS_PER_S, MAX_TOKENS_PER_S

_DEFAULT = "default"
_KEPT = " 0: no limit; default: the server's."


class _OrDefault(click.ParamType):  # type: ignore[type-arg]  # click 8.1 has no argument there
    """A value of another type, or the word `default`, which stands for the server's default."""

    def __init__(self, inner: click.ParamType) -> None:  # type: ignore[type-arg]
        self._inner, self.name = inner, inner.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if value == _DEFAULT else self._inner.convert(value, param, ctx)


class _BytesOrZero(Bytes):
    """A size in bytes, or 0."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = 0 if value == "0" else super().convert(value, param, ctx)
        if found > MAX_BYTES:
            self.fail(f"{value!r} is too large: give at most {MAX_BYTES}", param, ctx)
        return found


_OPTIONS = (
    ("--requests-per-s", Number(0, MAX_REQUESTS_PER_S), "Calls to infer a second that it may make."),
    ("--tokens-per-s", Number(0, MAX_TOKENS_PER_S), "Tokens of texts a second that it may send."),
    ("--models", Whole(0, MAX_MODELS), "Models that it may have."),
    ("--bytes", _BytesOrZero(), "Bytes that it may store, such as 500M."),
)


def _limit_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add an option for each limit."""
    for name, kind, about in reversed(_OPTIONS):
        function = click.option(name, type=_OrDefault(kind), metavar="LIMIT", help=about + _KEPT)(function)
    return function


def _given_limits(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the limits among a command's options, as a request has them; those that were not given are
    left out."""
    given = {name: value for name, value in options.items() if value is not None}
    return {name: None if value == _DEFAULT else value for name, value in given.items()}


def _in_words(limits: Mapping[str, Any]) -> str:
    """Return a tenant's own limits on one line."""
    words = [_words(name, value) for name, value in limits.items() if value is not None]
    return ", ".join(words) or "the server's defaults"


def _quota_fields(quota: Mapping[str, Any]) -> dict[str, str]:
    """Return a line for each limit that holds, with what is left of it."""
    found = {}
    for name, state in quota.items():
        if state is None:
            continue
        if "limit" in state:
            show = size if name == "bytes" else str
            found[name] = f"{show(state['used'])} of {show(state['limit'])} used"
        else:
            found[name] = f"{state['per_s']:g}, {state['left']:g} left of {state['burst']:g} at once"
    return found or {"in force": "no limits"}


def _words(name: str, value: float) -> str:
    what = name.replace("_per_s", " a second")
    if not value:
        return f"no limit on {what}"
    if name == "bytes":
        return f"{size(value)} stored"
    return f"{value:g} {what}"


_FORMS = (".json", ".csv")
_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command(cls=Command)
@click.argument("plan", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--parallel", type=Whole(1, 64), default=4, show_default=True, help="Models in progress at a time."
)
@click.option("--state", type=_FILE, help="File that records what is done.  [default: PLAN.state.jsonl]")
@click.option("--keys", type=_FILE, help="File for the tenants' keys.  [default: PLAN.keys.jsonl]")
@click.option(
    "--report", type=_FILE, help="Also write all outcomes with their scores to this .json or .csv file."
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
        _write_report(report, outcomes)
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
    if file.suffix not in _FORMS:
        raise InvalidInput(f"--report {file}: name a file that ends in {' or '.join(_FORMS)}", field="report")


def _write_report(file: Path, outcomes: list[Outcome]) -> None:
    """Write all outcomes, the worst scores first, as JSON or CSV by the file's name."""
    ordered = sorted(outcomes, key=lambda o: (o.done, o.score is None, o.quality))
    if file.suffix == ".json":
        file.write_text(json.dumps([asdict(o) for o in ordered], indent=1, ensure_ascii=False) + "\n")
        return
    columns = ("id", "state", "unchanged", "metric", "score", "rows", "seconds", "job", "reason")
    with file.open("w", newline="", encoding="utf-8") as out:
        table = csv.DictWriter(out, columns, extrasaction="ignore")
        table.writeheader()
        table.writerows(asdict(o) for o in ordered)


@click.group(cls=CommandGroup)
def tenant() -> None:
    """Tenants: owners of models and keys."""


WEIGHT = "Its share of compute beside other tenants that wait: twice the weight, twice the time."


@tenant.command()
@click.argument("name")
@click.option("--weight", type=float, default=1.0, show_default=True, help=WEIGHT)
@_limit_options
@as_json
@pass_session
def create(session: CliSession, name: str, weight: float, as_json: bool, **limits: Any) -> None:
    """Create the tenant NAME and print its first key."""
    body = {"tenant": name, "weight": weight, "limits": _given_limits(limits)}
    with session.calls(creates=True) as calls:
        made = calls.request("POST", "/manage/tenants", body)
    print_key(made, as_json)


@tenant.command("set")
@click.argument("name")
@click.option("--weight", type=float, help=WEIGHT)
@_limit_options
@as_json
@pass_session
def set_(session: CliSession, name: str, weight: float | None, as_json: bool, **limits: Any) -> None:
    """Change a tenant's weight or limits. They hold from its next call on."""
    changes: dict[str, Any] = {} if weight is None else {"weight": weight}
    if changed := _given_limits(limits):
        changes["limits"] = changed
    if not changes:
        raise click.UsageError("nothing to change: give --weight or a limit such as --requests-per-s")
    with session.calls() as calls:
        found = calls.request("PATCH", f"/manage/tenants/{segment(name)}", changes)
    print_done(found, f"{name}: weight {found['weight']:g}; limits: {_in_words(found['limits'])}", as_json)


@tenant.command()
@click.argument("name")
@as_json
@pass_session
def show(session: CliSession, name: str, as_json: bool) -> None:
    """Show a tenant, and what is left of its limits."""
    with session.calls(server=True) as calls:
        found = calls.request("GET", f"/manage/tenants/{segment(name)}")
    if as_json:
        print_json(found)
        return
    own = {"tenant": name, "created": found["created"], "weight": found["weight"]}
    print_fields({**own, "limits": _in_words(found["limits"]), **_quota_fields(found["quota"])})


@tenant.command("list")
@as_json
@pass_session
def list_(session: CliSession, as_json: bool) -> None:
    """List the tenants."""
    with session.calls() as calls:
        tenants = calls.request("GET", "/manage/tenants")["tenants"]
    if as_json:
        print_json(tenants)
    else:
        columns = {"tenant": "TENANT", "weight": "WEIGHT", "limits": "LIMITS", "created": "CREATED"}
        rows = [{**found, "limits": _in_words(found["limits"])} for found in tenants]
        print_table(rows, columns, "no tenants yet: 'hmi tenant create NAME' creates one")


@tenant.command()
@click.argument("name")
@yes_option
@as_json
@pass_session
def delete(session: CliSession, name: str, yes: bool, as_json: bool) -> None:
    """Delete the tenant NAME with its models, keys and jobs."""
    with session.calls() as calls:
        confirm(f"the tenant {name} with its models, keys and jobs", yes, lambda: _look(calls, name))
        found = calls.request("DELETE", f"/manage/tenants/{segment(name)}")
    print_done({"deleted": name, **found}, f"{name} is deleted", as_json)


def _look(calls: Calls, name: str) -> None:
    """Raises NotFound unless the tenant exists."""
    if all(tenant["tenant"] != name for tenant in calls.request("GET", "/manage/tenants")["tenants"]):
        raise NotFound(f"there is no tenant {name!r}: see 'hmi tenant list'")


tenant.add_command(onboard)
