"""Backups that are asked for over HTTP: only by administrators, and only to the configured place."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from hmi.config import Settings
from hmi.manager import Manager
from tests.hmi.labs.api_world import hmi, running


async def test_a_backup_goes_to_the_configured_place_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = str(tmp_path / "place")
    monkeypatch.setenv("HMI_BACKUP_LOCATION", place)  # the job's process reads it
    async with running(tmp_path / "d", backup_location=place) as world:
        status, found, _ = await world.call("POST", "/manage/backups", {"folder": "nightly", "reread": True})
        assert status == 202
        view = await world.finish(found["job"])
        assert view["state"] == "succeeded", view
        assert (view["kind"], view["target"]) == ("backup", "nightly")
        _, listed, _ = await world.call("GET", "/manage/backups", params={"folder": "nightly"})
        (backup,) = listed["backups"]
        assert backup["backup"] == view["result"]["backup"]
        assert backup["files"] > 0
        assert (Path(place) / "nightly" / "backups" / backup["backup"] / "backup.json").exists()
        assert (await world.call("GET", "/manage/backups"))[1] == {"backups": []}
        for bad in ("../up", "/etc", "s3://bucket", "a/b", ""):
            assert (await world.call("POST", "/manage/backups", {"folder": bad}))[0] == 422
        assert (await world.call("POST", "/manage/backups", {"target": "/etc"}))[0] == 422


async def test_without_a_place_and_without_an_administrator_there_is_no_backup(tmp_path: Path) -> None:
    async with running(tmp_path / "d", job_workers=0) as world:
        status, found, _ = await world.call("POST", "/manage/backups", {})
        assert status == 409
        assert "HMI_BACKUP_LOCATION" in found["error"]["message"]
        _, made, _ = await world.call("POST", "/manage/tenants", {"tenant": "acme"})
        for method in ("GET", "POST"):
            body = {} if method == "POST" else None
            assert (await world.call(method, "/manage/backups", body, key=made["key"]))[0] == 403


def test_a_model_that_writes_is_restored_with_its_text(
    writing_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, place, new = ("--data", writing_data), tmp_path / "place", ("--data", tmp_path / "new")
    train, dev = tmp_path / "train.jsonl", tmp_path / "dev.jsonl"
    for file, count in ((train, 24), (dev, 8)):
        rows = ({"prompt": f"the {i} film:", "completion": f" good {i % 3}"} for i in range(count))
        file.write_text("\n".join(map(json.dumps, rows)))
    asked = ("--domain", "tiny/news", "--task", "generation", "--dev", dev, "--option", "epochs=2")
    hmi(capsys, "model", "create", "acme.film", train, *asked, *data)
    chosen = ("--max-tokens", 12, "--temperature", 1, "--seed", 3, "--json")

    def text(model: str, *folder: object) -> str:
        found = json.loads(hmi(capsys, "generate", model, "the 5 film:", *chosen, *folder))
        return f"{found['model']} {found['version']} {found['seed']}: {found['text']}"

    models = ("acme.film", "acme.one", "beta.one")
    before = [text(model, *data) for model in models]
    assert len(set(before)) == 3
    report = hmi(capsys, "model", "report", "acme.film", "--json", *data)
    hmi(capsys, "backup", "create", place, *data)
    shutil.rmtree(writing_data)
    hmi(capsys, "restore", place, *new)
    assert [text(model, *new) for model in models] == before
    assert hmi(capsys, "model", "report", "acme.film", "--json", *new) == report
    hmi(capsys, "model", "update", "acme.film", train, "--dev", dev, "--option", "epochs=1", *new)
    assert [text(model, *new) for model in models[1:]] == before[1:]


def test_the_commands_make_list_check_prune_and_restore(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Manager(Settings(data=tmp_path / "d", job_workers=0)).close()
    data, place = ("--data", tmp_path / "d"), tmp_path / "place"
    for _ in range(2):
        hmi(capsys, "backup", "create", place, *data)
    assert hmi(capsys, "backup", "list", place).count("Z-") == 2
    hmi(capsys, "backup", "verify", place)
    hmi(capsys, "backup", "prune", place, "--keep", 1)
    assert hmi(capsys, "backup", "list", place).count("Z-") == 1
    hmi(capsys, "restore", place, "--data", tmp_path / "new")
    assert "not an empty folder" in hmi(capsys, "restore", place, "--data", tmp_path / "new", code=1)
    assert "HMI_BACKUP_LOCATION" in hmi(capsys, "backup", "list", code=1)
    next(place.glob("objects/*/*")).write_bytes(b"damaged")
    assert "make a new one" in hmi(capsys, "backup", "verify", place, code=1)
    assert "there is no data folder" in hmi(
        capsys, "backup", "create", place, "--data", tmp_path / "typo", code=1
    )
