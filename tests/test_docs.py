"""What the pages of docs/ and the docstrings name exists: modules, classes, files, links, targets of make.
The layers that they tell are those that import-linter checks."""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from functools import cache
from pathlib import Path

import pytest

from bench.__main__ import bench
from hmi.backup import manifest
from hmi.backup.contents import PARTS, How
from hmi.model.sources import root
from hmi.stores import layout
from hmi.stores.journal import format as journal
from hmi.stores.records import sealed
from plot_store.care import archive_format
from plot_store.catalogue import catalogue
from plot_store.ground.nouns import FORMATS
from plot_store.remote import format as remote

REPO = Path(__file__).resolve().parents[1]
PAGES = sorted([REPO / "README.md", REPO / "bench" / "README.md", *(REPO / "docs").rglob("*.md")])
FOLDERS = {
    "hmi": REPO / "hmi",
    "plot_store": REPO / "plot_store",
    "hmi_kernels": REPO / "kernels" / "hmi_kernels",
}
SOURCES = sorted(path for folder in FOLDERS.values() for path in folder.rglob("*.py"))
ROOMS = "|".join(
    sorted({path.name for path in FOLDERS["hmi"].iterdir() if path.is_dir()} - {"client", "metrics"})
)
"""Packages of hmi that pages also name without `hmi.`. In examples `client` and `metrics` are variables."""
MODULE = re.compile(
    rf"`((?:hmi|plot_store|hmi_kernels|{ROOMS})(?:\.(?!(?:json|safetensors)`)\w+)+)`((?:, `(?:\.\w+)+`)*)"
)
"""A dotted name, and the names beside it that are written shorter: `hmi.model.sources.root`, `.shape`."""
TERM = re.compile(r"^\| \*\*.+\| (.*) \|$", re.MULTILINE)
"""The last cell of a row of the glossary: where the term is in the code."""
MEMBER = re.compile(r"`([A-Z]\w*[a-z]\w*)(?:\.(\w+))?`")
TARGET = re.compile(r"^\s*make ([a-z][a-z-]*)|`make ([a-z][a-z-]*)\b", re.MULTILINE)
FILE = re.compile(r"`((?:bench|hmi|plot_store|kernels|tests|scripts|docs)/[\w./-]+)`")
BENCH = re.compile(r"python -m bench ([a-z][^`|\n]*)")
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")
WALK = re.compile(r"^\| .+ \| `(hmi/[\w/]+\.py)` \| (.+) \|$", re.MULTILINE)


def names_in(text: str) -> set[str]:
    """The dotted names that a text gives, those that are written shorter in full."""
    found = set()
    for name, beside in MODULE.findall(text):
        full = name if name.split(".")[0] in FOLDERS else f"hmi.{name}"
        found |= {full, *(full.rpartition(".")[0] + short for short in re.findall(r"`([.\w]+)`", beside))}
    return found


