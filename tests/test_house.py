"""What measures a rebuild: `scripts/house.py` on a small tree, `scripts/ruler_calls.py` on answers."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from scripts.house import CLOSURES, closure, figures, read, table
from scripts.ruler_calls import Calls, Differences, bare, rows_of, surface_differences

REPO = Path(__file__).resolve().parents[1]
SOURCES = {
    "hmi/__init__.py": '"""The package."""\n',
    "hmi/engine/__init__.py": "",
    "hmi/engine/queue.py": (
        "from typing import TYPE_CHECKING\n\nfrom ..text import words\n\n"
        "if TYPE_CHECKING:\n    from hmi.unused import Thing\n\n\n"
        "class Plan:\n    size = 1\n    '''How large.'''\n"
    ),
    "hmi/engine/engine.py": (
        "import hmi.engine.queue\n\n\ndef run():\n    from hmi import late\n\n    return late\n"
    ),
    "hmi/text.py": "words = 1\n\n\nclass Plan: ...\n",
    "hmi/late.py": "import hmi_kernels.fast\n",
    "hmi/unused.py": "class Thing: ...\n",
    "hmi/bench/speed.py": "import hmi.engine.engine\n",
    "kernels/hmi_kernels/fast.py": "x = 1\n",
    "tests/test_a.py": "\n\nimport hmi.text\n",
}
ANSWER = {
    "status": 200,
    "answer": {
        "id": "a1" * 16,
        "version": 1,
        "outputs": [{"label": "refund", "score": 0.75, "tags": ["O", "B-product"]}],
        "timing": {"total_ms": 3.5},
        "provenance": {"plot": {"trigram": 4, "miss": 1}},
    },
}


def test_a_small_tree_is_counted(tmp_path: Path) -> None:
    for name, text in SOURCES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/glossary.md").write_text("| term | means |\n|---|---|\n| **a** | x |\n| **b** | y |\n")
    found = figures(tmp_path)
    assert found["hmi: lines / files"] == "16 / 7"
    assert found["kernels: lines / files"] == "1 / 1"
    assert found["bench: lines / files"] == "1 / 1"
    assert found["tests: lines / files"] == "1 / 1"
    assert found["product: lines / files"] == "17 / 8"
    assert found["folders with most files"].startswith("hmi 4, hmi/engine 3")
    # The queue runs hmi, hmi.engine and hmi.text: what only a type checker reads does not run.
    assert found["closure of the queue: lines / files"] == "10 / 4"
    assert found["closure of the engine: lines / files"] == "14 / 5"
    assert found["closure of the engine, also inside functions: lines / files"] == "16 / 7"
    assert found["class names of several modules"] == 1
    assert found["those of most modules"] == "Plan 2"
    assert found["terms of the glossary"] == 2
    assert found["docstrings, share of the product's lines"] == f"{2 / 17:.1%}"
    assert found["imports, share of the product's lines"] == f"{6 / 17:.1%}"
    assert found["longest function"] == "3 (hmi/engine/engine.py run)"
    assert found["longest file"] == "7 (hmi/engine/queue.py)"
    # Each of queue, engine, text, late and fast has one importer in the house; unused has none that runs.
    assert found["files of at most 150 lines with one importer"] == 5
    printed = table({"before": found, "after": {**found, "terms of the glossary": 1}})
    assert "| figure | before | after |" in printed
    assert "| terms of the glossary | 2 | 1 |" in printed


def compared(a: Any, b: Any) -> Differences:
    found = Differences()
    found.look(bare(a), bare(b), "answer")
    return found


def test_equal_answers_differ_in_volatile_fields_only() -> None:
    other = copy.deepcopy(ANSWER)
    other["answer"] |= {"id": "b2" * 16, "timing": {"total_ms": 9}}  # type: ignore[operator]
    found = compared(ANSWER, other)
    assert (found.names, found.numbers, found.bit_equal, found.greatest) == ([], 1, 1, 0.0)


@pytest.mark.parametrize(
    ("place", "value", "named"),
    [
        (("status",), 500, "answer.status: 200, 500"),
        (("answer", "version"), True, "answer.answer.version"),
        (
            ("answer", "outputs", 0, "label"),
            "delivery",
            "answer.answer.outputs[0].label: 'refund', 'delivery'",
        ),
        (("answer", "outputs", 0, "score"), 0.7501, "answer.answer.outputs[0].score"),
        (("answer", "outputs", 0, "score"), float("nan"), "answer.answer.outputs[0].score"),
        (("answer", "outputs", 0, "score"), None, "answer.answer.outputs[0].score"),
        (("answer", "outputs", 0, "tags"), ["O"], "answer.answer.outputs[0].tags"),
        (("answer", "provenance", "plot", "miss"), 2, "answer.answer.provenance.plot.miss: 1, 2"),
        (("answer", "provenance", "plot", "other"), 2, "answer.answer.provenance.plot.other: new"),
    ],
)
def test_what_may_not_differ_is_named(place: tuple[Any, ...], value: Any, named: str) -> None:
    other: Any = copy.deepcopy(ANSWER)
    inner = other
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    (name,) = compared(ANSWER, other).names
    assert name.startswith(named)


def test_a_bit_is_counted_and_no_difference() -> None:
    other: Any = copy.deepcopy(ANSWER)
    other["answer"]["outputs"][0]["score"] += 2**-53
    found = compared(ANSWER, other)
    assert (found.names, found.numbers, found.bit_equal, found.greatest) == ([], 1, 0, 2**-53)


def test_commands_options_and_paths_are_named() -> None:
    old = {
        "openapi": {"paths": {"/a": {"get": {"summary": "x"}}, "/b": {}}},
        "commands": {
            "hmi": ["  bench  Measure", "  serve  Serve"],
            "hmi bench": [],
            "hmi serve": ["  --port N"],
        },
    }
    new = {
        "openapi": {"paths": {"/a": {"get": {"summary": "y"}}, "/c": {}}},
        "commands": {"hmi": ["  serve  Serve"], "hmi serve": ["  --port  N", "  --more"]},
    }
    assert surface_differences(old, old) == []
    assert surface_differences(old, new) == [
        "openapi.paths./a.get.summary: 'x', 'y'",
        "openapi.paths./b: gone",
        "openapi.paths./c: new",
        "hmi: - bench Measure",
        "hmi bench: gone",
        "hmi serve: + --more",
    ]


def test_the_same_seed_draws_the_same_calls_of_every_kind() -> None:
    calls = Calls(REPO, 7).all(900)
    assert calls == Calls(REPO, 7).all(900)
    assert calls != Calls(REPO, 8).all(900)
    kinds = {call["kind"] for call in calls}
    assert kinds == {"infer", "mixed", "tei", "openai", "hub", "oip", "read", "broken"}
    assert all(len(rows) >= 50 for rows in rows_of(REPO).values())


def test_ids_of_requests_are_left_out_and_packed_embeddings_are_numbers() -> None:
    answer = {
        "id": "8a" * 16,
        "models": [{"id": "acme.intent", "last_used": "today"}],
        "embedding": "AAAAPw==",
    }
    assert bare(answer) == {"models": [{"id": "acme.intent"}], "embedding": [0.5]}


def test_the_queue_needs_little_of_the_house() -> None:
    known = {file.module: file for file in read(REPO) if file.part not in ("tests", "scripts")}
    found = closure(CLOSURES["the queue"], known, deep=False)
    assert 0 < len(found) <= 60, sorted(file.path for file in found)
