"""Commands that delete ask first, and look first whether there is anything to delete."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

import pytest

from hmi.cli import cli
from tests.hmi.cli.test_cli_tree import leaves
from tests.hmi.labs.api_world import hmi


def test_a_deletion_asks_or_says_how_not_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = ("--data", tmp_path / "d")
    hmi(capsys, "tenant", "create", "acme", *data)

    def delete(said: str, code: int) -> str:
        monkeypatch.setattr(sys, "stdin", io.StringIO(said))
        return hmi(capsys, "tenant", "delete", "acme", *data, code=code)

    nobody = delete("", 2)
    assert "add --yes" in nobody
    assert "interrupted" not in nobody
    assert "nothing was deleted" in delete("n\n", 1)
    assert [t["tenant"] for t in json.loads(hmi(capsys, "tenant", "list", "--json", *data))] == ["acme"]
    delete("y\n", 0)
    assert json.loads(hmi(capsys, "tenant", "list", "--json", *data)) == []


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("model delete", "acme.none"),
        ("model cascade delete", "acme.none"),
        ("domain delete", "tiny/none"),
        ("domain erase --phrase word", "tiny/none"),
        ("root delete", "none"),
        ("tenant delete", "none"),
        ("file delete", "file-0"),
    ],
)
def test_what_is_not_there_is_not_asked_about(
    command: str,
    name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = ("--data", tmp_path / "d")
    hmi(capsys, "tenant", "create", "acme", *data)
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    told = hmi(capsys, *command.split(), name, *data, code=1)
    assert "Delete" not in told
    assert re.search(r"error: .*(there is no|does not exist)", told), told


def test_every_command_that_asks_looks_first() -> None:
    asking = {name for name, command in leaves(cli) if any(p.name == "yes" for p in command.params)}
    deleted = {"domain", "file", "model", "model cascade", "root", "tenant"}
    others = {"cluster down", "domain erase", "store remote delete"}
    assert asking == {*(f"{what} delete" for what in deleted), *others}
