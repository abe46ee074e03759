"""The input of the batch scripts: folders, and CSV, JSON or JSONL tables."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

from hmi.cli.tenants.onboarding import ModelEntry, check_plan
from hmi.errors import InvalidInput
from hmi.jobs.options import Reading, checked_options

LIMITS = ("requests_per_s", "tokens_per_s", "models", "bytes")
"""Limits of a tenant that may have a column of their own."""
KNOWN = frozenset({"tenant", "model", "domain", "task", "data", "rows", "dev", "unlabelled", "options"})
KNOWN |= {"weight", "limits", *LIMITS, *Reading.model_fields}


def read_onboarding(path: Path) -> list[ModelEntry]:
    """Read a plan: a folder with a subfolder for each tenant, or a table.

    A subfolder's name is the tenant's. It holds `model.json` ({"model", "domain", "task", "options"?}),
    `train.jsonl`, and optionally `dev.jsonl` and `unlabelled.jsonl`. A table has the columns tenant, model,
    domain, task, and data (a path relative to the table) or rows (the rows themselves, a list of objects in
    JSON); and optionally dev, unlabelled, options, weight, limits or a column for each limit, and a column
    for each option that says how to read the files (text_column, label_column, …). Raises InvalidInput.
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
            found: list[Any] = list(csv.DictReader(io.StringIO(text)))
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


def _from_folder(folder: Path) -> ModelEntry:
    try:
        settings = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise InvalidInput(f"{folder / 'model.json'} is not JSON: {error}") from error
    more = {part: f"{part}.jsonl" for part in ("dev", "unlabelled") if (folder / f"{part}.jsonl").is_file()}
    row = {"tenant": folder.name, "data": "train.jsonl", **more, **settings}
    return _from_row(row, folder, str(folder / "model.json"))


def _from_row(row: dict[str, Any], base: Path, where: str) -> ModelEntry:
    strange = sorted(set(row) - KNOWN)
    if strange:
        raise InvalidInput(f"{where} has the unknown field {strange[0]!r}: use {', '.join(sorted(KNOWN))}")
    if "rows" in row and "data" in row:
        raise InvalidInput(f"{where} has both 'rows' and 'data': give one of them", field="rows")
    task = needed(row, "task", where)
    if task != "embedding" and "rows" not in row:
        needed(row, "data", where)
    files = {part: base / needed(row, part, where) for part in ("data", "dev", "unlabelled") if part in row}
    return ModelEntry(
        tenant=needed(row, "tenant", where),
        model=needed(row, "model", where),
        domain=needed(row, "domain", where),
        task=task,
        rows=_inline(row["rows"], where) if "rows" in row else None,
        options={**_object(row, "options", where), **_reading(row, where)},
        settings=_settings(row, where),
        **files,
    )


def _inline(value: Any, where: str) -> bytes:
    """Rows that stand in the table itself, a list of objects, as JSONL."""
    found = _parsed(value, "rows", where)
    if not isinstance(found, list) or not found or not all(isinstance(row, dict) for row in found):
        raise InvalidInput(f"{where}: rows must be a list of objects", field="rows")
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in found).encode()


def _reading(row: dict[str, Any], where: str) -> dict[str, Any]:
    """How to read the model's files. A list of names is JSON, or a text with commas."""
    given = {name: row[name] for name in Reading.model_fields if name in row}
    for name in ("labels_columns", "labels"):
        if isinstance(given.get(name), str) and not given[name].startswith("["):
            given[name] = [word.strip() for word in given[name].split(",")]
    for name in ("text_column", "labels_columns", "labels"):
        if isinstance(given.get(name), str) and given[name].startswith("["):
            given[name] = _parsed(given[name], name, where)
    if "header" in given:
        given["header"] = _parsed(str(given["header"]).lower(), "header", where)
    try:
        checked_options(Reading, given)
    except InvalidInput as error:
        raise InvalidInput(f"{where}: {error.message}", field=str(error.details.get("field"))) from error
    return given


def _settings(row: dict[str, Any], where: str) -> dict[str, Any]:
    """The tenant's settings, for the call that creates it. A limit may stand in a column of its own."""
    found = {"weight": _number(row, "weight", where)} if "weight" in row else {}
    limits = _object(row, "limits", where)
    limits |= {name: _number(row, name, where) for name in LIMITS if name in row}
    return {**found, "limits": limits} if limits else dict(found)


def _number(row: dict[str, Any], name: str, where: str) -> float:
    found = _parsed(row[name], name, where)
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise InvalidInput(f"{where}: {name} = {row[name]!r} is not a number", field=name)
    return found


def _object(row: dict[str, Any], name: str, where: str) -> dict[str, Any]:
    found = _parsed(row.get(name, {}), name, where)
    if not isinstance(found, dict):
        raise InvalidInput(f"{where}: {name} must be a JSON object", field=name)
    return found


def _parsed(value: Any, name: str, where: str) -> Any:
    """A value of a table: JSON text, as in a CSV file, or the value itself."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError as error:
        raise InvalidInput(
            f"{where}: {name} is not JSON ({error}): give it as JSON text", field=name
        ) from error
