"""Misuse of `hmi store`: each mistake gets one line that names the cure, no
traceback, and changes nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hmi.config import Settings
from hmi.manager import Manager
from tests.hmi.labs.api_world import hmi
from tests.hmi.labs.manager_lab import add_root, publish_plot

GONE = "v" + "0" * 32
COMMANDS = """
info
verify
scrub
gc
top
compact --all
diff tiny tiny
export tiny X
import FILE
""".strip().splitlines()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with a root, and a domain that has one tag."""
    folder = tmp_path_factory.mktemp("usage") / "d"
    with opened(folder) as manager:
        add_root(manager)
        publish_plot(manager, "tiny/news", "b0")
        manager.plots.tag("tiny/news", "v1.0")
    return folder


@contextmanager
def opened(folder: Path) -> Iterator[Manager]:
    manager = Manager(Settings(data=folder, job_workers=0))
    yield manager
    manager.close()


def told(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line of error of a command that must fail."""
    said = hmi(capsys, "store", *arguments, code=1)
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    return said


@pytest.mark.parametrize(
    "option",
    [
        "top --watch {}",
        "top --watch={}",
        "gc --dry-run --keep-days {}",
        "gc --dry-run --keep-versions {}",
        "scrub --rate {}",
    ],
)
@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "-1", "1e308", "x", ""])
def test_an_invalid_number_is_wrong_usage(
    data: Path, capsys: pytest.CaptureFixture[str], option: str, number: str
) -> None:
    command = [part.format(number) for part in option.split(" ")]
    said = hmi(capsys, "store", *command, "--data", data, code=2)
    name = next(part for part in command if part.startswith("--") and part != "--dry-run").partition("=")[0]
    error = said.splitlines()[-1]
    if name == "--watch" and number.startswith("-"):
        assert error.startswith("Error: No such option"), (
            "its value may be left out, so what has a dash is an option"
        )
    else:
        assert error.startswith(f"Error: Invalid value for '{name}': ")


@pytest.mark.parametrize(
    "command", ["scrub {}", "compact {}", "export {} FILE", "diff tiny {}", "diff {} tiny"]
)
@pytest.mark.parametrize(
    ("name", "cure"),
    [
        ("tiny/none", "hmi domain list"),
        ("none", "hmi domain list"),
        ("", "use 1 to 63 lower-case letters"),
        ("Tiny/News", "use 1 to 63 lower-case letters"),
        ("../d", "use 1 to 63 lower-case letters"),
        ("@", "use 1 to 63 lower-case letters"),
    ],
)
def test_a_wrong_name_says_where_the_right_ones_are(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, name: str, cure: str
) -> None:
    given = [tmp_path / "x" if part == "FILE" else part.format(name) for part in command.split(" ")]
    assert cure in told(capsys, *given, "--data", data)
    assert not (tmp_path / "x").exists()


def test_versions_and_tags_have_names_too(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--data", data)
    assert "hmi domain show" in told(capsys, "diff", GONE, "tiny", *where)
    for name in ("tiny/news@none", "tiny.news@none"):
        said = told(capsys, "export", name, tmp_path / "x", *where)
        assert "'none'" in said
        assert "tiny/news@v1.0" in said
    for name in ("tiny.news", "tiny.news@v1.0", "tiny/news@v1.0"):
        hmi(capsys, "store", "diff", name, "tiny/news", *where)
        hmi(capsys, "store", "export", name, tmp_path / "x", *where)


def test_a_version_that_was_collected_is_said_to_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with opened(tmp_path / "d") as manager:
        add_root(manager)
        old = publish_plot(manager, "tiny/news", "b0")
        publish_plot(manager, "tiny/news", "b1")
    hmi(capsys, "store", "gc", "--keep-versions", 1, "--data", tmp_path / "d")
    assert "was removed by gc" in told(capsys, "diff", old.id, "tiny/news", "--data", tmp_path / "d")


@pytest.mark.parametrize("command", COMMANDS)
def test_no_data_folder_is_not_an_empty_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    (tmp_path / "x").touch()
    given = [tmp_path / "x" if part in ("X", "FILE") else part for part in command.split(" ")]
    assert "check --data" in told(capsys, *given, "--data", tmp_path / "typo")
    assert not (tmp_path / "typo").exists(), "a look leaves nothing behind"


def test_an_export_needs_a_place(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ("--data", data)
    assert "create it first" in told(capsys, "export", "tiny", tmp_path / "none" / "x", *where)
    (tmp_path / "file").write_text("mine")
    assert "create it first" in told(capsys, "export", "tiny", tmp_path / "file" / "x", *where)
    assert "name another" in told(capsys, "export", "tiny", "", *where)
    os.mkfifo(tmp_path / "pipe")
    assert "name another" in told(capsys, "export", "tiny", tmp_path / "pipe", *where)
    assert (tmp_path / "pipe").is_fifo(), "a device or a pipe is not replaced"
    assert (tmp_path / "file").read_text() == "mine"


def test_an_import_says_how_to_give_another_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, build in (("one", "b0"), ("two", "other")):
        with opened(tmp_path / name) as manager:
            add_root(manager)
            publish_plot(manager, "tiny/news", build)
    hmi(capsys, "store", "export", "tiny/news", tmp_path / "x", "--data", tmp_path / "one")
    assert "--as ROOT/BRANCH" in told(capsys, "import", tmp_path / "x", "--data", tmp_path / "two")
    hmi(capsys, "store", "import", tmp_path / "x", "--as", "tiny/one", "--data", tmp_path / "two")
    hmi(capsys, "store", "import", tmp_path / "none", "--data", tmp_path / "two", code=2)


@pytest.mark.parametrize("cut", [0, 7, 500, -1])
def test_an_archive_that_ends_early_changes_nothing(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], cut: int
) -> None:
    hmi(capsys, "store", "export", "tiny/news", tmp_path / "x", "--data", data)
    (tmp_path / "x").write_bytes((tmp_path / "x").read_bytes()[:cut])
    assert "export it again" in told(capsys, "import", tmp_path / "x", "--as", "tiny/cut", "--data", data)
    assert "tiny/cut" not in hmi(capsys, "domain", "list", "--data", data)
