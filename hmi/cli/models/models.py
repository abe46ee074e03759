"""`hmi model`: create, update, list, show, roll back, publish, delete, exchange modules."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any, get_args

import click

from hmi.cli.framework.base import CommandGroup, as_json, pass_session
from hmi.cli.framework.options import FILE, Whole, confirm, job_options, settings_option, yes_option
from hmi.cli.framework.output import notes, print_done, print_fields, print_json, print_table, size
from hmi.cli.framework.progress import finish
from hmi.cli.framework.reading import reading_options
from hmi.cli.framework.second_version import show_tried
from hmi.cli.framework.session import CliSession, segment
from hmi.cli.models.cascades import cascade
from hmi.cli.models.check import lengths_of, reading_as, show_formats, skipping
from hmi.cli.models.exits import depth, exits, feedback, objective
from hmi.cli.models.novelty import known
from hmi.cli.models.report import brief, report
from hmi.cli.models.tokens import tokens
from hmi.core import Task
from hmi.errors import InvalidInput
from hmi.jobs.options import Publish
from hmi.model.files import write_bytes

TASKS = click.Choice(get_args(Task))
PAGE = 1000
PUBLISH = click.option(
    "--publish",
    type=click.Choice(get_args(Publish)),
    default="if-better",
    show_default=True,
    help="When the new version answers. if-better: if it is not worse than the live one on the same "
    "held-out rows. always: whatever its score. never: only after 'hmi model publish'.",
)
UNLABELLED = click.option(
    "--unlabelled",
    type=FILE,
    help="Texts without answers, which a teacher labels. Often better, slower to train.",
)

SKIP = click.option(
    "--skip-bad-rows",
    "skip",
    type=Whole(0),
    metavar="N",
    help="Leave out up to N bad rows of each file and list them; with more the job fails.",
)


@click.group(cls=CommandGroup)
def model() -> None:
    """Models: each belongs to a tenant and is named TENANT.MODEL."""


model.add_command(report)
model.add_command(cascade)
for command in (objective, exits, feedback, tokens, known, depth):
    model.add_command(command)


@model.command()
@click.argument("name", metavar="TENANT.MODEL")
@click.argument("data", type=FILE, required=False)
@click.option("--domain", required=True, help="The model's domain, ROOT/BRANCH.")
@click.option("--task", type=TASKS, help="What the model is made for (default: as the data's columns tell).")
@click.option("--dev", type=FILE, help="Held-out rows (default: a share of the data).")
@UNLABELLED
@SKIP
@reading_options
@settings_option()
@job_options
@pass_session
def create(
    session: CliSession,
    name: str,
    data: Path | None,
    domain: str,
    task: str | None,
    dev: Path | None,
    unlabelled: Path | None,
    skip: int | None,
    reading: dict[str, Any],
    options: dict[str, Any],
    detach: bool,
    as_json: bool,
) -> None:
    """Create a model and train it on the rows of DATA (JSON, CSV or CoNLL).

    For the task embedding, leave DATA out.
    """
    if data is None and task != "embedding":
        raise InvalidInput(
            f"data is missing: a {task or 'new'} model is trained on rows, so name their file", field="data"
        )
    session.may_start_jobs()
    options, files = reading_as(options, skip, reading), _files(data, dev, unlabelled)
    shown = show_formats(task, files, options)
    body = {"model": name, "domain": domain, "task": shown.task, "options": options}
    with session.calls() as calls:
        job = calls.request("POST", "/manage/models", body, files)["job"]
        finish(session, calls, job, detach=detach, as_json=as_json, told=shown.notes)


@model.command()
@click.argument("name", metavar="TENANT.MODEL")
@click.argument("data", type=FILE, required=False)
@click.option("--dev", type=FILE, help="Held-out rows (default: a share of the data).")
@UNLABELLED
@PUBLISH
@SKIP
@reading_options
@settings_option()
@job_options
@pass_session
def update(
    session: CliSession,
    name: str,
    data: Path | None,
    dev: Path | None,
    unlabelled: Path | None,
    publish: str,
    skip: int | None,
    reading: dict[str, Any],
    options: dict[str, Any],
    detach: bool,
    as_json: bool,
) -> None:
    """Train a model's next version on the rows of DATA.

    It answers from then on, unless it is worse than the live version.

    Exit code 3: the new version was held back, because it is worse or takes inputs of another form. With
    --publish never, which asks for this, the exit code is 0.
    """
    session.may_start_jobs()
    options, files = reading_as(options, skip, reading), _files(data, dev, unlabelled)
    with session.calls() as calls:
        path = f"/manage/models/{segment(name)}"
        live = calls.request("GET", path)
        shown = show_formats(live["task"], files, {**lengths_of(live), **options})
        body = {"options": options, "publish": publish}
        job = calls.request("POST", f"{path}/update", body, files)["job"]
        finish(session, calls, job, detach=detach, as_json=as_json, told=shown.notes)


@model.command()
@click.argument("name", metavar="TENANT.MODEL")
@click.option("--unlabelled", type=FILE, help="Texts without answers.")
@click.option("--rows", "data", type=FILE, help="Rows, whose answers are ignored.")
@SKIP
@reading_options
@job_options
@pass_session
def ramps(
    session: CliSession,
    name: str,
    unlabelled: Path | None,
    data: Path | None,
    skip: int | None,
    reading: dict[str, Any],
    detach: bool,
    as_json: bool,
) -> None:
    """Train ramps, by which texts may leave early, and publish them as a new version.

    Its weights are those of the live version, so its answers are the same. Ramps learn the model's own
    answers. Texts that the model was not trained on are worth most. At least one of --unlabelled and --rows
    is required.
    """
    session.may_start_jobs()
    files = _files(data, None, unlabelled)
    with session.calls() as calls:
        body = {**skipping(skip), "options": reading}
        job = calls.request("POST", f"/manage/models/{segment(name)}/ramps", body, files)["job"]
        finish(session, calls, job, detach=detach, as_json=as_json)


@model.command("list")
@click.option("--tenant", help="Only models of this tenant.")
@click.option("--domain", help="Only models on this domain.")
@click.option("--task", type=TASKS, help="Only models for this task.")
@as_json
@pass_session
def list_(
    session: CliSession, tenant: str | None, domain: str | None, task: str | None, as_json: bool
) -> None:
    """List the models."""
    query = {"tenant": tenant, "domain": domain, "task": task, "limit": str(PAGE)}
    given = {name: value for name, value in query.items() if value is not None}
    models: list[dict[str, Any]] = []
    with session.calls() as calls:
        while True:
            page = calls.request("GET", "/manage/models", query=given)
            models += page["models"]
            if page["next"] is None:
                break
            given["after"] = page["next"]
    if as_json:
        print_json(models)
        return
    rows = [{**m, "versions": len(m["versions"]), "bytes": size(m["bytes"])} for m in models]
    columns = {
        "model": "MODEL",
        "domain": "DOMAIN",
        "task": "TASK",
        "labels": "LABELS",
        "current": "CURRENT",
        "versions": "VERSIONS",
        "bytes": "SIZE",
    }
    print_table(rows, columns, "no models: 'hmi model create' makes one")


@model.command()
@click.argument("name", metavar="TENANT.MODEL")
@as_json
@pass_session
def show(session: CliSession, name: str, as_json: bool) -> None:
    """Show a model and its versions."""
    with session.calls() as calls:
        found = calls.request("GET", f"/manage/models/{segment(name)}")
    if as_json:
        print_json(found)
        return
    versions, state = found.pop("versions"), found.pop("exits", None)
    # A server of an earlier version has none of these.
    adapted, improving = found.pop("tokens", None), found.pop("improving", None)
    about = {"metrics": brief(found["metrics"]), "bytes": size(found["bytes"])}
    said = {
        name: "-" if each is None else each["says"]
        for name, each in (("exits", state), ("tokens", adapted), ("improving", improving))
    }
    print_fields({**found, **about, **said})
    for version in versions:
        version["metrics"] = brief(version["metrics"])
        version["ramps"] = ", ".join(map(str, version.get("ramps", ())))
        back = version.get("held_back")  # a server of an earlier version has none
        version["state"] = (
            "answers" if version["version"] == found["current"] else f"held back: {back}" if back else ""
        )
    print_table(
        versions,
        {
            "version": "VERSION",
            "created": "CREATED",
            "domain": "DOMAIN",
            "root": "ROOT",
            "plot_version": "PLOT",
            "metrics": "METRICS",
            "ramps": "RAMPS",
            "temperature": "TEMPERATURE",
            "state": "STATE",
        },
        "no versions",
    )
    show_tried(improving)


@model.command()
@click.argument("name", metavar="TENANT.MODEL")
@click.argument("version", type=Whole(1))
@as_json
@pass_session
def rollback(session: CliSession, name: str, version: int, as_json: bool) -> None:
    """Let an older VERSION answer."""
    _let_answer(session, name, version, as_json)


@model.command()
@click.argument("name", metavar="TENANT.MODEL")
@click.argument("version", type=Whole(1))
@as_json
@pass_session
def publish(session: CliSession, name: str, version: int, as_json: bool) -> None:
    """Let VERSION answer, for example one that was held back."""
    _let_answer(session, name, version, as_json)


def _let_answer(session: CliSession, name: str, version: int, as_json: bool) -> None:
    with session.calls() as calls:
        found = calls.request("POST", f"/manage/models/{segment(name)}/rollback", {"version": version})
    print_done(found, f"{name} is at version {found['current']}", as_json)


@model.command()
@click.argument("name", metavar="TENANT.MODEL")
@yes_option
@as_json
@pass_session
def delete(session: CliSession, name: str, yes: bool, as_json: bool) -> None:
    """Delete a model with all its versions."""
    path = f"/manage/models/{segment(name)}"
    with session.calls() as calls:
        confirm(f"the model {name} with all its versions", yes, lambda: calls.request("GET", path))
        calls.request("DELETE", path)
    print_done({"deleted": name}, f"{name} is deleted", as_json)


@model.command("export-module")
@click.argument("name", metavar="TENANT.MODEL")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@as_json
@pass_session
def export_module(session: CliSession, name: str, folder: Path, as_json: bool) -> None:
    """Write the module to FOLDER in the format of the `adapters` library, of a model that writes in that of
    `peft`.

    The head is written too, if the library has one of the same form.
    """
    with session.calls() as calls:
        made = calls.request("GET", f"/manage/models/{segment(name)}/module")
    folder.mkdir(parents=True, exist_ok=True)
    for file, data in made["files"].items():
        write_bytes(folder / Path(file).name, base64.b64decode(data))
    done = f"{folder} holds version {made['version']} of {name} for {made['format']}"
    print_done({**made, "folder": str(folder), "files": sorted(made["files"])}, done, as_json)
    for reason in made["left_out"]:
        notes.print(f"left out: {reason}")


@model.command("import-module")
@click.argument("name", metavar="TENANT.MODEL")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--domain", required=True, help="The model's domain, ROOT/BRANCH.")
@click.option(
    "--rows", "data", type=FILE, help="Rows to train the module on further; required if FOLDER has no head."
)
@click.option("--dev", type=FILE, help="Held-out rows (default: a share of the data).")
@click.option("--task", type=TASKS, help="The task of the rows (default: as their columns tell).")
@SKIP
@reading_options
@settings_option()
@job_options
@pass_session
def import_module(
    session: CliSession,
    name: str,
    folder: Path,
    domain: str,
    data: Path | None,
    dev: Path | None,
    task: str | None,
    skip: int | None,
    reading: dict[str, Any],
    options: dict[str, Any],
    detach: bool,
    as_json: bool,
) -> None:
    """Create a model from an adapter in FOLDER: of `adapters`, saved with use_safetensors=True, or of `peft`
    on a language model's domain."""
    session.may_start_jobs()
    files = _adapter_files(folder)
    options, rows = reading_as(options, skip, reading), _files(data, dev, None)
    if (folder / PEFT_FILE).is_file():
        task = "generation"
    shown = show_formats(task if data else task or "classification", rows, options)
    files |= rows
    body = {"model": name, "domain": domain, "task": shown.task, "options": options}
    with session.calls() as calls:
        job = calls.request("POST", "/manage/models/import", body, files)["job"]
        finish(session, calls, job, detach=detach, as_json=as_json, told=shown.notes)


