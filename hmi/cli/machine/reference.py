"""`hmi reference`: pages of the documentation that are generated from the code."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from hmi.cli.framework.base import FolderCommand, pass_session
from hmi.cli.framework.session import CliSession

if TYPE_CHECKING:
    from pydantic import BaseModel

HEAD: Final = (
    "# {title}\n\n<!-- Generated from the code by `python -m hmi reference --out docs/reference` -->\n\n"
)
COMMON: Final = frozenset({"common_data", "common_url", "common_key", "common_ca", "common_config", "help"})
"""The parameters that every command has."""


def commands() -> str:
    """Return the page of all commands."""
    from hmi.cli import cli

    text = HEAD.format(title="Commands") + (
        "Every command has `--help`. All but `serve` have `--json`. `--data FOLDER` names the data folder, "
        "`--url URL` a running server, and `--key KEY` the key for it; a command says which of them it "
        "takes. `--config FILE` names a file of [settings](../settings.md).\n"
    )
    return text + "".join(_command(path, command) for path, command in _tree(cli, ("hmi",)))


def _tree(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        if inner is not None and not inner.hidden:
            yield from _tree(inner, (*path, name))


def _command(path: tuple[str, ...], command: click.Command) -> str:
    context = click.Context(command, info_name=" ".join(path))
    usage = " ".join(["`" + " ".join(path), *_arguments(command)]) + "`"
    about = inspect.cleandoc(command.help or "").split("\f")[0].replace("\n\n\b\n", "\n\n")
    rows = [
        record
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.hidden and parameter.name not in COMMON
        if (record := parameter.get_help_record(context)) is not None
    ]
    table = "".join(f"| `{_cell(names)}` | {_cell(what)} |\n" for names, what in rows)
    head = "\n| option | what it does |\n|---|---|\n" if rows else ""
    return f"\n## {' '.join(path)}\n\n{usage}\n\n{about}\n{head}{table}"


def _arguments(command: click.Command) -> list[str]:
    return [p.make_metavar(click.Context(command)) for p in command.params if isinstance(p, click.Argument)]


def errors() -> str:
    """Return the page of all kinds of errors."""
    from hmi.api.protocols.errors import RETRY_AFTER_S, STATUS

    about = _kinds()
    text = HEAD.format(title="Errors") + (
        "Each error has a stable `kind`. The message says what is wrong and what to do about it; `details` "
        "names the field, if one is at fault. The protocols of other servers wrap errors in their own shape "
        "([protocols](../protocols.md)); the status is the same.\n\n"
        "| kind | status | when |\n|---|---|---|\n"
    )
    for kind, status in STATUS.items():
        wait = " The header Retry-After says when to try again." if status in RETRY_AFTER_S else ""
        text += f"| `{kind}` | {status} | {_cell(about[kind])}{wait} |\n"
    return text


def _kinds() -> dict[str, str]:
    """The first sentence about each kind of error, from the classes and the tree in `hmi.errors`."""
    import hmi.errors
    from hmi.api.protocols import errors as edge

    found = {"internal": "A fault of the server: quote the request_id when you report it."}
    for line in (hmi.errors.__doc__ or "").splitlines():
        words = line.replace("│", " ").replace("├──", " ").replace("└──", " ").split(None, 2)
        if len(words) == 3 and hasattr(hmi.errors, words[0]):
            # Of classes of one kind the first says what it is.
            found.setdefault(words[1], words[2][0].upper() + words[2][1:].rstrip(".") + ".")
    for value in vars(edge).values():
        if (
            inspect.isclass(value)
            and issubclass(value, hmi.errors.HmiError)
            and value.__module__ == edge.__name__
        ):
            found[value.kind] = inspect.cleandoc(value.__doc__ or "").split("\n\n")[0].replace("\n", " ")
    return found


def options() -> str:
    """Return the page of the options of jobs."""
    from hmi.jobs.options import BuildPlotOptions, FineTuneOptions, ImportRootOptions

    parts: dict[str, tuple[type[BaseModel], str]] = {
        "Training a model": (FineTuneOptions, "`hmi model create`, `hmi model update`"),
        "Building a domain": (BuildPlotOptions, "`hmi domain create`, `hmi domain update`"),
        "Importing a root": (ImportRootOptions, "`hmi root import`"),
    }
    text = HEAD.format(title="Options of jobs") + (
        "A command gives an option as `--option NAME=VALUE`, a field of `module` as `--option "
        "module.rank=8`. Over HTTP they are the member `options` of the call's JSON.\n"
    )
    for title, (model, where) in parts.items():
        text += f"\n## {title}\n\nFor {where}.\n\n"
        text += "| option | default | range | what it does |\n|---|---|---|---|\n"
        for name, about in model.model_json_schema()["properties"].items():
            what = about.get("description", "")
            text += f"| `{name}` | {_default(about)} | {_range(about)} | {_cell(what)} |\n"
    return text


def _default(about: dict[str, Any]) -> str:
    value = about.get("default")
    return "chosen" if value is None else f"`{value}`".lower() if isinstance(value, bool) else f"`{value}`"


def _range(about: dict[str, Any]) -> str:
    """The values that a field takes, from its JSON schema."""
    choices = [about, *about.get("anyOf", [])]
    named = next((c["enum"] for c in choices if "enum" in c), None)
    if named:
        return ", ".join(f"`{value}`" for value in named)
    for one in choices:
        least = one.get("minimum", one.get("exclusiveMinimum"))
        most = one.get("maximum", one.get("exclusiveMaximum"))
        if least is not None or most is not None:
            return (
                f"from {least}" if most is None else f"to {most}" if least is None else f"{least} to {most}"
            )
    return ""


def metrics() -> str:
    """Return the page of all metrics. It loads the engine, which takes seconds."""
    from hmi.api.process.building import build_services
    from hmi.config import Settings

    text = HEAD.format(title="Metrics") + (
        "`GET /metrics` answers in the Prometheus text format. Figures by tenant name the busiest tenants; "
        "the others are summed under `other`.\n\n| metric | type | labels | what it is |\n|---|---|---|---|\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        services = build_services(Settings(data=Path(folder)))
        try:
            found = dict(_families(services.monitoring.metrics.registry))
        finally:
            services.manager.close()
    return text + "".join(found[name] for name in sorted(found) if name.startswith("hmi_"))


def _families(registry: Any) -> Iterator[tuple[str, str]]:
    """The name and the row of each metric. prometheus_client has no public way to a metric's labels."""
    for collector in registry._collector_to_names:
        for family in collector.collect():
            names = [*getattr(collector, "_labelnames", ())] or [*getattr(family, "_labelnames", ())]
            labels = ", ".join(f"`{name}`" for name in names)
            name = family.name + ("_total" if family.type == "counter" else "")
            yield name, f"| `{name}` | {family.type} | {labels} | {_cell(family.documentation)} |\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


PAGES: Final[dict[str, Callable[[], str]]] = {
    "commands": commands,
    "errors": errors,
    "metrics": metrics,
    "options": options,
}
"""The pages by the names of their files."""


@click.command("reference", cls=FolderCommand, hidden=True)
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), required=True, help="Folder for the pages."
)
@pass_session
def reference(session: CliSession, out: Path) -> None:
    """Write the pages of the documentation that are generated from the code."""
    session.not_remote("it writes the pages of this release: leave --url out")
    out.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (out / f"{name}.md").write_text(page(), encoding="utf-8")
        click.echo(f"wrote {name}.md", err=True)
