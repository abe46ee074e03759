"""`hmi doctor` on healthy and on broken data folders, beside a server, and its bundle."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import time
import zipfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import torch

from hmi.api.process.lock import announced, owning
from hmi.cli import main
from hmi.config import Settings
from hmi.core import JobRecord, now
from hmi.doctor import machine
from hmi.doctor.bundle import Redactor
from hmi.doctor.installation import _unmet, path_of
from hmi.doctor.machine import expires_at, machine_findings, settings_findings
from hmi.manager import Manager
from tests.hmi.labs.api_world import hmi
from tests.hmi.labs.door_lab import serving
from tests.hmi.labs.manager_lab import add_root
from tests.hmi.labs.tls_lab import Authority


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder with a root, a tenant, its key, and a job that failed."""
    manager = Manager(Settings(data=tmp_path / "d", job_workers=0))
    add_root(manager)
    manager.create_tenant("acme")
    error = {"kind": "invalid_data", "message": "a secret row"}
    job = JobRecord(job="j1", kind="fine_tune", state="failed", created=now(), tenant="acme", error=error)
    manager.registry.put_job(job)
    manager.close()
    return tmp_path / "d"


def findings(told: str) -> dict[str, list[tuple[str, str]]]:
    """The findings of --json by their check, each as level and text."""
    found: dict[str, list[tuple[str, str]]] = {}
    for row in json.loads(told)["findings"]:
        found.setdefault(row["check"], []).append((row["level"], row["text"]))
    return found


def levels(found: dict[str, list[tuple[str, str]]], check: str) -> list[str]:
    return [level for level, _ in found[check]]


def wrong(capsys: pytest.CaptureFixture[str], data: Path) -> dict[str, list[tuple[str, str]]]:
    """The findings on a data folder with problems."""
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--json", "--data", str(data)])
    assert ended.value.code == 1
    return findings(capsys.readouterr().out)


