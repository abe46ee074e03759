"""The command line on a data folder, and a real server process that it calls."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.hmi.labs.api_world import corpus, hmi, rows
from tests.hmi.labs.server_lab import REPO, ready, serving


def test_tenants_and_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = ("--data", tmp_path / "d")
    key = hmi(capsys, "tenant", "create", "acme", *data).strip()
    assert re.fullmatch(r"hmi_[\w-]{43}", key)
    assert [t["tenant"] for t in json.loads(hmi(capsys, *data, "tenant", "list", "--json"))] == ["acme"]
    assert "acme" in hmi(capsys, "tenant", "list", *data)
    told = hmi(capsys, "tenant", "create", "acme", *data, code=1)
    assert told.startswith("error: ")
    assert len(told.strip().splitlines()) == 1
    made = json.loads(hmi(capsys, "key", "create", "acme", "--scope", "infer", "--json", *data))
    assert made["scopes"] == ["infer"]
    admin = json.loads(hmi(capsys, "key", "create", "--admin", "--json", *data))
    assert len(json.loads(hmi(capsys, "key", "list", "acme", "--json", *data))) == 2
    assert [k["key_id"] for k in json.loads(hmi(capsys, "key", "list", "--json", *data))] == [admin["key_id"]]
    hmi(capsys, "key", "revoke", admin["key_id"], *data)
    assert json.loads(hmi(capsys, "key", "list", "--json", *data)) == []
    hmi(capsys, "key", "create", *data, code=2)
    hmi(capsys, "tenant", "delete", "acme", "--yes", *data)
    assert json.loads(hmi(capsys, "tenant", "list", "--json", *data)) == []


def test_errors_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = ("--data", tmp_path / "d")
    hmi(capsys, "tenant", "create", "acme", *data)
    for arguments in (
        ("model", "show", "acme.m"),
        ("model", "show", "acme"),
        ("domain", "delete", "tiny/x", "--yes"),
        ("job", "show", "nothing"),
        ("job", "watch", "nothing"),
        ("root", "import", "tiny", "/no/such/folder"),
        ("infer", "acme.m", "text"),
        ("store", "export", "tiny", tmp_path / "out"),
        ("tenant", "list", "--url", "http://127.0.0.1:1"),
        ("store", "verify", "--url", "http://127.0.0.1:1"),
        ("tenant", "list", "--url", "foo"),
    ):
        told = hmi(capsys, *arguments, *data, code=1)
        assert told.startswith("error: "), told
        assert len(told.strip().splitlines()) == 1
    hmi(capsys, "model", "create", code=2)
    hmi(capsys, "nonsense", code=2)


def test_life_on_a_data_folder(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_bytes(corpus(100))
    data = ("--data", folder)
    answer = json.loads(hmi(capsys, "infer", "acme.m", "the market", "a gene", "--json", "--scores", *data))
    assert [set(o["scores"]) for o in answer["outputs"]] == [{"biology", "finance"}] * 2
    assert "the market" in hmi(capsys, "infer", "acme.m", "the market", *data)
    assert "finance" in hmi(capsys, "model", "list", *data)
    for arguments in (
        ("model", "show", "acme.m"),
        ("domain", "list"),
        ("domain", "show", "tiny"),
        ("job", "list"),
        ("root", "show", "tiny"),
        ("store", "info"),
    ):
        assert hmi(capsys, *arguments, *data).strip()
        assert json.loads(hmi(capsys, *arguments, "--json", *data))
    plots(tmp_path, capsys)
    hmi(capsys, "store", "export", "tiny", tmp_path / "archive", *data)
    hmi(capsys, "store", "verify", *data)
    assert not list((folder / "incoming").glob("*"))


def plots(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The script that builds PLOTs, run twice on one folder: the second run finds everything done."""
    (tmp_path / "plan.json").write_text(json.dumps([{"domain": "tiny/a", "corpus": "text"}]))
    command = [
        sys.executable,
        "scripts/build_plots.py",
        str(tmp_path / "plan.json"),
        "--data",
        str(tmp_path / "d"),
    ]
    env = {**os.environ, "PYTHONPATH": f"{REPO}:{REPO / 'kernels'}"}
    for _ in range(2):
        done = subprocess.run(
            command, cwd=REPO, env=env, capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, "tiny/a" in done.stdout) == (0, True), done.stderr
    found = json.loads(hmi(capsys, "domain", "show", "tiny/a", "--json", "--data", tmp_path / "d"))
    assert len(found["versions"]) == 1


def test_a_server_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "d"
    with serving(data) as (url, server):
        ready(url)
        assert json.loads((data / "server.json").read_text())["url"] == url
        (tmp_path / "text").write_bytes(corpus(10))
        told = hmi(capsys, "domain", "create", "tiny/a", tmp_path / "text", "--data", data, code=1)
        assert f"--url {url}" in told
        told = hmi(capsys, "serve", "--data", data, "--port", 0, code=1)
        assert "another server" in told
        told = hmi(capsys, "serve", "--data", tmp_path / "e", "--port", url.rpartition(":")[2], code=1)
        assert "in use" in told
        assert "--port" in told
        onboards(tmp_path, url)
        server.send_signal(signal.SIGTERM)
        assert server.wait(20) == 0
    assert not (data / "server.json").exists()


def onboards(tmp_path: Path, url: str) -> None:
    """The script that onboards tenants: keys are stored privately, a failure has its reason,
    a second run adds nothing."""
    for name in ("acme", "zeta"):
        folder = tmp_path / "plan" / name
        folder.mkdir(parents=True)
        told = {"model": "m", "domain": "tiny/none", "task": "classification"}
        (folder / "model.json").write_text(json.dumps(told))
        (folder / "train.jsonl").write_bytes(rows(4))
    plan = str(tmp_path / "plan")
    command = [sys.executable, "scripts/onboard_tenants.py", plan, "--url", url, "--parallel", "2"]
    env = {**os.environ, "PYTHONPATH": f"{REPO}:{REPO / 'kernels'}"}
    for _ in range(2):
        done = subprocess.run(
            command, cwd=REPO, env=env, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 1
        assert "tiny/none" in done.stdout
        assert "Traceback" not in done.stderr
    keys = tmp_path / "plan.keys.jsonl"
    assert stat.S_IMODE(keys.stat().st_mode) == 0o600
    assert sorted(json.loads(line)["tenant"] for line in keys.read_text().splitlines()) == ["acme", "zeta"]
    with urllib.request.urlopen(f"{url}/manage/tenants") as answer:
        assert [t["tenant"] for t in json.load(answer)["tenants"]] == ["acme", "zeta"]


def test_other_hosts_need_a_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = hmi(capsys, "serve", "--data", tmp_path, "--host", "0.0.0.0", "--port", 0, code=1)
    assert "hmi key create --admin" in told
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        told = hmi(capsys, "serve", "--data", tmp_path, "--port", taken.getsockname()[1], code=1)
    assert "in use" in told


def test_help_is_quick_and_complete(capsys: pytest.CaptureFixture[str]) -> None:
    listed = hmi(capsys, "--help")
    for name in ("serve", "root", "domain", "tenant", "key", "model", "job", "store", "infer", "openapi"):
        assert name in listed
        hmi(capsys, name, "--help")
    for command in (("serve",), ("model", "create"), ("job", "watch")):
        assert "--data" in hmi(capsys, *command, "--help")
    code = "import sys, hmi.cli; sys.exit('torch' in sys.modules or 'aiohttp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=REPO, check=False).returncode == 0
