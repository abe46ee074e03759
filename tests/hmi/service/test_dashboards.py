"""The dashboard and the alerts use only metrics, labels and values that a served engine has."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from hmi.api.protocols.errors import STATUS
from scripts.grafana_dashboard import FILE, text
from tests.hmi.labs.api_world import made_folder, running
from tests.hmi.labs.promql import Expression, Reader

ALERTS = FILE.parents[1] / "prometheus" / "alerts.yml"
SCRAPED = {"job", "instance"}
"""Labels that Prometheus itself adds."""
OUTCOMES = {"ok", "client_gone", *STATUS}
RARE = {"hmi_exits_total": {"site"}, "hmi_execution_stage_inputs_total": {"stage", "setting"}}
"""Metrics that have no sample before a stage acts: their labels, as hmi/metrics has them."""
RARE |= {"hmi_device_lost": {"root"}, "hmi_writing_tokens_total": {"kind"}}


def expressions() -> Iterator[tuple[str, str]]:
    """Every expression, with the place that it stands in."""
    for panel in json.loads(FILE.read_text())["panels"]:
        for target in panel.get("targets", ()):
            yield f"panel {panel['title']}", target["expr"]
    for group in yaml.safe_load(ALERTS.read_text())["groups"]:
        for rule in group["rules"]:
            yield f"alert {rule['alert']}", rule["expr"]


def test_the_dashboard_is_what_its_script_writes() -> None:
    assert FILE.read_text() == text(), "run: python scripts/grafana_dashboard.py"
    panels = json.loads(text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in panels]
    assert len(set(taken)) == len(taken)


def test_every_alert_can_be_acted_upon() -> None:
    page = (FILE.parents[2] / "docs" / "operations" / "observability.md").read_text()
    for group in yaml.safe_load(ALERTS.read_text())["groups"]:
        for rule in group["rules"]:
            assert rule["labels"]["severity"] in ("page", "ticket")
            assert rule["annotations"]["summary"]
            assert f"`{rule['alert']}`" in page


@pytest.mark.parametrize(
    "wrong",
    [
        "sum(rate(a[5m])",
        "rate(a)",
        "a{b}",
        "sum by () (a)",
        "a b",
        "a{b=c}",
        "a[5x]",
        "a / ",
        'sum("x")',
        "(a",
    ],
)
def test_the_reader_would_find_a_wrong_expression(wrong: str) -> None:
    with pytest.raises(ValueError):
        Reader(wrong).read()


def test_writing_is_watched() -> None:
    used = {metric for _, expr in expressions() for metric, _ in Reader(expr).read().metrics}
    wanted = "first_token_seconds_bucket", "tokens_total", "texts", "set_back_total"
    assert {f"hmi_writing_{name}" for name in wanted} <= used


async def test_what_they_use_exists(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    tiny_source: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = await asyncio.to_thread(made_folder, tmp_path_factory.getbasetemp(), tiny_source, capsys)
    shutil.copytree(made, tmp_path / "d")
    async with running(tmp_path / "d") as world:
        assert (await world.call("POST", "/infer/acme.m", {"inputs": "a price"}))[0] == 200
        async with world.client.get("/metrics") as answer:
            page = await answer.text()
    values: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            for name, value in sample.labels.items():
                values[sample.name][name].add(value)
            values[sample.name].setdefault("", set())
    for name, labels in RARE.items():
        assert f"# TYPE {name.removesuffix('_total')}" in page, name
        for label in labels:
            values[name].setdefault(label, set())
    for place, expr in expressions():
        check(place, Reader(expr).read(), values)


def check(place: str, found: Expression, values: dict[str, dict[str, set[str]]]) -> None:
    known = set(SCRAPED)
    for metric, labels in found.metrics:
        assert metric == "up" or metric in values, f"{place}: there is no metric {metric}"
        known |= set(values.get(metric, {}))
        for name, wanted in labels.items():
            assert name in SCRAPED or name in values[metric], f"{place}: {metric} has no label {name}"
            if name == "outcome":
                assert set(wanted.split("|")) <= OUTCOMES, f"{place}: {wanted}"
            elif name not in SCRAPED:
                assert any(re.fullmatch(wanted, v) for v in values[metric][name]), f"{place}: {name}={wanted}"
    assert found.grouped <= known, f"{place}: nothing has the labels {found.grouped - known}"
