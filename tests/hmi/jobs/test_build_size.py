"""The size of a build: budgets of bytes, and branches without entries of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hmi.core import JobRecord
from hmi.errors import InvalidInput
from hmi.jobs.plot.build_plot import check_budget, split_budget, top_occurrences
from hmi.jobs.plot.ngrams import ragged
from hmi.manager import Manager
from hmi.model.sources.root import load_root
from hmi.training.data.corpus import read_documents
from plot_store import Schema, VersionInfo, disk_bytes
from tests.hmi.labs.api_world import hmi
from tests.hmi.labs.build_lab import attempt, create, folder, text, tiny_manager

SCHEMA = Schema(dim=32, vocab=100)


@pytest.fixture(scope="module")
def manager(tiny_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    yield from tiny_manager(tiny_source, tmp_path_factory.mktemp("size") / "data")


def fails(manager: Manager, job: JobRecord, told: str) -> None:
    with pytest.raises(InvalidInput, match=told) as caught:
        attempt(manager, job)
    assert caught.value.details["field"] == "options.budget_bytes"
    manager.registry.update_job(job.job, lambda r: r.model_copy(update={"state": "failed"}))


# Budgets


@pytest.mark.parametrize("room", [0, 20_000, 60_000, 200_000, 1_000_000])
@pytest.mark.parametrize("there", [{2: 10**6, 3: 10**6}, {2: 40, 3: 10**6}, {2: 10**6, 3: 40}, {2: 9, 3: 9}])
def test_a_budget_is_split_and_used_up(room: int, there: dict[int, int]) -> None:
    taken = split_budget(SCHEMA, room, there)
    spent = sum(disk_bytes(SCHEMA, order, count) for order, count in taken.items())
    assert spent <= max(room, 0)
    assert all(0 <= taken[order] <= there[order] for order in there)
    for order in there:
        more = {**taken, order: taken[order] + 1}
        full = sum(disk_bytes(SCHEMA, k, count) for k, count in more.items()) > room
        assert full or taken[order] == there[order], "nothing that fits is left out"
    if room >= 200_000 and min(there.values()) == 10**6:
        assert disk_bytes(SCHEMA, 2, taken[2]) == pytest.approx(0.8 * room, rel=0.02)


def test_a_budget_for_wider_windows_gives_each_order_a_part() -> None:
    schema = Schema(n=5, dim=32, vocab=100)
    taken = split_budget(schema, 10**6, dict.fromkeys((2, 3, 4, 5), 10**6))
    assert min(taken.values()) > 0
    assert split_budget(Schema(n=2, dim=32, vocab=9), 10**5, {2: 7}) == {2: 7}


def test_the_most_frequent_are_counted() -> None:
    sums = [top_occurrences({5: 2, 1: 3, 2: 1}, most) for most in (0, 1, 2, 3, 5, 9)]
    assert sums == [0, 5, 10, 12, 14, 15]


def test_a_budget_for_nothing_is_refused() -> None:
    least = disk_bytes(SCHEMA, 3, 1)
    assert check_budget(least, 0, SCHEMA) == least
    with pytest.raises(InvalidInput, match=f"at least {least:,}, or alpha 0"):
        check_budget(least - 1, 0, SCHEMA)
    with pytest.raises(InvalidInput, match=f"at least {least + 7:,}, or an alpha"):
        check_budget(least + 6, 7, SCHEMA)


@pytest.mark.parametrize("pretrain", [False, True])
def test_a_build_keeps_to_its_budget_and_says_its_alpha(manager: Manager, pretrain: bool) -> None:
    corpus, budget = text(20, 300), 250_000
    options = {"budget_bytes": budget, "pretrain_steps": 2, "min_difference": 0}
    name = f"tiny/budget-{pretrain}".lower()
    result, version = create(manager, name, corpus, pretrain=pretrain, options=options)
    assert budget / 2 < version.bytes <= budget
    assert 0 < result["stored_trigrams"] < result["distinct_trigrams"]
    assert result["stored_bigrams"] > 0
    assert version.meta["budget_bytes"] == budget
    assert (
        result["alpha"]
        == version.meta["alpha"]
        == pytest.approx(hit_share(manager, version, corpus), abs=0.01)
    )
    with manager.plots.reader("tiny") as root, manager.plots.reader(name) as reader:
        for order in (2, 3):
            shared = root.contains(order, reader.ngrams(order))
            assert shared.any() == pretrain, (
                "what the parent has costs nothing, unless the lower layers are others"
            )
    shown = next(v for v in manager.domain(name).versions)
    assert (shown.alpha, shown.budget_bytes) == (result["alpha"], budget)
    fails(manager, manager.create_domain("tiny/no", corpus, options={"budget_bytes": 9}), "hold no n-gram")
    spent = {"budget_bytes": version.bytes}
    fails(manager, manager.update_domain(name, corpus, options=spent), "bytes: give at least")


def hit_share(manager: Manager, version: VersionInfo, corpus: bytes) -> float:
    """Percent of the corpus' trigrams for which the version stores what its lower layers compute."""
    tokenizer = load_root(folder(manager), with_lower=False).tokenizer
    path = manager.settings.data / "corpus.txt"
    path.write_bytes(corpus)
    ids = [e.ids for d in read_documents(path) for e in tokenizer.encode([d], 1 << 30)]
    with manager.plots.reader(version.id) as reader:
        same = [v.meta.get("lower") == version.meta["lower"] for v in reader.chain]
        _, hits = reader.lookup(*ragged(ids))
    good = (hits.order == 3) & np.array([*same, False])[hits.depth]
    return float(100 * good.mean())


