"""What the pages of docs/ name in the code: modules, files, functions and links exist."""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from bench.__main__ import bench
from hmi.backup.contents import PARTS, How

REPO = Path(__file__).resolve().parents[1]
PAGES = sorted([REPO / "README.md", REPO / "bench" / "README.md", *(REPO / "docs").rglob("*.md")])
FOLDERS = {
    "hmi": REPO / "hmi",
    "plot_store": REPO / "plot_store",
    "hmi_kernels": REPO / "kernels" / "hmi_kernels",
}
MODULE = re.compile(r"`((?:hmi|plot_store|hmi_kernels)(?:\.\w+)+)`")
FILE = re.compile(r"`((?:bench|hmi|plot_store|kernels|tests|scripts|docs)/[\w./-]+)`")
BENCH = re.compile(r"python -m bench ([a-z][^`|\n]*)")
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")
WALK = re.compile(r"^\| .+ \| `(hmi/[\w/]+\.py)` \| (.+) \|$", re.MULTILINE)


def has(name: str) -> bool:
    """Whether the dotted `name` is a package, a module, or a name that stands in one."""
    top, *rest = name.split(".")
    path = FOLDERS[top]
    for at, part in enumerate(rest):
        if (path / part).is_dir():
            path = path / part
            continue
        module = path / f"{part}.py"
        inside = rest[at + 1 :] if module.exists() else rest[at:]
        text = (module if module.exists() else path / "__init__.py").read_text(encoding="utf-8")
        return all(re.search(rf"\b{word}\b", text) for word in inside)
    return True


def defined(path: Path) -> set[str]:
    """Functions of a file and methods of its classes, as `function` and `Class.method`."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            found |= {
                f"{node.name}.{n.name}"
                for n in node.body
                if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
            }
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPO)))
def test_what_a_page_names_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    missing = [name for name in MODULE.findall(text) if not has(name)]
    missing += [name for name in FILE.findall(text) if not (REPO / name).exists()]
    missing += [link for link in LINK.findall(text) if not (page.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPO)))
def test_the_benchmarks_that_a_page_runs_exist(page: Path) -> None:
    unknown = []
    for line in BENCH.findall(page.read_text(encoding="utf-8")):
        case, *words = shlex.split(line, comments=True)
        command = bench.commands.get(case)
        known = {name for option in command.params for name in option.opts} if command is not None else None
        options = {word.partition("=")[0] for word in words if word.startswith("-")}
        if known is None or options - known:
            unknown.append(line)
    assert not unknown


def test_every_benchmark_is_in_their_list() -> None:
    text = (REPO / "bench" / "README.md").read_text(encoding="utf-8")
    assert {line.split()[0] for line in BENCH.findall(text)} == set(bench.commands)


def test_the_walk_of_a_request_names_functions_that_exist() -> None:
    rows = WALK.findall((REPO / "docs" / "architecture.md").read_text(encoding="utf-8"))
    assert len(rows) > 20
    for name, functions in rows:
        assert set(re.findall(r"`([\w.]+)`", functions)) <= defined(REPO / name), name
    files = [name for name, _ in rows]
    assert {"door", "inference", "engine", "queue", "running", "executor"} <= {
        Path(name).stem for name in files
    }


def test_the_order_of_the_layers_is_the_one_that_is_checked() -> None:
    project = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = {c["name"]: c for c in project["tool"]["importlinter"]["contracts"]}
    layers = [
        " | ".join(name.strip().removeprefix("hmi.") for name in layer.split("|"))
        for layer in contracts["inside hmi"]["layers"]
    ]
    text = (REPO / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert f"inside `hmi`: `{' → '.join(layers)}`." in text


def test_the_listing_of_the_data_folder_has_every_part() -> None:
    text = (REPO / "docs" / "architecture.md").read_text(encoding="utf-8")
    listing = text.split("```\nhmi-data/\n")[1].split("```")[0]
    lines = [re.split(r"(?<=\w/) | {2,}", line.strip())[0] for line in listing.splitlines()]
    parts = [[name.rstrip("/") for name in line.split(", ")] for line in lines]
    assert sorted(name for names in parts for name in names) == sorted(PARTS)
    left_out = [PARTS[name] is How.LEFT_OUT for names in parts[-3:] for name in names]
    assert all(left_out)  # the sentence above the listing says so
    assert len(left_out) == list(PARTS.values()).count(How.LEFT_OUT)


def test_a_name_that_is_gone_would_be_found() -> None:
    assert has("hmi.engine.queue.BatchQueue")
    assert not has("hmi.engine.preparing")
    assert not has("hmi.engine.pipeline.retrieve")
    assert not has("hmi.engine.queue.NoQueue")
