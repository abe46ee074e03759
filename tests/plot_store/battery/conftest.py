from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import play
import plotlab as lab
import pytest
from nursery import Nurseries

HERE = Path(__file__).resolve().parent
SIZE = os.environ.get("HMI_BATTERY", "1")  # "full", or the factor of the usual counts
FULL = SIZE == "full"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """HMI_BATTERY=full takes the full counts, and marks the battery as slow: `make stress` runs it then."""
    for item in items:
        if FULL and HERE in item.path.parents:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def counts() -> Callable[[int, int], int]:
    """A function of (usual, full): how many turns this run takes."""
    return lambda usual, full: full if FULL else max(1, round(usual * float(SIZE)))


@pytest.fixture(scope="session")
def iolog(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled recorder of system calls."""
    if not sys.platform.startswith("linux"):
        pytest.skip("the recorder asks /proc for the names of open files, which only Linux has")
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler here, so what the store writes cannot be recorded")
    library = tmp_path_factory.mktemp("iolog") / "iolog.so"
    done = subprocess.run(
        [compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(HERE / "iolog.c"), "-ldl", "-lpthread"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip(f"the recorder does not compile here: {done.stderr[:500]}")
    return library


@pytest.fixture(scope="session")
def nurseries(iolog: Path) -> Iterator[Nurseries]:
    found = Nurseries(iolog, min(2, os.cpu_count() or 1))
    yield found
    found.close()


@pytest.fixture(scope="module")
def side() -> Iterator[Path]:
    """A folder with the archives that operations import."""
    with lab.scratch() as folder:
        play.prepare(folder)
        yield folder


@pytest.fixture(scope="session")
def tell() -> Callable[[str], None]:
    """Print a summary line; HMI_BATTERY_OUT names a file that collects them."""

    def say(line: str) -> None:
        print(line)
        if path := os.environ.get("HMI_BATTERY_OUT"):
            with open(path, "a") as file:
                file.write(line + "\n")

    return say