def bound(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    """The names that the body of a module or of a class binds, also as `self.name` in a method."""
    found: dict[str, ast.stmt] = {}
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found[node.name] = node
        if isinstance(node, ast.ClassDef):
            continue
        for each in ast.walk(node):
            if isinstance(each, ast.Name | ast.Attribute) and isinstance(each.ctx, ast.Store):
                found.setdefault(each.id if isinstance(each, ast.Name) else each.attr, node)
            elif isinstance(each, ast.alias):
                found.setdefault(each.asname or each.name, node)
    return found


@cache
def bound_in(path: Path) -> dict[str, ast.stmt]:
    return bound(ast.parse(path.read_text(encoding="utf-8")).body)


@cache
def members(name: str) -> set[str] | None:
    """The members of all classes of a name, with those of their bases; None if there is no such class."""
    found: set[str] | None = None
    for path in SOURCES:
        node = bound_in(path).get(name)
        if isinstance(node, ast.ClassDef):
            bases = (members(base.id) for base in node.bases if isinstance(base, ast.Name))
            found = (found or set()).union(bound(node.body), *(each or () for each in bases))
    return found


def has(name: str) -> bool:
    """Whether the dotted `name` is a package, a module, or a name that one of them or its class binds."""
    top, *rest = name.split(".")
    path = FOLDERS[top]
    while rest and (path / rest[0]).is_dir():
        path = path / rest.pop(0)
    if not rest:
        return True
    module = path / f"{rest[0]}.py"
    if module.exists():
        rest.pop(0)
    names = bound_in(module if module.exists() else path / "__init__.py")
    for word in rest:
        if word not in names:
            return False
        node = names[word]
        names = bound(node.body) if isinstance(node, ast.ClassDef) else {}
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
    missing = [name for name in names_in(text) if not has(name)]
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
    assert {"listener", "inference", "engine", "queue", "running", "executor"} <= {
        Path(name).stem for name in files
    }


def test_docstrings_and_comments_name_what_exists() -> None:
    text = {path: path.read_text(encoding="utf-8") for path in SOURCES}
    missing = [(path.name, name) for path in SOURCES for name in names_in(text[path]) if not has(name)]
    pages = ((path, page) for path in SOURCES for page in re.findall(r"\bdocs/[\w./-]+\.md\b", text[path]))
    missing += [(path.name, page) for path, page in pages if not (REPO / page).exists()]
    assert not missing


def test_the_classes_of_the_glossary_exist() -> None:
    cells = TERM.findall((REPO / "docs" / "glossary.md").read_text(encoding="utf-8"))
    named = [found for cell in cells for found in MEMBER.findall(cell)]
    assert len(named) > 5
    assert len(cells) <= 60  # what needs more terms needs plainer words
    gone = [(name, member) for name, member in named if member not in {"", *(members(name) or ())}]
    assert not gone + [name for name, _ in named if members(name) is None]


def test_the_targets_of_make_exist() -> None:
    targets = set(
        re.findall(r"^([a-z-]+)(?: [a-z-]+)*:", (REPO / "Makefile").read_text(encoding="utf-8"), re.M)
    )
    named = {
        target
        for page in (REPO / "README.md", REPO / "docs" / "development.md")
        for found in TARGET.findall(page.read_text(encoding="utf-8"))
        for target in found
        if target
    }
    assert len(named) > 10
    assert named <= targets


@pytest.mark.parametrize("page", ["architecture", "development"])
def test_the_order_of_the_layers_is_the_one_that_is_checked(page: str) -> None:
    project = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))
    layers = [c for c in project["tool"]["importlinter"]["contracts"] if c["type"] == "layers"]
    text = (REPO / "docs" / f"{page}.md").read_text(encoding="utf-8")
    assert len(layers) > 4
    for contract in layers:
        about = contract["name"].removeprefix("inside ")
        order = " → ".join(layer.replace("hmi.", "") for layer in contract["layers"])
        inside = "" if contract["name"] == about else f"inside `{about}`: "
        if page == "development" or about == "hmi":
            assert f"{inside}`{order}`" in text, contract["name"]


def test_the_listing_of_the_data_folder_has_every_part() -> None:
    text = (REPO / "docs" / "architecture.md").read_text(encoding="utf-8")
    listing = text.split("```\nhmi-data/\n")[1].split("```")[0]
    lines = [re.split(r"(?<=\w/) | {2,}", line.strip())[0] for line in listing.splitlines()]
    parts = [[name.rstrip("/") for name in line.split(", ")] for line in lines]
    assert sorted(name for names in parts for name in names) == sorted(PARTS)
    left_out = [PARTS[name] is How.LEFT_OUT for names in parts[-3:] for name in names]
    assert all(left_out)  # the sentence above the listing says so
    assert len(left_out) == list(PARTS.values()).count(How.LEFT_OUT)


def test_the_page_about_upgrades_names_the_formats() -> None:
    page = (REPO / "docs/operations/upgrade.md").read_text()
    rows = re.findall(r"^\| ([a-zPL].+?) \| (\d.*?) \|", page, re.MULTILINE)
    assert {part.partition(" (")[0]: {int(n) for n in re.findall(r"\d+", told)} for part, told in rows} == {
        "data folder": {layout.FORMAT},
        "registry": {int(sealed.FORMAT)},
        "PLOT store": {catalogue.FORMAT, catalogue.ERASING_CATALOGUE_FORMAT},
        "rows of PLOTs": set(FORMATS.values()),
        "exports of PLOTs": {*FORMATS.values(), archive_format.ERASING_ARCHIVE_FORMAT},
        "PLOTs in a bucket or remote": {remote.FORMAT},
        "journal of servers with one bucket": {journal.FORMAT},
        "root": {3, 4, root.FORMAT},
        "backup": {manifest.FORMAT},
    }


def test_a_name_that_is_gone_would_be_found() -> None:
    assert has("hmi.engine.schedule.queue.BatchQueue")
    assert not has("hmi.engine.preparing")
    assert not has("hmi.engine.pipeline.retrieve")
    assert not has("hmi.engine.schedule.queue.NoQueue")
    assert has("hmi.engine.schedule.queue.BatchQueue.cut")
    assert not has("hmi.engine.schedule.queue.BatchQueue.paste")
    assert names_in("`hmi.engine.schedule.queue`, `.turns`") == {
        "hmi.engine.schedule.queue",
        "hmi.engine.schedule.turns",
    }
    assert names_in("`engine.schedule.queue`") == {"hmi.engine.schedule.queue"}
    assert "pin" in (members("Store") or ())
    assert members("NoSuchClass") is None