ADAPTER_FILES = {
    "adapter_config": ("adapter_config.json", None),
    "adapter": ("adapter.safetensors", "pytorch_adapter.bin"),
    "head_config": ("head_config.json", None),
    "head": ("model_head.safetensors", "pytorch_model_head.bin"),
}
"""By part of an import: its file, and the pickle that `adapters` writes by default instead, or None."""
PEFT_FILE = "adapter_model.safetensors"
"""The adapter's file as `peft` names it."""


def _adapter_files(folder: Path) -> dict[str, Path]:
    """Return an adapter's files by part. Raises InvalidInput if one is missing or a pickle."""
    found = {part: folder / file for part, (file, _) in ADAPTER_FILES.items() if (folder / file).is_file()}
    if (folder / PEFT_FILE).is_file():
        found.setdefault("adapter", folder / PEFT_FILE)
    for part, (file, pickle) in ADAPTER_FILES.items():
        if part not in found and pickle is not None and (folder / pickle).exists():
            raise InvalidInput(
                f"{folder / pickle} is a pickle, which could run code: save the adapter again with "
                "model.save_adapter(folder, name, use_safetensors=True)",
                field=part,
            )
        if part not in found and not part.startswith("head"):
            raise InvalidInput(
                f"there is no {file} in {folder}: give the folder that save_adapter wrote", field=part
            )
    return found


def _files(data: Path | None, dev: Path | None, unlabelled: Path | None) -> dict[str, Path]:
    files = {"data": data, "dev": dev, "unlabelled": unlabelled}
    return {name: file for name, file in files.items() if file is not None}