def test_an_update_spends_what_is_left_of_the_budget(manager: Manager) -> None:
    _, first = create(manager, "tiny/more", text(21, 30), options={"budget_bytes": 10**6})
    job = manager.update_domain("tiny/more", text(22, 30))
    assert (job.spec["alpha"], job.spec["options"]["budget_bytes"]) == (None, 10**6), (
        "as the version before has it"
    )
    assert attempt(manager, job)
    second = manager.plots.version("tiny/more")
    assert first.bytes < second.bytes <= 10**6
    again = {"budget_bytes": second.bytes + 60_000, "pretrain_steps": 2}
    assert attempt(manager, manager.update_domain("tiny/more", text(23, 90), pretrain=True, options=again))
    third = manager.plots.version("tiny/more")
    assert third.bytes <= again["budget_bytes"]
    assert attempt(manager, manager.update_domain("tiny/more", text(24, 10), alpha=20))
    assert "budget_bytes" not in manager.plots.version("tiny/more").meta


def test_alpha_and_a_budget_exclude_each_other(manager: Manager) -> None:
    with pytest.raises(InvalidInput, match="give one of them"):
        manager.create_domain("tiny/both", b"some\ntext", alpha=50, options={"budget_bytes": 10**6})
    with pytest.raises(InvalidInput, match=r"options\.budget_bytes"):
        manager.create_domain("tiny/both", b"some\ntext", options={"budget_bytes": 0})
    job = manager.create_domain("tiny/both", b"some\ntext")
    assert (job.spec["alpha"], job.spec["options"]["budget_bytes"]) == (50.0, None)
    manager.cancel_job(job.job)


def test_a_budget_on_the_command_line(
    manager: Manager, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text").write_bytes(text(26))
    create_ = ("domain", "create", "tiny/typed", tmp_path / "text", "--data", manager.settings.data)
    assert "is not a size" in hmi(capsys, *create_, "--budget", "many", code=2)
    assert "give one of them" in hmi(capsys, *create_, "--budget", "2M", "--alpha", 5, code=1)
    job = hmi(capsys, *create_, "--budget", "1.5M", "--option", "min_count=2", "--detach").split()[-1]
    spec = manager.job(job).spec
    assert (spec["alpha"], spec["options"]["budget_bytes"], spec["options"]["min_count"]) == (
        None,
        3 << 19,
        2,
    )
    manager.cancel_job(job)


# Alpha 0


@pytest.mark.parametrize("pretrain", [False, True])
def test_alpha_zero_is_an_empty_branch(manager: Manager, pretrain: bool) -> None:
    name = f"tiny/zero-{pretrain}".lower()
    result, version = create(
        manager, name, text(25), alpha=0, pretrain=pretrain, options={"pretrain_steps": 2}
    )
    assert (version.bytes, result["stored_trigrams"], result["stored_bigrams"]) == (0, 0, 0)
    batch = ragged([[7, 8, 9, 10, 11]])
    with manager.plots.reader("tiny") as root, manager.plots.reader(name) as reader:
        assert np.array_equal(root.lookup(*batch)[0], reader.lookup(*batch)[0])
    assert attempt(manager, manager.update_domain(name, text(25), alpha=30))
