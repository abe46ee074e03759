"""The trial on a GPU, on the twin, and with steps that fail."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "gpu_trial.py"
FAILING = """
import json, os, sys, time
pipe = os.fdopen(int(sys.argv[4]), "w", buffering=1)
for name in sys.argv[5:]:
    pipe.write(json.dumps({"begins": name}) + chr(10))
    if name == "kernels":
        os.kill(os.getpid(), 9)
    if name == "tests":
        time.sleep(60)
    row = {"id": name, "value": 1, "unit": "x", "goal": None, "ok": None, "peer": None, "why": None}
    pipe.write(json.dumps({"row": row}) + chr(10))
    error = "it is broken" if name == "server" else None
    pipe.write(json.dumps({"ended": name, "seconds": 0.1, "error": error}) + chr(10))
    if error:
        os._exit(1)
"""


@pytest.fixture(scope="module")
def trial() -> Any:
    spec = importlib.util.spec_from_file_location("gpu_trial", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.mark.slow
def test_every_step_runs_on_the_twin(tmp_path: Path, trial: Any) -> None:
    command = [sys.executable, str(SCRIPT), "--device", "twin", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    known = json.loads((tmp_path / "trial.json").read_text())
    assert {name: step["state"] for name, step in known["steps"].items()} == dict.fromkeys(
        trial.ABOUT, "done"
    )
    values = {row["id"]: row["value"] for step in known["steps"].values() for row in step["rows"]}
    assert values["server_answers_of_another_tenant"] == 0
    assert values["server_batched_less_alone"] < 1e-4
    assert values["server_on_device"] == 1
    assert values["lookup_kernel_cases"] == 12
    written = trial.page(known)
    missing = [what for name, what, *_ in trial.GOALS if name in values and f"| {what} |" not in written]
    assert missing == []
    assert len(list(tmp_path.iterdir())) <= 8, "so many files come back from a machine that is lent"


def test_a_step_that_fails_dies_or_hangs_does_not_end_the_others(
    tmp_path: Path, trial: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "gpu_steps.py").write_text(FAILING)
    (tmp_path / "scripts" / "gpu_server.py").touch()
    monkeypatch.setattr(trial, "HERE", tmp_path)
    monkeypatch.setitem(trial.LIMITS_S, "tests", 1)
    known: dict[str, Any] = {"steps": {}}
    trial.Trial("twin", tmp_path, tmp_path, known, dict(os.environ)).run(list(trial.LIMITS_S))
    states = {name: (step["state"], step["error"]) for name, step in known["steps"].items()}
    assert states == {
        "card": ("done", None),
        "kernels": ("failed", "its process died"),
        "tests": ("failed", "it ran past its limit of time"),
        "server": ("failed", "it is broken"),
        **dict.fromkeys(("timeline", "throughput", "ablation", "limits", "sanitizer"), ("done", None)),
    }
    assert json.loads((tmp_path / "trial.json").read_text()) == known
    assert "it is broken" in trial.page(known)


def test_steps_that_do_not_start_are_told(
    tmp_path: Path, trial: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "gpu_steps.py").write_text("import nothing_of_this_name")
    monkeypatch.setattr(trial, "HERE", tmp_path)
    known: dict[str, Any] = {"steps": {}}
    trial.Trial("twin", tmp_path, tmp_path, known, dict(os.environ)).run(["card", "limits"])
    assert {step["error"] for step in known["steps"].values()} == {"the process of the steps did not start"}


def test_the_page_is_that_of_the_results(trial: Any) -> None:
    file = trial.RESULTS / "trial.json"
    known = json.loads(file.read_text()) if file.exists() else {"steps": {}}
    assert trial.PAGE.read_text() == trial.page(known), "scripts/gpu_trial.py --page writes it"
