"""Profiles of stages: measured on a root's executor, kept for it alone, shown as a table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hmi.cli.machine.profile import table
from hmi.execution.batch import BatchKey, Rows
from hmi.execution.choose import Chosen, executor_for
from hmi.execution.machine import fingerprint
from hmi.model.sources.root import Root
from hmi.stages.planning.profile import BATCHES, READS, Lab, cost_of
from hmi.stages.token_adaptation.settings import MERGE_SETTINGS, TokenSetting
from hmi.stages.token_adaptation.stage import TokenAdaptation
from hmi.stores.layout import Layout
from hmi.stores.profiles import StageProfile, StageProfiles, StageSample

ROOT = ("tiny", "r1")


@pytest.fixture
def lab(tiny_root: Root, monkeypatch: pytest.MonkeyPatch) -> Lab:
    monkeypatch.setattr("hmi.stages.planning.profile.ROUNDS", 1)
    executor = executor_for(tiny_root)
    return Lab(TokenAdaptation(), executor, ROOT, tiny_root.info.shape, tiny_root.max_length)


def test_a_profile_has_every_setting_on_every_batch_and_holds_for_its_executor(
    lab: Lab, tmp_path: Path
) -> None:
    layout, steps = Layout(tmp_path), list[tuple[int, int]]()
    layout.root(*ROOT).mkdir(parents=True)
    kept = StageProfiles(layout)
    found = lab.measure(lambda step, done, of: steps.append((done, of)))
    assert [done for done, _ in steps] == list(range(steps[0][1]))
    assert found.settings == ("off", *(setting.name for setting in MERGE_SETTINGS))
    seen = {(each.reads, each.setting, each.batch) for each in found.samples}
    assert seen == {(reads, s, batch) for reads in READS for s in found.settings for batch in BATCHES}
    assert {each.modules for each in found.samples} == {1, 6}
    assert found.executor == lab.executor.name
    costs = [cost_of(found, reads) for reads in READS]
    assert all(cost is not None and cost.text_s(32, (1.0, 1.0)) + cost.fixed_s(1) > 0 for cost in costs)
    assert lab.known(kept) is None
    kept.put(*ROOT, found)
    assert lab.known(kept) == found
    other = Chosen(lab.executor)
    other.name = "another"
    assert replace(lab, executor=other).known(kept) is None
    kept.drop("tiny")
    assert kept.get(*ROOT, fingerprint()) is None


@pytest.mark.parametrize("setting", MERGE_SETTINGS, ids=lambda setting: setting.name)
def test_every_setting_really_merges_in_the_measured_batches(lab: Lab, setting: TokenSetting) -> None:
    """Else a profile tells that merging saves nothing, and the planner never uses it."""
    key, lengths = BatchKey(ROOT, "cls", exact=False), (24, 40)
    (hook,) = lab.stage.hooks(setting, lab._batch(key, lengths))
    assert list(hook.concerns or ()) == [0, 1]
    before = min(hook.at)
    rows, left = hook(before, Rows.packed(torch.randn(64, lab.shape.dim), [0, 24, 64]))
    assert left is None
    assert list(rows.texts) == [0, 1], "none is an audit, which would run twice"
    assert rows.offsets[-1] < 64


def test_the_table_says_what_a_setting_saves() -> None:
    times = {("off", "a"): 1.0, ("off", "b"): 2.0, ("merge 20%", "a"): 0.5, ("merge 20%", "b"): 2.2}
    samples = [
        StageSample(reads="cls", setting=setting, batch=batch, modules=1, seconds=seconds)
        for (setting, batch), seconds in times.items()
    ]
    profile = StageProfile(
        machine={},
        measured_at="",
        executor="packed fp32",
        settings=("off", "merge 20%"),
        batches={"a": (1,), "b": (2,)},
        samples=tuple(samples),
        costs={},
    )
    off, merged = table(profile)
    assert off["saves"] == 0.0
    assert merged["ms"] == {"a": 500.0, "b": 2200.0}
    assert merged["saves"] == pytest.approx(1 - (0.5 + 1.1) / 2)
