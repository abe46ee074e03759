"""Lets a tool's own package write files, and reads them as HMI does.

The packages may want other versions of others than HMI. So they run under an interpreter of their own, which
HMI_TOOLS names (`make tools`); without it, under this one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hmi.core import Task
from hmi.jobs.checks import inspect_file
from hmi.training.data.reading import Reading
from hmi.training.data.rows import Row, read_labelled_file
from tests.tools.truth import TRUTH

PYTHON = str(Path(os.environ.get("HMI_TOOLS", sys.executable)).absolute())
PROGRAMS = Path(__file__).parent / "programs"
FIND = "import sys, importlib.util as u; sys.exit(u.find_spec(sys.argv[1]) is None)"
MODULES = {"doccano": "backend.data_export", "label-studio-sdk": "label_studio_sdk.converter"}
"""What a package holds, where that has another name."""
BEGINS, GOES_ON = ("B", "U", "S"), ("I", "L", "E")


def written(folder: Path, package: str, program: str, given: Any = TRUTH) -> Path:
    """The folder with the files that a program writes there of what it is given. Skips the test without the
    package."""
    if subprocess.run([PYTHON, "-c", FIND, MODULES.get(package, package)], capture_output=True).returncode:
        pytest.skip(f"{package} is not installed: the tools that write files have an extra of their own")
    command = [PYTHON, str(PROGRAMS / program)]
    told = json.dumps(given)
    ran = subprocess.run(command, cwd=folder, input=told, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return folder


def read(path: Path, task: Task, **reading: Any) -> list[Row]:
    """The rows of a file that must show its task itself, or with the options that are given."""
    options = Reading(**reading)
    found = inspect_file(path, None, reading=options)
    assert (found.error, found.task) == (None, task), found.read
    return read_labelled_file(path, task, reading=options).rows


def entities_of(row: Row) -> list[tuple[str, str]]:
    """The entities of a row of words, as (text without spaces, label)."""
    found: list[tuple[str, str]] = []
    for word, tag in zip(row.text, row.label, strict=True):  # type: ignore[arg-type]
        mark, _, label = str(tag).partition("-")
        if mark in BEGINS:
            found.append((word, label))
        elif mark in GOES_ON:
            found[-1] = (found[-1][0] + word, label)
    return found


def squeezed(text: str) -> str:
    return "".join(text.split())


def check_entities(rows: Sequence[Row], truth: Sequence[dict[str, Any]] = TRUTH) -> None:
    """Compare rows of words with the truth. Tools split words in their own ways, so the letters count."""
    wanted = [
        (squeezed(row["text"]), [(squeezed(row["text"][a:b]), name) for a, b, name in row["entities"]])
        for row in truth
    ]
    assert [(squeezed("".join(row.text)), entities_of(row)) for row in rows] == wanted


def check_labels(rows: Sequence[Row], truth: Sequence[dict[str, Any]] = TRUTH) -> None:
    """Compare rows with one label each with the truth."""
    assert [(row.text, row.label) for row in rows] == [(row["text"], row["label"]) for row in truth]


def check_sets(rows: Sequence[Row], truth: Sequence[dict[str, Any]] = TRUTH) -> None:
    """Compare rows with any number of labels with the truth."""
    found = [(row.text, sorted(row.label)) for row in rows]  # type: ignore[arg-type]
    assert found == [(row["text"], sorted(row["labels"])) for row in truth]
