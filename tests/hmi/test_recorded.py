"""`tests.hmi.recorded` without a server: its calls and its comparison."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from tests.hmi.recorded import bare, compare
from tests.hmi.recorded_calls import requests
from tests.hmi.recorded_data import FORMS, TASKS

TEXTS = {
    "text": [[f"text {i} of some words"] for i in range(90)],
    "pair": [[f"one {i}", f"other {i}"] for i in range(90)],
    "tokens": [["word", str(i)] for i in range(90)],
}
KNOWN = {
    "models": [
        {"model": f"{t}.{k}", "task": k, "form": FORMS.get(k, "text")}
        for t in ("acme", "bolt")
        for k in TASKS
    ],
    "texts": TEXTS,
}
ANSWER = {
    "version": 1,
    "outputs": [
        {"label": "b", "score": 0.75, "scores": {"a": 0.25}, "tags": ["O"], "embedding": [0.5, -0.5]}
    ],
    "timing": {"total_ms": 3.5},
    "provenance": {"plot": {"trigram": 4, "miss": 1}},
}


def recording(path: Path, answer: Any, status: int = 200, body: str = "{}") -> Path:
    asked = {"what": "pair", "method": "POST", "path": "/infer/acme.pair", "body": body, "status": status}
    path.write_text(json.dumps({**asked, "answer": bare(answer)}) + "\n")
    return path


def test_the_same_seed_makes_the_same_calls_of_every_task_and_kind() -> None:
    calls = list(requests(KNOWN, 600, 7))
    assert calls == list(requests(KNOWN, 600, 7))
    assert calls != list(requests(KNOWN, 600, 8))
    assert len(calls) == 600
    assert {what for what, *_ in calls} >= {*TASKS, "broken", "stored"}
    sound = [json.loads(body or "") for what, _, path, body in calls if what not in ("broken", "stored")]
    bodies = [one for body in sound for one in (body if isinstance(body, list) else [body])]
    tenants = [{one["model"][:4] for one in body} for body in sound if isinstance(body, list)]
    assert {"acme", "bolt"} in tenants
    sizes = {len(one["inputs"]) for one in bodies if isinstance(one["inputs"], list)}
    assert min(sizes) == 1
    assert 13 <= max(sizes) <= 32
    for wanted in (
        {"exact": True},
        {"deadline_ms": 3_000_000},
        {"return": []},
        {"return": ["scores", "provenance"]},
    ):
        assert any(wanted.items() <= one.get("parameters", {}).items() for one in bodies), wanted


def test_equal_recordings_and_small_differences_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    near = copy.deepcopy(ANSWER)
    near["outputs"][0]["embedding"][1] += 5e-6  # type: ignore[index]
    near["timing"] = {"total_ms": 9.0}
    a, b = recording(tmp_path / "a", ANSWER), recording(tmp_path / "b", near)
    assert compare(a, a) == 0
    assert "1 of 1 answers bit-equal, 0 mismatches" in capsys.readouterr().out
    assert compare(a, b) == 0
    told = capsys.readouterr().out
    assert "embedding: 1 of 2 numbers bit-equal, greatest difference 5e-06" in told
    assert "scores: 1 of 1" in told
    assert compare(a, b, tolerance=1e-6) == 1


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("outputs", 0, "label"), "a"),
        (("outputs", 0, "score"), 0.7501),
        (("outputs", 0, "score"), float("nan")),
        (("outputs", 0, "score"), None),
        (("outputs", 0, "tags"), ["O", "O"]),
        (("outputs", 0, "scores"), {"b": 0.25}),
        (("provenance", "plot", "miss"), 2),
        (("version",), True),
    ],
)
def test_what_may_not_differ_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], place: tuple[Any, ...], value: Any
) -> None:
    other: Any = copy.deepcopy(ANSWER)
    inner = other
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    assert compare(recording(tmp_path / "a", ANSWER), recording(tmp_path / "b", other)) == 1
    assert f".{place[-1]}" in capsys.readouterr().out


def test_another_status_request_or_length_is_found(tmp_path: Path) -> None:
    a = recording(tmp_path / "a", ANSWER)
    assert compare(a, recording(tmp_path / "b", ANSWER, status=500)) == 1
    assert compare(a, recording(tmp_path / "c", ANSWER, body="[]")) == 1
    (tmp_path / "d").write_text(a.read_text() * 2)
    assert compare(a, tmp_path / "d") == 1
    (tmp_path / "e").write_text("")
    assert compare(tmp_path / "e", tmp_path / "e") == 1
