"""Each kind of task by command and over HTTP: created, asked, reported on."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from hmi.cli.models.report import reliability_svg
from tests.hmi.labs.api_world import hmi, running
from tests.tiny import random_texts

OPTIONS = ("--option", "epochs=1", "--option", "module.rank=2", "--option", "max_length=32")


def labelled_sets() -> str:
    texts = random_texts(30, seed=2)
    return "".join(json.dumps({"text": t, "labels": ["a", "b"][: i % 3]}) + "\n" for i, t in enumerate(texts))


async def test_embeddings_and_sets_of_labels(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ("--data", folder)
    rows = tmp_path / "sets.jsonl"
    rows.write_text(labelled_sets())
    create = ("model", "create", "--domain", "tiny", "--json")

    def commands() -> None:
        hmi(capsys, *create, "acme.vectors", "--task", "embedding", *data)
        hmi(capsys, *create, "acme.sets", rows, "--task", "multilabel", *OPTIONS, *data)
        error = hmi(capsys, *create, "acme.none", "--task", "regression", *data, code=1)
        assert "data is missing" in error
        shown = hmi(capsys, "infer", "acme.vectors", "the market falls", *data)
        assert "(32 numbers: see --json)" in shown
        assert "SCORE" not in shown
        report = hmi(capsys, "model", "report", "acme.sets", *data)
        assert "micro_f1" in report
        assert "PROBABILITY GIVEN" in report

    await asyncio.to_thread(commands)
    async with running(folder) as world:
        mixed = [
            {"model": "acme.vectors", "inputs": "the market falls"},
            {"model": "acme.sets", "inputs": ["a gene"], "parameters": {"return": ["scores"]}},
        ]
        status, (vectors, sets), _ = await world.call("POST", "/infer", mixed)
        assert status == 200
        (vector,) = vectors["outputs"]
        assert sum(x * x for x in vector["embedding"]) == pytest.approx(1, abs=1e-4)
        assert vector["label"] is vector["labels"] is vector["value"] is None
        (output,) = sets["outputs"]
        assert set(output["scores"]) == {"a", "b"}
        wanted = [label for label, score in output["scores"].items() if score >= 0.5]
        assert sorted(given["label"] for given in output["labels"]) == sorted(wanted)
        status, body, _ = await world.upload(
            "/manage/models", {"model": "acme.v2", "domain": "tiny", "task": "embedding"}, {"data": b"{}"}
        )
        assert (status, body["error"]["details"]["field"]) == (422, "data")
        spec = {"model": "acme.v2", "domain": "tiny", "task": "embedding"}
        status, body, _ = await world.call("POST", "/manage/models", spec)
        assert status == 202
        assert (await world.finish(body["job"]))["state"] == "succeeded"


def test_a_report_shows_scores_and_draws(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, plot = ("--data", folder), tmp_path / "plot.svg"
    shown = hmi(capsys, "model", "report", "acme.m", "--plot", plot, *data)
    for heading in ("accuracy", "PRECISION", "ANSWER", "SHARE RIGHT", "expected calibration error"):
        assert heading in shown
    metrics = json.loads(hmi(capsys, "model", "report", "acme.m", "--json", *data))
    drawn = ElementTree.parse(plot).getroot()
    dots = [e for e in drawn.iter() if e.tag.endswith("circle")]
    assert len(dots) == len(metrics["calibration"]["bins"])
    assert "per_label" not in hmi(capsys, "model", "show", "acme.m", *data)
    assert "no version 7" in hmi(capsys, "model", "report", "acme.m", "--version", 7, *data, code=1)


def test_the_dots_of_a_chart_stand_where_the_bins_say() -> None:
    bins = [{"rows": 10, "confidence": 0.5, "right": 1.0}]
    drawn = ElementTree.fromstring(reliability_svg("a <b>", {"ece": 0.5, "bins": bins}))
    (dot,) = [e for e in drawn.iter() if e.tag.endswith("circle")]
    assert (float(dot.attrib["cx"]), float(dot.attrib["cy"])) == (50 + 160, 50)
