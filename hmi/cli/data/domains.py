"""`hmi domain`: create, update, grow, set, list, show, roll back, delete."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from hmi.cli.framework.base import CommandGroup, as_json, pass_session
from hmi.cli.framework.options import (
    FILE,
    PERCENT,
    Whole,
    budget_option,
    confirm,
    encoding_option,
    extent,
    job_options,
    settings_option,
    yes_option,
)
from hmi.cli.framework.output import print_done, print_fields, print_json, print_table, size
from hmi.cli.framework.progress import finish
from hmi.cli.framework.session import CliSession, segment
from hmi.cli.models.check import show_corpus_format

COLUMNS = {
    "domain": "DOMAIN",
    "versions": "VERSIONS",
    "trigrams": "TRIGRAMS",
    "bigrams": "BIGRAMS",
    "unigrams": "UNIGRAMS",
    "bytes": "SIZE",
    "alpha": "ALPHA",
    "models": "MODELS",
}


@click.group(cls=CommandGroup)
def domain() -> None:
    """Domains: branches of a root's version tree, each with a PLOT of its own."""


def _build_options(alpha: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The arguments and options of a command that builds a PLOT. `alpha` is the text of --alpha's default."""

    def add(command: Callable[..., None]) -> Callable[..., None]:
        for option in (
            pass_session,
            encoding_option,
            job_options,
            settings_option(),
            click.option(
                "--pretrain", is_flag=True, help="Pretrain the lower layers further on the corpus first."
            ),
            budget_option,
            click.option(
                "--alpha", type=PERCENT, help=f"Percent of n-gram occurrences to cover (default: {alpha})."
            ),
            click.argument("corpus", type=FILE),
            click.argument("name", metavar="ROOT/BRANCH"),
        ):
            command = option(command)
        return command

    return add


@domain.command()
@_build_options(alpha="50")
def create(session: CliSession, name: str, corpus: Path, **given: Any) -> None:
    """Create a domain from CORPUS, and build its PLOT.

    CORPUS is text with one document a line, or JSON objects with a `text`; it may be compressed with gzip or
    zstd.
    """
    _build(session, "/manage/domains", {"domain": name}, corpus, **given)


@domain.command()
@_build_options(alpha="as before")
def update(session: CliSession, name: str, corpus: Path, **given: Any) -> None:
    """Build a domain's next version from the text in CORPUS. Models keep their version."""
    _build(session, f"{_path(name)}/update", {}, corpus, **given)


def _build(
    session: CliSession,
    path: str,
    body: dict[str, Any],
    corpus: Path,
    *,
    alpha: float | None,
    budget: int | None,
    pretrain: bool,
    options: dict[str, Any],
    detach: bool,
    as_json: bool,
) -> None:
    session.may_start_jobs()
    show_corpus_format(corpus, options)
    body = {**body, "pretrain": pretrain, **extent(alpha, budget, options)}
    with session.calls() as calls:
        job = calls.request("POST", path, body, {"corpus": corpus})["job"]
        finish(session, calls, job, detach=detach, as_json=as_json)


@domain.command("set")
@click.argument("name", metavar="ROOT/BRANCH")
@click.option(
    "--record-misses",
    type=click.Choice(["on", "off"]),
    required=True,
    help="on: record which n-grams of users' texts the PLOT lacks, for 'hmi domain grow'. off: stop and "
    "delete the record.",
)
@as_json
@pass_session
def set_(session: CliSession, name: str, record_misses: str, as_json: bool) -> None:
    """Change a domain's settings."""
    with session.calls() as calls:
        found = calls.request("PATCH", _path(name), {"record_misses": record_misses == "on"})
    print_done(
        found,
        f"{name}: misses are recorded" if found["record_misses"] else f"{name}: misses are not recorded",
        as_json,
    )


@domain.command()
@click.argument("name", metavar="ROOT/BRANCH")
@click.option(
    "--min-count",
    type=Whole(1),
    default=5,
    show_default=True,
    help="Add n-grams that were missed at least this often.",
)
@job_options
@pass_session
def grow(session: CliSession, name: str, min_count: int, detach: bool, as_json: bool) -> None:
    """Build a domain's next version, with the n-grams that users' texts missed most added.

    Models keep their version.
    """
    session.may_start_jobs()
    with session.calls() as calls:
        job = calls.request("POST", f"{_path(name)}/grow", {"min_count": min_count})["job"]
        finish(session, calls, job, detach=detach, as_json=as_json)


@domain.command()
@click.argument("name", metavar="ROOT/BRANCH")
@click.argument("text", type=FILE, required=False)
@click.option("--keep", type=FILE, help="A corpus whose n-grams stay, although TEXT has them, too.")
@click.option(
    "--phrase",
    "phrases",
    multiple=True,
    metavar="WORDS",
    help="Erase n-grams and passages that contain these words. Repeat it for each form of them.",
)
@click.option("--dry-run", is_flag=True, help="Only count what would go.")
@click.option("--encoding", metavar="NAME", help="The encoding of the text, such as windows-1252.")
@yes_option
@job_options
@pass_session
def erase(
    session: CliSession,
    name: str,
    text: Path | None,
    keep: Path | None,
    phrases: tuple[str, ...],
    dry_run: bool,
    encoding: str | None,
    yes: bool,
    detach: bool,
    as_json: bool,
) -> None:
    """Erase the n-grams and passages of TEXT from all versions of a domain.

    TEXT is a corpus, as for 'hmi domain create'. N-grams are of two or more tokens. Models stay on their
    version, and answer without what was erased. The misses recorded for the domain go, too.
    """
    session.may_start_jobs()
    files = {part: path for part, path in (("text", text), ("keep", keep)) if path is not None}
    body = {"phrases": list(phrases), "encoding": encoding, "dry_run": dry_run}
    with session.calls() as calls:
        if not dry_run:
            confirm(f"texts from the domain {name} for good", yes, lambda: calls.request("GET", _path(name)))
        job = calls.request("POST", f"{_path(name)}/erase", body, files)["job"]
        finish(session, calls, job, detach=detach, as_json=as_json)


@domain.command("list")
@as_json
@pass_session
def list_(session: CliSession, as_json: bool) -> None:
    """List the domains."""
    with session.calls() as calls:
        domains = calls.request("GET", "/manage/domains")["domains"]
    if as_json:
        print_json(domains)
        return
    rows = [{**d, **d["entries"], "versions": len(d["versions"]), "bytes": size(d["bytes"])} for d in domains]
    print_table(
        rows, COLUMNS, "no domains yet: 'hmi root import' makes a root's, 'hmi domain create' a branch"
    )


@domain.command()
@click.argument("name", metavar="ROOT/BRANCH")
@as_json
@pass_session
def show(session: CliSession, name: str, as_json: bool) -> None:
    """Show a domain and its versions."""
    with session.calls() as calls:
        found = calls.request("GET", _path(name))
    if as_json:
        print_json(found)
        return
    versions = found.pop("versions")
    print_fields({**found, "bytes": size(found["bytes"])})
    rows = [
        {**v, "bytes": size(v["bytes"]), "now": "*" if v["version"] == found["current"] else ""}
        for v in versions
    ]
    print_table(
        rows,
        {"now": "", "version": "VERSION", "created": "CREATED", "entries": "ENTRIES", "bytes": "SIZE"},
        "no versions",
    )


@domain.command()
@click.argument("name", metavar="ROOT/BRANCH")
@click.argument("version")
@as_json
@pass_session
def rollback(session: CliSession, name: str, version: str, as_json: bool) -> None:
    """Point a domain to an older VERSION."""
    with session.calls() as calls:
        found = calls.request("POST", f"{_path(name)}/rollback", {"version": version})
    print_done(found, f"{name} is at version {found['current']}", as_json)


@domain.command()
@click.argument("name", metavar="ROOT/BRANCH")
@yes_option
@as_json
@pass_session
def delete(session: CliSession, name: str, yes: bool, as_json: bool) -> None:
    """Delete a domain that no model and no branch depends on."""
    with session.calls() as calls:
        confirm(f"the domain {name}", yes, lambda: calls.request("GET", _path(name)))
        calls.request("DELETE", _path(name))
    print_done({"deleted": name}, f"{name} is deleted", as_json)


def _path(name: str) -> str:
    return f"/manage/domains/{segment(name.replace('/', '.'))}"