def test_a_folder_that_misses_nothing_has_no_problem(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(data.rglob("*"))
    found = findings(hmi(capsys, "doctor", "--json", "--data", data))
    assert levels(found, "files") == ["ok"]
    assert levels(found, "jobs") == ["warning"]
    assert "hmi job show j1" in found["jobs"][0][1]
    assert {"python", "packages", "processor", "disk", "file system", "memory", "keys"} <= found.keys()
    assert sorted(data.rglob("*")) == before, "it changes nothing"


def test_each_kind_of_damage_is_found(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = time.time() - 7200
    left = data / "adapters" / ".half.tmp"
    left.write_text("half")
    os.utime(left, (old, old))
    (data / "server.json").write_text("{}")
    for root in (data / "roots").glob("*/*"):
        shutil.rmtree(root)
    told = hmi(capsys, "doctor", "--data", data, code=1)
    assert "has lost its files" in told
    found = wrong(capsys, data)
    assert levels(found, "files") == ["problem"]
    assert levels(found, "leftovers") == ["warning"]
    assert levels(found, "lock") == ["warning"]
    (data / "FORMAT").write_text("99\n")
    assert "upgrade hmi-server" in hmi(capsys, "doctor", "--data", data, code=1)


def test_wrong_settings_do_not_stop_the_other_checks(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HMI_STREAMS", "none")
    monkeypatch.setenv("HMI_STREAM", "1")
    found = wrong(capsys, data)
    assert levels(found, "settings") == ["problem", "warning"]
    assert levels(found, "files") == ["ok"]


async def test_a_server_is_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(tmp_path / "d") as (services, _, port):
        url = f"http://127.0.0.1:{port}"
        found = findings(await asyncio.to_thread(hmi, capsys, "doctor", "--json", "--url", url))
        assert {name: levels(found, name) for name in found} == {
            "server": ["ok"],
            "time": ["ok"],
            "release": ["ok"],
        }
        services.lifecycle.phase = "draining"
        assert "is not ready" in await asyncio.to_thread(hmi, capsys, "doctor", "--url", url, code=1)
    assert "no answer from" in await asyncio.to_thread(hmi, capsys, "doctor", "--url", url, code=1)


def test_a_server_that_owns_the_folder_may_have_the_port(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with owning(data), announced(data, "http://127.0.0.1:9"):
        told = hmi(capsys, "doctor", "--data", data, code=1)
    assert "no answer from http://127.0.0.1:9" in told


def test_certificates_that_expire(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority.create(tmp_path / "c")
    soon = datetime.now(UTC) + timedelta(days=5)
    made = authority.ca.issue_cert("127.0.0.1", not_after=soon)
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    made.private_key_pem.write_to_path(key)
    made.cert_chain_pems[0].write_to_path(cert)
    assert expires_at(cert) == pytest.approx(soon.timestamp(), abs=2)
    settings = Settings(data=tmp_path / "d", port=0, tls_cert=cert, tls_key=key)

    def told() -> tuple[str, str]:
        return next((f.level, f.text) for f in settings_findings(settings) if f.check == "tls_cert")

    assert told()[0] == "warning"
    monkeypatch.setattr(machine.time, "time", lambda: soon.timestamp() + 1e6)
    assert told()[0] == "problem"


def test_a_remote_file_system_and_a_wrong_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_file_system", lambda _: "nfs4")
    monkeypatch.setattr(machine.time, "time", lambda: 1000.0)
    found = {f.check: f.level for f in machine_findings(Settings(data=tmp_path))}
    assert found == {"disk": "ok", "file system": "problem", "clock": "problem"}


def test_packages_that_are_missing_or_old() -> None:
    assert _unmet("numpy>=2.0") is None
    assert "is older than 999" in str(_unmet("numpy>=999"))
    assert "is not older than 1.2" in str(_unmet("numpy<1.2,>=1"))
    assert "is not 1.2" in str(_unmet("numpy==1.2"))
    assert _unmet(f"torch=={torch.__version__}") is None
    assert "is not installed" in str(_unmet("no-such-package>=1"))


@pytest.mark.parametrize(
    ("given", "device", "chosen", "level", "told"),
    [
        ("auto", False, (None, ""), "ok", "no NVIDIA device: the processor answers"),
        ("auto", True, (None, "torch finds no CUDA device"), "warning", "nvidia-smi"),
        ("cuda", True, (None, "torch finds no CUDA device"), "problem", "nvidia-smi"),
        ("cpu", True, (None, "device = cpu"), "ok", "since device = cpu"),
        ("auto", True, ("bf16", "NVIDIA H100"), "warning", "pip install hmi-server[cuda]"),
    ],
)
def test_the_path_that_answers_take_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: str,
    device: bool,
    chosen: tuple[str | None, str],
    level: str,
    told: str,
) -> None:
    monkeypatch.setattr("hmi.execution.cuda.choose.path", lambda *_: chosen)
    if device:
        (tmp_path / "nvidia0").touch()
    found = path_of(Settings(data=tmp_path, device=given), tmp_path)
    assert found.level == level
    assert told in found.text


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_a_device_that_is_asked_for_and_missing_is_a_problem(tmp_path: Path) -> None:
    found = path_of(Settings(data=tmp_path, device="cuda"), tmp_path)
    assert found.level == "problem"
    assert "torch finds no CUDA device" in found.text


def test_a_bundle_tells_no_names(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "report.zip"
    hmi(capsys, "doctor", "--data", data, "--bundle", file)
    with zipfile.ZipFile(file) as archive:
        parts = {name: archive.read(name).decode() for name in archive.namelist()}
    assert set(parts) == {"findings.json", "settings.json", "machine.json", "packages.txt", "metrics.txt"}
    whole = "\n".join(parts.values())
    assert "acme" not in whole
    assert str(data) not in whole
    assert "a secret row" not in whole
    assert json.loads(parts["settings.json"])["values"]["port"] == 8080


def test_a_redactor_replaces_whole_names() -> None:
    redact = Redactor({"tenant": ["acme", "acme-two"]}, [Path("/srv/data")])
    told = redact("acme-two, acme, acme.m, acmes, /srv/data/x, hmi_" + "k" * 43)
    assert re.fullmatch(r"tenant-1, tenant-2, tenant-2.m, acmes, <0>/x, <key>", told)
