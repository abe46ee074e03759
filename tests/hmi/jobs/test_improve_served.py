"""The background job as a tenant sees it: queued, run and told by a server, or by commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hmi.cli import main
from hmi.training.second.choosing import SURE
from tests.hmi.labs.api_world import hmi, rows, running
from tests.hmi.labs.improve_lab import QUICK, ROWS


@pytest.mark.slow  # two processes of jobs train for some seconds
async def test_a_server_improves_a_model_by_itself(folder: Path) -> None:
    spec = {"model": "acme.second", "domain": "tiny", "task": "classification", "options": QUICK}
    async with running(folder, improve=True) as world:
        _, accepted, _ = await world.upload("/manage/models", spec, {"data": ROWS})
        first = await world.finish(accepted["job"])
        job = first["result"]["improving"]
        _, seen, _ = await world.call("GET", "/manage/models/acme.second")
        assert seen["improving"]["job"] == job
        assert seen["improving"]["state"] in ("queued", "running", "finished")
        done = await world.finish(job)
        assert (done["kind"], done["state"], done["target"]) == ("improve", "succeeded", "acme.second")
        assert done["cost"]["cpu_ms"] > 0
        _, seen, _ = await world.call("GET", "/manage/models/acme.second")
        assert (seen["current"], seen["improving"]["state"], seen["improving"]["published"]) == (
            2,
            "finished",
            2,
        )
        assert seen["improving"]["tried"][0]["sure"] >= SURE
        _, answer, _ = await world.call("POST", "/infer/acme.second", {"inputs": "market stock price rises"})
        assert answer["version"] == 2
        async with world.client.get("/metrics") as scraped:
            assert 'hmi_background_jobs{state="succeeded"} 1.0' in await scraped.text()


def test_a_command_queues_it_and_says_so(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HMI_IMPROVE", "true")
    (tmp_path / "rows").write_bytes(rows(40))
    options = [
        *("--option", "epochs=1", "--option", "module.rank=2", "--option", "ramps=false"),
        *("--option", "max_length=32", "--data", folder),
    ]
    words = ("model", "create", "acme.c", tmp_path / "rows", "--domain", "tiny", *options)
    with pytest.raises(SystemExit):
        main([str(word) for word in words])
    out, err = capsys.readouterr()
    assert "done: fine_tune acme.c, version 1" in out
    said = " ".join(err.split())
    assert "a second version may follow: job j" in said
    assert "nothing runs it yet: 'hmi serve' on this folder does, or 'hmi job resume j" in said
    found = json.loads(hmi(capsys, "model", "show", "acme.c", "--json", "--data", folder))["improving"]
    assert (found["state"], found["version"], found["tried"]) == ("queued", 1, [])
    shown = hmi(capsys, "model", "show", "acme.c", "--data", folder)
    assert f"job {found['job']} waits to improve version 1" in " ".join(shown.split())
    hmi(capsys, "job", "cancel", found["job"], "--data", folder)
    assert "version 1 was not improved: it was cancelled" in hmi(
        capsys, "model", "show", "acme.c", "--data", folder
    )
