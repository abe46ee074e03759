"""`hmi store`: what the commands show and do on a data folder, beside a server, and on damaged files."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hmi.cli import main
from hmi.cli.framework.output import size
from hmi.config import Settings
from hmi.manager import Manager
from hmi.model.sources.root import Root, save_root
from plot_store import Schema, Store
from plot_store.writing import writer
from tests.hmi.labs.api_world import hmi
from tests.hmi.labs.manager_lab import add_model, add_root, publish_plot
from tests.hmi.labs.server_lab import REPO, ready, serving
from tests.pieces import piece
from tests.waiting import wait_until

UPDATES = 4


@pytest.fixture
def data(tmp_path: Path, tiny_root: Root, tiny_source: Path) -> Path:
    """A data folder with a root, a domain of several updates, and a model on the domain's first version.

    The updates were not merged, as by releases that left that to compactions.
    """
    manager = Manager(Settings(data=tmp_path / "d", job_workers=0))
    add_root(manager)
    (tmp_path / "d" / "roots" / "tiny" / "r1").rmdir()
    save_root(tmp_path / "d" / "roots" / "tiny" / "r1", tiny_root, tiny_source / "tokenizer.json")
    manager.create_tenant("acme")
    add_model(manager, "acme.m", publish_plot(manager, "tiny/news", "b0"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "MAX_RUNS", UPDATES + 2)
        for number in range(1, UPDATES + 1):
            extend(manager, "tiny/news", number)
    manager.close()
    return tmp_path / "d"


def extend(manager: Manager, domain: str, number: int) -> None:
    """An update: one more small segment on top of the current version."""
    with manager.plots.writer(
        domain, schema=Schema(dim=4, vocab=50), build=f"u{number}", extend=True
    ) as update:
        update.add(1, np.array([[number + 10]], np.uint32), np.full((1, 3, 4), number, np.float32))
        update.publish(meta={"root_version": "r1", "alpha": 30.0, "report": {}})


def shown(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    return json.loads(hmi(capsys, *arguments, "--json"))


def told(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The standard error of a command that succeeds."""
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in arguments])
    assert ended.value.code == 0
    return capsys.readouterr().err


