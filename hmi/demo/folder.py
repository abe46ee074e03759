"""The folder layout that the demo reads, for its own text and for a user's.

FOLDER/
  root.txt               general text, one document a line: the root's own PLOT
  <domain>.txt           one branch of the root for each further file
  <tenant>/model.json    {"model": "topic", "domain": "news", "task": "classification", "about": "…"}
                         with the task `generation` also a "form" that answers keep; its domain is `root`
  <tenant>/train.jsonl   rows of the task; dev.jsonl (may be missing) and test.jsonl likewise
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

from hmi.core import Task, check_name
from hmi.demo.dataset import Row, TenantText
from hmi.errors import InvalidInput

ROOT = "root"


@dataclass(frozen=True)
class TenantFolder:
    """A tenant's part of the layout. `domain` is `root` or the name of a corpus."""

    tenant: str
    model: str
    domain: str
    task: Task
    about: str
    train: Path
    dev: Path | None
    test: Path
    options: dict[str, Any]
    form: dict[str, Any] | None = None
    """What the answers of a model that writes must keep, as in a request."""

    @property
    def id(self) -> str:
        return f"{self.tenant}.{self.model}"

    @property
    def writes(self) -> bool:
        return self.task == "generation"


@dataclass(frozen=True)
class TextFolder:
    root_text: Path
    branches: Mapping[str, Path]
    tenants: tuple[TenantFolder, ...]


def write_tenant(folder: Path, text: TenantText) -> None:
    home = folder / text.tenant
    home.mkdir()
    about = {
        "model": text.model,
        "domain": text.domain,
        "task": text.task,
        "about": text.about,
        "options": text.options,
        **({"form": text.form} if text.form else {}),
    }
    (home / "model.json").write_text(json.dumps(about, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for split, rows in text.rows.items():
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (home / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8")


def read_folder(folder: Path) -> TextFolder:
    """Check and read the layout. Raises InvalidInput, which says what is missing and where it belongs."""
    if not (folder / "root.txt").is_file():
        raise InvalidInput(
            f"{folder} has no root.txt: put general text there, one document a line", field="text"
        )
    branches = {check_name(p.stem, "text"): p for p in sorted(folder.glob("*.txt")) if p.stem != ROOT}
    tenants = tuple(_tenant(p.parent, branches) for p in sorted(folder.glob("*/model.json")))
    if not tenants:
        raise InvalidInput(
            f"{folder} has no tenant: put <tenant>/model.json and its rows there", field="text"
        )
    return TextFolder(folder / "root.txt", branches, tenants)


def read_rows(path: Path) -> list[Row]:
    return list(_lines(path))


def _lines(path: Path) -> Iterator[Row]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            yield json.loads(line)
        except ValueError as error:
            raise InvalidInput(
                f"{path}, line {number}, is not JSON ({error}): one object a line", field="text"
            ) from error


def _tenant(home: Path, branches: Mapping[str, Path]) -> TenantFolder:
    try:
        about: Any = json.loads((home / "model.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise InvalidInput(f"{home / 'model.json'} is not JSON ({error})", field="text") from error
    if not isinstance(about, dict):
        raise InvalidInput(
            f"{home / 'model.json'} is not a JSON object: see docs/development.md", field="text"
        )
    domain, task = about.get("domain", ROOT), about.get("task")
    if domain != ROOT and domain not in branches:
        raise InvalidInput(
            f"{home.name} has the domain {domain!r}: add {domain}.txt, or use {ROOT!r}", field="text"
        )
    if task not in get_args(Task):
        raise InvalidInput(
            f"{home.name} has the task {task!r}: use one of {', '.join(get_args(Task))}", field="text"
        )
    if task == "generation" and domain != ROOT:
        raise InvalidInput(
            f"{home.name} writes and has the domain {domain!r}: use {ROOT!r}, the language model's own",
            field="text",
        )
    for needed in ("train.jsonl", "test.jsonl"):
        if not (home / needed).is_file():
            raise InvalidInput(
                f"{home} has no {needed}: put the rows there, one JSON object a line", field="text"
            )
    return TenantFolder(
        tenant=check_name(home.name, "text"),
        model=check_name(str(about.get("model", "model")), "text"),
        domain=domain,
        task=cast(Task, task),
        about=str(about.get("about", "")),
        train=home / "train.jsonl",
        dev=home / "dev.jsonl" if (home / "dev.jsonl").is_file() else None,
        test=home / "test.jsonl",
        options=dict(about.get("options", {})),
        form=about.get("form"),
    )
