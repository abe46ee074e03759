"""The input of the batch scripts: folders, and CSV, JSON or JSONL tables."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from hmi.cli.onboarding import Entry, check_plan
from hmi.errors import InvalidInput


def read_onboarding(path: Path) -> list[Entry]:
    """Read a plan: a folder with a subfolder for each tenant, or a table.

    A subfolder's name is the tenant's. It holds `model.json` ({"model", "domain", "task", "options"?}),
    `train.jsonl`, and optionally `dev.jsonl` and `unlabelled.jsonl`. A table has the columns tenant, model,
    domain, task, data, and optionally dev, unlabelled and options; its paths are relative to it. Raises
    InvalidInput.
    """
    if path.is_dir():
        entries = [_from_folder(f) for f in sorted(path.iterdir()) if (f / "model.json").is_file()]
    else:
        entries = [_from_row(row, path.parent, f"{path.name} row {n}") for n, row in enumerate(rows(path), 1)]
    return check_plan(entries)


def rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a .csv, .json (a list of objects) or .jsonl file, without their empty fields.

    Raises InvalidInput.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix == ".csv":
            found: list[Any] = list(csv.DictReader(text.splitlines()))
        elif path.suffix == ".jsonl":
            found = [json.loads(line) for line in text.splitlines() if line.strip()]
        elif path.suffix == ".json":
            found = json.loads(text)
        else:
            raise InvalidInput(f"{path} is neither a folder nor a .csv, .json or .jsonl table")
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InvalidInput(f"{path} is not well-formed: {error}") from error
    if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
        raise InvalidInput(f"{path} must hold a list of objects")
    return [{k: v for k, v in row.items() if v not in (None, "")} for row in found]


def needed(row: dict[str, Any], name: str, where: str) -> str:
    """Return a required field of a row. Raises InvalidInput if it is missing or no string."""
    value = row.get(name)
    if not isinstance(value, str):
        raise InvalidInput(f"{where} has no {name!r}: add it", field=name)
    return value


def _from_folder(folder: Path) -> Entry:
    try:
        settings = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise InvalidInput(f"{folder / 'model.json'} is not JSON: {error}") from error
    more = {part: f"{part}.jsonl" for part in ("dev", "unlabelled") if (folder / f"{part}.jsonl").is_file()}
    row = {"tenant": folder.name, "data": "train.jsonl", **more, **settings}
    return _from_row(row, folder, str(folder / "model.json"))


def _from_row(row: dict[str, Any], base: Path, where: str) -> Entry:
    known = {"tenant", "model", "domain", "task", "data", "dev", "unlabelled", "options"}
    strange = sorted(set(row) - known)
    if strange:
        raise InvalidInput(f"{where} has the unknown field {strange[0]!r}: use {', '.join(sorted(known))}")
    options = row.get("options", {})
    try:
        options = json.loads(options) if isinstance(options, str) else options
    except ValueError as error:
        raise InvalidInput(f"{where}: options is not JSON: {error}", field="options") from error
    return Entry(
        tenant=needed(row, "tenant", where),
        model=needed(row, "model", where),
        domain=needed(row, "domain", where),
        task=needed(row, "task", where),
        data=base / needed(row, "data", where),
        dev=base / row["dev"] if "dev" in row else None,
        unlabelled=base / row["unlabelled"] if "unlabelled" in row else None,
        options=options,
    )
