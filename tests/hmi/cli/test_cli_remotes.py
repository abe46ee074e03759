"""`hmi store push`, `pull` and `remote`: domains go from one data folder to another by way of a place."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hmi.config import Settings
from hmi.manager import Manager
from plot_store import Remote, Store
from tests.hmi.cli.test_cli_store import data, extend, shown, told
from tests.hmi.labs.api_world import hmi
from tests.hmi.labs.manager_lab import add_root
from tests.hmi.labs.server_lab import ready, serving
from tests.pieces import piece

__all__ = ["data"]


@pytest.fixture
def second(data: Path, tmp_path: Path) -> Path:
    """A copy of the data folder, which has the root, and no domain."""
    manager = Manager(Settings(data=tmp_path / "second", job_workers=0))
    add_root(manager)
    (tmp_path / "second" / "roots" / "tiny" / "r1").rmdir()
    shutil.copytree(data / "roots" / "tiny" / "r1", tmp_path / "second" / "roots" / "tiny" / "r1")
    manager.close()
    return tmp_path / "second"


def test_a_domain_goes_to_a_second_folder(
    data: Path, second: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "remote"
    assert "not a remote" in hmi(capsys, "store", "pull", "tiny/news", place, "--data", second, code=1)
    sent = shown(capsys, "store", "push", "tiny/news", place, "--data", data)
    with Store.open(data / "plots") as store:
        version = store.version("tiny/news")
        total = sum({s.name: s.bytes for v in store.chain("tiny/news") for s in v.segments}.values())
    assert (sent["version"], sent["bytes"], sent["lower_layers"]) == (version.id, total, [])
    assert shown(capsys, "store", "remote", "list", place) == [{"domain": "tiny/news", "version": version.id}]
    assert "nothing had to move" in told(capsys, "store", "push", "tiny.news", place, "--data", data)
    with serving(second) as (url, _):  # the server finds the domain by itself
        ready(url)
        came = shown(capsys, "store", "pull", "tiny.news", place, "--data", second)
        assert (came["version"], came["lacking"]) == (version.id, [])
        found = shown(capsys, "domain", "show", "tiny/news", "--url", url)
        assert found["current"] == version.id
    assert "nothing had to move" in told(capsys, "store", "pull", "tiny/news", place, "--data", second)
    with Store.open(second / "plots") as store:
        piece(store, version.segments[0].name).flip(4200)
    assert shown(capsys, "store", "pull", "tiny/news", place, "--again", "--data", second)["segments"] >= 1
    assert shown(capsys, "store", "scrub", "--data", second)["problems"] == []
    extend_in(second, 20)
    said = told(capsys, "store", "push", "tiny/news", place, "--data", second)
    assert "segments moved" in said
    assert "no ref 'tiny/none'" in hmi(capsys, "store", "pull", "tiny/none", place, "--data", data, code=1)
    assert "there is no domain" in hmi(capsys, "store", "push", "tiny/none", place, "--data", data, code=1)


def extend_in(folder: Path, number: int) -> None:
    manager = Manager(Settings(data=folder, job_workers=0))
    extend(manager, "tiny/news", number)
    manager.close()


def test_cures_are_commands(
    data: Path, second: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "remote"
    first = shown(capsys, "store", "push", "tiny/news", place, "--data", data)["version"]
    shown(capsys, "store", "pull", "tiny/news", place, "--data", second)
    extend_in(data, 21)
    extend_in(second, 22)
    theirs = shown(capsys, "store", "push", "tiny/news", place, "--data", data)["version"]
    refused = hmi(capsys, "store", "push", "tiny/news", place, "--data", second, code=1)
    assert f"pull first; or push with --expect {theirs} to replace it" in refused
    assert "neither follows" in hmi(capsys, "store", "pull", "tiny/news", place, "--data", second, code=1)
    command = ("store", "push", "tiny/news", place, "--data", second, "--expect")
    assert theirs in hmi(capsys, *command, first, code=1)
    ours = shown(capsys, *command, theirs)["version"]
    assert Remote(place).refs()["tiny/news"] == ours
    segments = list((place / "segments").iterdir())
    for segment in segments:
        segment.write_bytes(segment.read_bytes()[:-1])
    shutil.rmtree(second / "plots")
    damaged = hmi(capsys, "store", "pull", "tiny/news", place, "--data", second, code=1)
    assert any(segment.name in damaged for segment in segments)
    assert "push it again with --again" in damaged
    (place / "collecting.json").write_text('{"since":"yesterday"}')
    extend_in(data, 23)
    for busy in (
        hmi(capsys, "store", "push", "tiny/news", place, "--data", data, "--expect", ours, code=1),
        hmi(capsys, "store", "remote", "gc", place, code=1),
    ):
        assert "'hmi store remote gc --take-over PLACE'" in busy


def test_what_lies_at_a_place(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "remote"
    for command in (("list",), ("gc",), ("delete", "tiny/news", "--yes")):
        assert "not a remote" in hmi(capsys, "store", "remote", *command, place, code=1)
    shown(capsys, "store", "push", "tiny/news", place, "--data", data)
    version = Remote(place).refs()["tiny/news"]
    assert "v0" in hmi(
        capsys, "store", "remote", "delete", "tiny/news", place, "--expect", "v0", "--yes", code=1
    )
    gone = shown(capsys, "store", "remote", "delete", "tiny/news", place, "--yes")
    assert gone["version"] == version
    assert shown(capsys, "store", "remote", "list", place) == []
    assert shown(capsys, "store", "remote", "gc", place)["objects"] == []
    would = shown(capsys, "store", "remote", "gc", place, "--age-hours", 0, "--dry-run")
    done = shown(capsys, "store", "remote", "gc", place, "--age-hours", 0)
    assert done["objects"] == would["objects"] != []
    assert not list((place / "segments").iterdir())
    assert "nothing was removed" in told(capsys, "store", "remote", "gc", place, "--dry-run")


def test_a_domain_of_another_root_is_refused(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "remote"
    shown(capsys, "store", "push", "tiny/news", place, "--data", data)
    manager = Manager(Settings(data=tmp_path / "third", job_workers=0))
    manager.create_tenant("acme")
    manager.close()
    refused = hmi(capsys, "store", "pull", "tiny/news", place, "--data", tmp_path / "third", code=1)
    assert "has none as root 'tiny'" in refused
    with Store.open(tmp_path / "third" / "plots") as store:
        assert store.refs() == {}
