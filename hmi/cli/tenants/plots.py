"""The script that builds the PLOTs of many domains, on a server or on a data folder."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hmi.cli.framework.client import HttpClient
from hmi.cli.framework.options import extent
from hmi.cli.framework.session import Calls, CliSession
from hmi.cli.tenants.batch import jobs_running, run_with_bar, summary
from hmi.cli.tenants.batch_state import Outcome, State
from hmi.cli.tenants.onboarding import Interrupted, follow
from hmi.cli.tenants.plans import needed, rows
from hmi.core import DomainId
from hmi.errors import HmiError, InvalidInput
from hmi.sizes import FORMS, parse_bytes

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class Plot:
    """One domain to build."""

    domain: DomainId
    corpus: Path
    alpha: float | None
    """Percent of n-gram occurrences to cover; None if `budget` is given."""
    pretrain: bool
    budget: int | None = None
    """Bytes."""


class Builds:
    """Builds domains, each after its parent, at most `parallel` at a time."""

    def __init__(self, calls: Calls, state: State, parallel: int) -> None:
        self._calls, self._state, self._parallel = calls, state, parallel
        self._stop = threading.Event()
        # Jobs run in parallel; the short calls about them are made one at a time.
        self._one_call = threading.Lock()

    def run(self, plots: list[Plot], on_outcome: Callable[[Outcome], None]) -> list[Outcome]:
        """Build all. Returns an outcome for each, in order; a branch of a parent that failed fails too."""
        found: dict[DomainId, Outcome] = {}
        for depth in sorted({len(p.domain.parts) for p in plots}):
            level = [p for p in plots if len(p.domain.parts) == depth]
            pool = ThreadPoolExecutor(self._parallel, thread_name_prefix="plots")
            try:
                futures: dict[Future[Outcome], Plot] = {pool.submit(self.one, p): p for p in level}
                for future in as_completed(futures):
                    found[futures[future].domain] = future.result()
                    on_outcome(future.result())
            except KeyboardInterrupt:
                self._stop.set()
                raise
            finally:
                pool.shutdown(wait=True, cancel_futures=True)
        return [found[p.domain] for p in plots]

    def one(self, plot: Plot) -> Outcome:
        """Build one domain unless it exists."""
        name = str(plot.domain)
        kept = self._state.of(name)
        if kept is not None and kept.done:
            return replace(kept, unchanged=True)
        began = time.monotonic()
        try:
            outcome = self._build(plot, kept.job if kept is not None else "")
        except Interrupted:
            raise
        except HmiError as error:
            outcome = Outcome(name, "failed", error.message)
        outcome = replace(outcome, seconds=round(time.monotonic() - began, 1))
        self._state.keep(outcome)
        return outcome

    def _build(self, plot: Plot, before: str) -> Outcome:
        name = str(plot.domain)
        there = {d["domain"] for d in self._request("GET", "/manage/domains")["domains"]}
        if name in there:
            return Outcome(name, "succeeded", "it exists already", unchanged=True)
        body = {"domain": name, "pretrain": plot.pretrain, **extent(plot.alpha, plot.budget)}
        job = self._under_way(name) or self._submit(body, plot.corpus, before)
        return follow(self._request, name, job, self._stop)

    def _request(self, method: str, path: str, **given: Any) -> Any:
        with self._one_call:
            return self._calls.request(method, path, **given)

    def _under_way(self, name: str) -> str | None:
        """Return the unfinished job for a domain that an interrupted run left, or None."""
        for state in ("running", "queued"):
            query = {"kind": "build_plot", "state": state, "limit": "1000"}
            for job in self._request("GET", "/manage/jobs", query=query)["jobs"]:
                if job["target"] == name:
                    return str(job["job"])
        return None

    def _submit(self, body: dict[str, object], corpus: Path, before: str) -> str:
        given: dict[str, Any] = {"body": body, "files": {"corpus": corpus}}
        if isinstance(self._calls, HttpClient):
            asked = json.dumps([body, before, corpus.stat().st_size])
            given["once"] = hashlib.sha256(asked.encode()).hexdigest()
        return str(self._request("POST", "/manage/domains", **given)["job"])


def read_plots(path: Path, alpha: float) -> list[Plot]:
    """Read a table with the columns domain, corpus, and optionally pretrain and either alpha or budget.

    `alpha` is the default. Raises InvalidInput.
    """
    plots = []
    for number, row in enumerate(rows(path), 1):
        where = f"{path.name} row {number}"
        corpus = path.parent / needed(row, "corpus", where)
        if not corpus.is_file():
            raise InvalidInput(f"{where}: there is no file {corpus}", field="corpus")
        share, budget = _extent(row, alpha, where)
        pretrain = str(row.get("pretrain", "")).lower() in ("1", "true", "yes")
        plots.append(Plot(DomainId.parse(needed(row, "domain", where)), corpus, share, pretrain, budget))
    if not plots:
        raise InvalidInput(f"{path} lists no domains")
    if len({p.domain for p in plots}) < len(plots):
        raise InvalidInput(f"{path} lists a domain twice: name each once")
    return plots


def _extent(row: Mapping[str, Any], alpha: float, where: str) -> tuple[float | None, int | None]:
    """Return a row's alpha and budget, one of which is None. A row with neither has the default `alpha`."""
    if row.get("budget") is not None:
        if row.get("alpha") is not None:
            raise InvalidInput(f"{where} has an alpha and a budget: give one of them", field="budget")
        try:
            return None, parse_bytes(str(row["budget"]), least=1)
        except ValueError:
            raise InvalidInput(
                f"{where}: budget {row['budget']!r} is no size: give {FORMS}", field="budget"
            ) from None
    try:
        return float(row.get("alpha", alpha)), None
    except (TypeError, ValueError):
        raise InvalidInput(f"{where}: alpha {row['alpha']!r} is not a number", field="alpha") from None


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("plan", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--data", type=click.Path(file_okay=False, path_type=Path), help="Work on this data folder, or")
@click.option("--url", envvar="HMI_URL", help="work on a running server (environment: HMI_URL).")
@click.option("--key", envvar="HMI_KEY", help="An administrator's key (environment: HMI_KEY).")
@click.option(
    "--alpha",
    type=click.FloatRange(0, 100),
    default=50,
    show_default=True,
    help="Percent of n-gram occurrences to cover, for rows without alpha or budget.",
)
@click.option(
    "--parallel", type=click.IntRange(1, 64), default=1, show_default=True, help="Builds at a time."
)
@click.option(
    "--state",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File that records what is done.  [default: PLAN.state.json]",
)
@click.pass_context
def build_plots(
    context: click.Context,
    plan: Path,
    data: Path | None,
    url: str | None,
    key: str | None,
    alpha: float,
    parallel: int,
    state: Path | None,
) -> None:
    """Build the PLOTs of many domains.

    PLAN is a table (.csv, .json or .jsonl) with the columns domain, corpus, and optionally pretrain and
    either alpha or budget (a size, such as 50M). Paths are relative to the table. Run the script again to
    continue an interrupted run or to retry failed builds.
    """
    if data is not None and url is not None:
        raise click.UsageError("give either --data or --url")
    base = plan.resolve()
    kept = State(state or base.with_name(f"{base.name}.state.jsonl"))
    session = CliSession(data, url=url, key=key, overrides={"job_workers": parallel})
    try:
        plots = read_plots(plan, alpha)
        session.may_start_jobs()
        with session.calls() as calls, jobs_running(session, calls):
            builds = Builds(calls, kept, parallel)
            outcomes, ended = run_with_bar(len(plots), lambda show: builds.run(plots, show))
    except HmiError as error:
        raise click.ClickException(error.message) from error
    code = summary(outcomes)
    context.exit(code if ended else 130)