def test_info_lists_tags_pins_and_leases(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manager = Manager(Settings(data=data, job_workers=0))
    version = manager.plots.tag("tiny/news", "good")
    manager.plots.pin(version, "release-7")
    manager.close()
    found = shown(capsys, "store", "info", "--data", data)
    assert found["tags"] == {"tiny/news@good": version}
    assert found["pins"] == [f"{version} by release-7"]
    assert found["leases"] == []
    assert found["disk_bytes"]["plots"] > 0
    assert "tiny/news@good" in hmi(capsys, "store", "info", "--data", data)


def test_scrub_and_verify_name_what_is_damaged(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sound = shown(capsys, "store", "scrub", "--rate", "50M", "--data", data)
    assert sound["problems"] == []
    assert sound["segments"] > UPDATES
    assert shown(capsys, "store", "scrub", "tiny", "--data", data)["versions"] == 1
    with Store.open(data / "plots") as store:
        segment = next(s for s in store.version("tiny").segments if s.kind == "rows")
        piece(store, segment.name).flip(4100)
    for command in ("scrub", "verify"):
        told = hmi(capsys, "store", command, "--data", data, code=1)
        assert segment.name in told.replace("\n", "")
        assert "error:" in told
    hmi(capsys, "store", "scrub", "--rate", "fast", "--data", data, code=2)
    assert "error:" in hmi(capsys, "store", "scrub", "tiny/none", "--data", data, code=1)


def test_verify_reads_roots_and_modules(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    artefact = next((data / "adapters").glob("*.safetensors"))
    for path, whose in (
        (data / "roots" / "tiny" / "r1" / "upper.safetensors", "root tiny"),
        (data / "roots" / "tiny" / "r1" / "lower.safetensors", "root tiny"),
        (artefact, "model acme.m, version 1"),
    ):
        intact = path.read_bytes()
        path.write_bytes(intact[:-5] + bytes([intact[-5] ^ 4]) + intact[-4:])
        told = " ".join(hmi(capsys, "store", "verify", "--data", data, code=1).split())
        cure = "import the root again" if whose == "root tiny" else "roll the model back"
        assert f"{path.name} of {whose} fails its checksum: {cure}" in told
        path.write_bytes(intact)
    assert shown(capsys, "store", "verify", "--data", data)["problems"] == []


def test_gc_shows_before_it_removes(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    would = shown(capsys, "store", "gc", "--dry-run", "--keep-versions", 1, "--data", data)["collected"]
    assert would["dry_run"]
    assert len(would["versions"]) == UPDATES - 1, "the model's version and the current one stay"
    assert (
        shown(capsys, "store", "gc", "--keep-versions", 1, "--keep-days", 1, "--data", data)["collected"][
            "versions"
        ]
        == []
    ), "all are younger than a day"
    did = shown(capsys, "store", "gc", "--keep-versions", 1, "--data", data)["collected"]
    assert sorted(did["versions"]) == sorted(would["versions"])
    hmi(capsys, "store", "gc", "--data", data)
    hmi(capsys, "store", "gc", "--keep-versions", 0, "--data", data, code=2)
    hmi(capsys, "store", "verify", "--data", data)


def test_compact_merges_and_models_stay(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = shown(capsys, "domain", "show", "tiny/news", "--data", data)
    (made,) = shown(capsys, "store", "compact", "tiny/news", "--data", data)
    assert made["compacted"]
    assert made["segments"]["after"] < made["segments"]["before"]
    after = shown(capsys, "domain", "show", "tiny/news", "--data", data)
    assert after["current"] == made["version"] != before["current"]
    assert (
        shown(capsys, "model", "show", "acme.m", "--data", data)["versions"][0]["plot_version"]
        != made["version"]
    )
    changed = shown(capsys, "store", "diff", before["current"], made["version"], "--data", data)
    assert all(c["added"] == c["removed"] == c["changed"] == 0 for c in changed["orders"])
    (again,) = shown(capsys, "store", "compact", "tiny/news", "--data", data)
    assert not again["compacted"]
    assert "nothing to merge" in again["reason"]
    assert shown(capsys, "store", "compact", "--all", "--data", data) == []
    hmi(capsys, "store", "compact", "--data", data, code=2)
    assert "error:" in hmi(capsys, "store", "compact", "tiny/none", "--data", data, code=1)
    hmi(capsys, "store", "verify", "--data", data)


def test_diff_counts_by_order(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manager = Manager(Settings(data=data, job_workers=0))
    newest, *_, oldest = manager.plots.history("tiny/news")
    manager.close()
    found = shown(capsys, "store", "diff", oldest.id, newest.id, "--data", data)
    by_order = {row["order"]: row for row in found["orders"]}
    assert (by_order[1]["added"], by_order[1]["removed"], by_order[1]["same"]) == (UPDATES, 0, 4)
    assert "ADDED" in hmi(capsys, "store", "diff", oldest.id, newest.id, "--data", data)
    assert "error:" in hmi(capsys, "store", "diff", oldest.id, "tiny/none", "--data", data, code=1)


def test_export_and_import(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = shown(capsys, "store", "export", "tiny/news", tmp_path / "x.plot", "--data", data)
    assert made["bytes"] == (tmp_path / "x.plot").stat().st_size
    manager = Manager(Settings(data=data, job_workers=0))
    (root,) = [
        {"domain": v.ref, "version": v.id, "bytes": v.bytes} for v in manager.plots.chain("tiny/news")[1:]
    ]
    own = manager.plots.version("tiny/news").bytes
    manager.close()
    assert (made["own_bytes"], made["builds_on"]) == (own, [root])
    found = shown(capsys, "store", "import", tmp_path / "x.plot", "--as", "tiny/copy", "--data", data)
    assert (found["domain"], found["own_bytes"], found["builds_on"]) == ("tiny/copy", own, [root])
    said = told(capsys, "store", "export", "tiny/news", tmp_path / "x.plot", "--data", data)
    assert f"its own {size(own)}, and what it builds on: tiny {size(root['bytes'])}" in said
    assert "it builds on nothing" in told(
        capsys, "store", "export", "tiny", tmp_path / "r.plot", "--data", data
    )
    (tmp_path / "x.plot").write_bytes(b"nonsense" * 9)
    assert "not an export" in hmi(capsys, "store", "import", tmp_path / "x.plot", "--data", data, code=1)


def test_top_without_a_server_says_so(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = shown(capsys, "store", "top", "--data", data)
    assert found["source"].startswith("no server")
    row = {r["domain"]: r for r in found["domains"]}["tiny/news"]
    assert (row["lookups"], row["miss"], row["chain"]) == (None, None, 2)
    assert row["small_segments"] == UPDATES + 1
    assert "tiny/news" in hmi(capsys, "store", "top", "--data", data)


def test_top_refreshes_until_interrupted(data: Path) -> None:
    # The test runner may ignore SIGINT, and child processes inherit that.
    code = (
        "import signal, sys, hmi.cli; signal.signal(2, signal.default_int_handler); "
        "hmi.cli.main(sys.argv[1:])"
    )
    command = [sys.executable, "-c", code, "store", "top", "--data", str(data), "--watch", "0.2", "--json"]
    with subprocess.Popen(
        command, cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as watching:
        assert watching.stdout is not None
        seen = [json.loads(watching.stdout.readline()) for _ in range(3)]
        watching.send_signal(signal.SIGINT)
        _, told = watching.communicate(timeout=30)
    assert watching.returncode == 130
    assert "Traceback" not in told
    assert all(row["domain"].startswith("tiny") for sample in seen for row in sample["domains"])


def test_beside_a_server(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`hmi store` finds a running server by itself, shows its figures, and lets it compact."""
    with serving(data) as (url, _):
        ready(url)
        found = shown(capsys, "store", "top", "--data", data)
        assert found["source"] == f"look-ups of the server at {url}"
        assert {r["domain"]: r["lookups"] for r in found["domains"]} == {"tiny": 0, "tiny/news": 0}
        assert shown(capsys, "store", "top", "--url", url)["domains"][0]["lookups"] == 0
        (made,) = shown(capsys, "store", "compact", "tiny/news", "--data", data)
        assert made["compacted"]
        assert shown(capsys, "store", "scrub", "--data", data)["problems"] == []
        assert "data folder itself" in hmi(capsys, "store", "scrub", "--url", url, code=1)


def test_top_shows_what_a_server_looked_up(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(folder) as (url, _):
        ready(url)
        hmi(capsys, "infer", "acme.m", "the market", "a gene", "--url", url)
        (row,) = shown(capsys, "store", "top", "--data", folder)["domains"]
        assert row["domain"] == "tiny"
        assert row["lookups"] >= 8, "two words and two special tokens a text"
        assert sum(row[order] for order in ("trigram", "bigram", "unigram", "miss")) == pytest.approx(1)
        assert "%" in hmi(capsys, "store", "top", "--url", url)


def test_a_damaged_catalogue_stops_the_server_cleanly(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    catalogue = data / "plots" / "catalogue" / "data.mdb"
    good = catalogue.read_bytes()
    for damaged in (good[: len(good) // 2], b"", good[:4096] + bytes(len(good) - 4096)):
        catalogue.write_bytes(damaged)
        told = hmi(capsys, "serve", "--data", data, "--port", 0, code=1)
        assert told.startswith("error: the catalogue")
        assert "restore" in told
    shutil.rmtree(data / "plots")
    with serving(data) as (url, _):
        ready(url)


def test_a_damaged_registry_stops_the_server_cleanly(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    registry = data / "registry" / "data.mdb"
    good = registry.read_bytes()
    for damaged in (good[: len(good) // 2], b"", good[:4096] + bytes(len(good) - 4096)):
        registry.write_bytes(damaged)
        for command in (("serve", "--port", 0), ("model", "list")):
            told = " ".join(hmi(capsys, *command, "--data", data, code=1).split())
            assert told.startswith("error: the registry is")
            assert "restore <data>/registry from a backup" in told
    registry.write_bytes(good)
    with serving(data) as (url, _):
        ready(url)


def test_compaction_is_queued_past_the_threshold_and_once(data: Path) -> None:
    for allowed, expected in ((0, 0), (UPDATES + 1, 0), (UPDATES, 1)):
        manager = Manager(Settings(data=data, job_workers=0, compact_segments=allowed))
        manager.maintenance.housekeeping()
        manager.maintenance.housekeeping()
        assert len([job for job in manager.jobs() if job.kind == "compact_plot"]) == expected
        manager.close()


def test_the_server_compacts_by_itself(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HMI_COMPACT_SEGMENTS", str(UPDATES))
    with serving(data) as (url, _):
        ready(url)

        def jobs() -> list[dict[str, str]]:
            return list(shown(capsys, "job", "list", "--url", url))

        wait_until(lambda: [job["state"] for job in jobs()[:1]] == ["succeeded"])
        result = shown(capsys, "job", "show", jobs()[0]["job"], "--url", url)["result"]
        assert result["compacted"]
        assert shown(capsys, "domain", "show", "tiny/news", "--url", url)["current"] == result["version"]


def test_a_build_goes_before_a_compaction(data: Path, tmp_path: Path) -> None:
    from hmi.errors import Conflict

    manager = Manager(Settings(data=data, job_workers=0, compact_segments=1))
    build = manager.runner.submit(
        "build_plot", {"domain": "tiny/news", "mode": "update"}, inputs={"corpus": b"x"}
    )
    with pytest.raises(Conflict, match="when the job has ended"):
        manager.maintenance.compact("tiny/news")
    manager.maintenance.housekeeping()
    assert [job.kind for job in manager.jobs()] == ["build_plot"]
    manager.cancel_job(build.job)
    before = manager.plots.version("tiny/news")
    job = manager.maintenance.compact("tiny/news")
    late = manager.runner.submit(
        "build_plot", {"domain": "tiny/news", "mode": "update"}, inputs={"corpus": b"x"}
    )
    ended = manager.runner.run_one(job.job)
    assert ended.state == "succeeded"
    assert ended.result is not None
    assert ended.result["reason"] == "a build on this domain came first"
    assert manager.plots.version("tiny/news") == before
    manager.cancel_job(late.job)
    manager.close()


def test_limits_come_from_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from plot_store import StoreFull

    monkeypatch.setenv("HMI_PLOT_MAX_BYTES", str(1 << 20))
    manager = Manager(Settings.from_env(data=tmp_path / "d", job_workers=0))
    publish_plot(manager, "tiny")
    rows = np.ones((1999, 3, 512), np.float32)
    with manager.plots.writer("big", schema=Schema(dim=512, vocab=50000), build="b") as writer:
        writer.add(1, np.arange(1, 2000, dtype=np.uint32)[:, None], rows)
        with pytest.raises(StoreFull, match="max_bytes"):
            writer.publish()
    manager.close()


def test_look_ups_are_counted_by_domain() -> None:
    from hmi.metrics import Metrics

    metrics = Metrics()
    metrics.plot_hits("tiny/news", {"trigram": 3, "miss": 1})
    metrics.plot_hits("tiny/news", {"trigram": 2})
    metrics.plot_hits("tiny", {"bigram": 1})
    assert metrics.lookups.by_domain() == {"tiny/news": {"trigram": 5, "miss": 1}, "tiny": {"bigram": 1}}
    assert b'hmi_plot_lookups_total{order="trigram"} 5.0' in metrics.render()
