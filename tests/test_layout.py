"""Rules of the repository that no linter checks and whose breach would harm users or reviewers."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[1]
PACKAGES = ("hmi", "plot_store", "kernels/hmi_kernels")
SOURCES = sorted(p for name in (*PACKAGES, "bench", "scripts") for p in (REPO / name).rglob("*.py"))
TESTS = sorted((REPO / "tests").rglob("*.py"))
PICKLERS = "_pickle cPickle cloudpickle dill joblib jsonpickle marshal pickle shelve"
PICKLING = set(PICKLERS.split())
MAX_LINES = 600
MAX_FUNCTION_LINES = 60
"""A function has fewer lines than this."""


def name_of(path: Path) -> str:
    return str(path.relative_to(REPO))


def trees() -> Iterator[tuple[Path, ast.Module]]:
    for path in SOURCES:
        yield path, ast.parse(path.read_text(encoding="utf-8"), str(path))


def test_the_folder_kernels_is_no_package() -> None:
    # The hub publishes a package of that name: this folder must neither shadow it nor share a file with it.
    assert [p.name for p in (REPO / "kernels").glob("*.py")] == []


def test_every_package_is_found() -> None:
    assert all(any(p.is_relative_to(REPO / name) for p in SOURCES) for name in PACKAGES)


def test_nothing_is_unpickled() -> None:
    found = []
    for path, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                modules = {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                modules = {(node.module or "").split(".")[0]}
            else:
                modules = set()
            if modules & PICKLING or _loads_pickle(node):
                found.append(f"{name_of(path)}:{getattr(node, 'lineno', 0)}")
    assert not found, "pickle can run code when it is read: use safetensors or JSON"


def _loads_pickle(node: ast.AST) -> bool:
    """`torch.load(…)`, or `allow_pickle=True` anywhere."""
    if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
        return not (isinstance(node.value, ast.Constant) and node.value.value is False)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    owner = node.func.value
    return node.func.attr == "load" and isinstance(owner, ast.Name) and owner.id == "torch"


@pytest.mark.parametrize(
    "code",
    ["import pickle", "from joblib import load", "torch.load('x')", "numpy.load(f, allow_pickle=True)"],
)
def test_the_pickle_check_would_find_one(code: str) -> None:
    found = False
    for node in ast.walk(ast.parse(code)):
        imported = isinstance(node, ast.Import) and node.names[0].name in PICKLING
        from_it = isinstance(node, ast.ImportFrom) and node.module in PICKLING
        found = found or imported or from_it or _loads_pickle(node)
    assert found


def test_files_stay_small() -> None:
    lines = {name_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in (*SOURCES, *TESTS)}
    assert {name: count for name, count in lines.items() if count > MAX_LINES} == {}


def test_functions_stay_small() -> None:
    long_functions = [
        f"{name_of(path)}:{node.name}"
        for path, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or node.lineno) - node.lineno >= MAX_FUNCTION_LINES
    ]
    assert not long_functions


def test_the_ci_script_runs_make_test() -> None:
    script = REPO / ".ci" / "run"
    text = script.read_text(encoding="utf-8")
    assert os.access(script, os.X_OK)
    assert "set -eu" in text
    assert re.search(r"^(exec )?make test$", text, re.MULTILINE)


def test_the_makefile_has_its_targets() -> None:
    text = (REPO / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", text, re.MULTILINE))
    assert targets >= {"setup", "demo", "test", "check", "serve", "bench", "stress", "help"}
    assert re.search(r"^test: check", text, re.MULTILINE)


def test_the_makefile_installs_extras_that_exist() -> None:
    project = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = re.search(r"^EXTRAS := ([\w,]+)", (REPO / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert extras is not None
    assert set(extras[1].split(",")) <= set(project["optional-dependencies"])


def test_no_package_index_is_named() -> None:
    # Where packages come from is a setting of pip, and differs from machine to machine.
    named = re.compile(r"pypi\.org|pythonhosted|--(?:extra-)?index-url|--find-links|download\.pytorch")
    projects = [REPO / "pyproject.toml", REPO / "plot_store" / "pyproject.toml"]
    files = [REPO / "Makefile", *projects, REPO / ".ci" / "run", *SOURCES]
    assert [name_of(p) for p in files if named.search(p.read_text(encoding="utf-8"))] == []


def test_the_licence_is_apache_2() -> None:
    text = (REPO / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text


@pytest.mark.parametrize(
    ("distribution", "packages"), [("hmi-server", {"hmi"}), ("hmi-plot-store", {"hmi_kernels", "plot_store"})]
)
def test_the_installed_distributions_have_no_package_kernels(distribution: str, packages: set[str]) -> None:
    # It would overwrite the hub's package when it is installed, and remove it when it is uninstalled.
    named = metadata.distribution(distribution).read_text("top_level.txt") or ""
    assert set(named.split()) == packages


def test_the_hubs_package_is_found_from_our_folder_too(tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "__init__.py").write_text("theirs = True\n")
    code = "import kernels, hmi_kernels.lookup.layout; print(kernels.theirs)"
    assert printed(code, PYTHONPATH=f"{REPO / 'kernels'}:{tmp_path}") == "True"


def test_transformers_survives_our_kernels_folder() -> None:
    pytest.importorskip("transformers", reason="transformers is not installed (make setup brings it)")
    code = (
        "import hmi_kernels, transformers; from transformers import BertConfig; "
        "print(BertConfig().hidden_size)"
    )
    assert printed(code) == "768"


def test_what_serves_loads_nothing_that_trains() -> None:
    code = (
        "import sys, hmi.engine.engine, hmi.engine.admit.bundles\n"
        "apart = ('hmi.training', 'hmi.jobs', 'transformers', 'adapters', 'seqeval')\n"
        "print([name for name in sys.modules if name.startswith(apart)])"
    )
    assert printed(code) == "[]"


def printed(code: str, **environment: str) -> str:
    """What `code` prints, run in the repository by a process of its own."""
    command, env = [sys.executable, "-c", code], os.environ | environment
    done = subprocess.run(
        command, cwd=REPO, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
