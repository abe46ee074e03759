"""Import of roots, end to end, on tiny sources: MPNet, other lengths of n-grams, fidelity by kind of text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hmi.errors import InvalidInput
from hmi.execution.packed import PackedExecutor, run_rows
from hmi.jobs.model import fine_tune
from hmi.jobs.root import import_root
from hmi.manager import Manager
from hmi.manager.roots import export_locality
from hmi.model.sources.root import load_root, read_root_info
from hmi.model.sources.source import load_encoder
from hmi.model.text.batching import pad_ids
from tests.hmi.labs.api_world import hmi
from tests.hmi.labs.build_lab import attempt, run
from tests.tiny import random_texts, write_tiny_mpnet

RIDGE_ONLY = {"steps": 0, "upper_steps": 0}
PRETRAIN = {"pretrain_steps": 2, "min_difference": 0.0}


def text(seed: int, lines: int = 280) -> bytes:
    return "\n".join(random_texts(lines, seed, 5, 20)).encode()


@pytest.mark.parametrize(("kind", "n"), [("bert", 2), ("bert", 5), ("mpnet", 3)])
def test_a_plot_gives_what_the_lower_layers_compute(
    manager: Manager, tiny_source: Path, tmp_path: Path, kind: str, n: int, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tiny_source if kind == "bert" else write_tiny_mpnet(tmp_path / "tiny-mpnet")
    options = {**RIDGE_ONLY, "n": n}
    run(
        manager,
        manager.import_root("tiny", str(source), texts={"text-0": text(1)}, alpha=10, options=options),
    )
    run(manager, manager.create_domain("tiny/news", text(2, 30), alpha=100))
    record = manager.registry.root("tiny")
    assert (record.n, record.split) == (n, 2)
    shown = json.loads(hmi(capsys, "domain", "list", "--json", "--data", manager.settings.data))
    assert shown[-1]["entries"][{2: "bigrams", 3: "trigrams", 5: "5grams"}[n]] > 50
    root = load_root(manager.settings.data / "roots" / "tiny" / record.version, with_lower=True)
    assert root.info.shape.kind == kind
    assert root.lower is not None
    assert root.lower.n == n
    lines = text(2, 30).decode().splitlines()[:6]
    encoded = root.tokenizer.encode(lines, 60)
    ids = np.concatenate([np.asarray(e.ids, np.int32) for e in encoded])
    with manager.plots.reader(manager.plots.refs()["tiny/news"].id) as reader:
        rows, hits = reader.lookup(ids, np.cumsum([0, *map(len, encoded)], dtype=np.int64))
    assert set(hits.order.tolist()) == {n}, "the domain covers all of its own text"
    with torch.inference_mode():
        exact = root.lower(pad_ids([e.ids for e in encoded]))
    want = torch.cat([exact[i, : len(e)] for i, e in enumerate(encoded)])
    # int8 rows, of which n are added up
    assert ((torch.from_numpy(rows) - want).norm() / want.norm()).item() < 0.02


@pytest.mark.parametrize("kind", ["bert", "mpnet"])
def test_a_root_without_lower_layers_is_its_source(
    manager: Manager, tiny_source: Path, tmp_path: Path, kind: str
) -> None:
    """Words are looked up, positions and types added, and a LayerNorm follows. The same in a branch."""
    source = tiny_source if kind == "bert" else write_tiny_mpnet(tmp_path / "tiny-mpnet")
    run(manager, manager.import_root("tiny", str(source), split=0, texts={"text-0": text(1)}))
    run(manager, manager.create_domain("tiny/news", text(2, 30)))
    record = manager.registry.root("tiny")
    folder = manager.settings.data / "roots" / "tiny" / record.version
    assert (record.n, record.split, json.loads((folder / "root.json").read_text())["format"]) == (1, 0, 4)
    assert record.fidelity["last_relative_error"] < 1e-6
    root, encoder = load_root(folder), load_encoder(source)
    lines = text(2, 30).decode().splitlines()
    encoded = root.tokenizer.encode([lines[0], (lines[1], lines[2])], 60)
    ids = np.concatenate([np.asarray(e.ids, np.int32) for e in encoded])
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    for domain in ("tiny", "tiny/news"):
        with manager.plots.reader(manager.plots.refs()[domain].id) as reader:
            rows = torch.from_numpy(reader.lookup(ids, offsets)[0])
        with torch.inference_mode():
            root.add_bias(rows, encoded)
            got = run_rows(PackedExecutor(root.upper, root.info.shape), rows, offsets.tolist(), [None, None])
            for each, at in zip(encoded, offsets, strict=False):
                one = torch.tensor([each.ids])
                types = torch.tensor([each.types]) if kind == "bert" else None
                want = encoder(one, one > 0, types)[0]
                torch.testing.assert_close(got[at : at + len(each)], want, atol=0.01, rtol=0.01)
    with pytest.raises(InvalidInput, match=r"options\.n is of no use with split = 0"):
        manager.import_root("other", str(source), split=0, options={"n": 2})
    with pytest.raises(InvalidInput, match="or 0 for none"):
        manager.import_root("other", str(source), split=-1)


def test_a_branch_of_long_ngrams_is_pretrained_further(manager: Manager, tiny_source: Path) -> None:
    options = {**RIDGE_ONLY, "n": 5}
    run(
        manager,
        manager.import_root("tiny", str(tiny_source), texts={"text-0": text(1)}, alpha=10, options=options),
    )
    run(manager, manager.create_domain("tiny/news", text(2, 30), alpha=100))
    before = {order: set(map(tuple, own(manager, order).tolist())) for order in range(2, 6)}
    run(manager, manager.update_domain("tiny/news", text(3, 10), alpha=100, pretrain=True, options=PRETRAIN))
    for order, had in before.items():
        now = list(map(tuple, own(manager, order).tolist()))
        assert len(now) == len(set(now)), "nothing is computed twice"
        assert had < set(now), "what it covered is computed anew, and there is more"


def own(manager: Manager, order: int) -> np.ndarray:
    with manager.plots.reader(manager.plots.refs()["tiny/news"].id) as reader:
        return reader.ngrams(order)


def test_fidelity_is_measured_by_kind_and_shown(
    manager: Manager, tiny_source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = {"text-general.txt": text(1), "text-film.txt": text(2)}
    run(manager, manager.import_root("tiny", str(tiny_source), texts=texts, options=RIDGE_ONLY))
    record = manager.registry.root("tiny")
    data = ("--data", manager.settings.data)
    assert set(record.fidelity_by_kind) == {"general", "film", "short"}
    assert read_root_info(manager.settings.data / "roots" / "tiny" / record.version).fidelity_by_kind == (
        record.fidelity_by_kind
    )
    for measures in record.fidelity_by_kind.values():
        assert set(measures) == set(record.fidelity)
        assert all(np.isfinite(value) for value in measures.values())
    shown = hmi(capsys, "root", "show", "tiny", *data)
    assert "ERROR AT SPLIT" in shown
    assert f"{record.fidelity_by_kind['film']['cls_cosine']:.4g}" in shown
    assert json.loads(hmi(capsys, "root", "show", "tiny", "--json", *data))["fidelity_by_kind"] == (
        record.fidelity_by_kind
    )
    (tmp_path / "mine.txt").write_bytes(text(5, 40))
    told = hmi(capsys, "root", "measure", "tiny", tmp_path / "mine.txt", *data, code=1)
    assert "neither a folder" in told
    told = hmi(
        capsys, "root", "measure", "tiny", tmp_path / "mine.txt", "--source", tiny_source, "--json", *data
    )
    assert set(json.loads(told)) == {"mine.txt", "short"}


def test_training_goes_on_from_shipped_weights(
    manager: Manager, tiny_source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {"text-0": text(1)}
    onwards = {**RIDGE_ONLY, "start": "shipped"}

    def imported(name: str, options: dict[str, Any]) -> float:
        run(manager, manager.import_root(name, str(tiny_source), texts=texts, alpha=1, options=options))
        return manager.registry.root(name).fidelity["last_relative_error"]

    with pytest.raises(InvalidInput, match=r"no locality weights ship .*leave start=shipped out"):
        imported("none", onwards)
    first = imported("first", RIDGE_ONLY)
    file = tmp_path / "first.zst"
    export_locality(manager.registry, manager.root_files, "first", file, str(tiny_source))
    monkeypatch.setattr(import_root, "shipped_locality", lambda *_: file)
    same = imported("same", onwards)
    assert same == pytest.approx(first, abs=0.005), "packing the weights loses next to nothing"
    second = imported("second", {**onwards, "joint_steps": 10})
    assert second < same, "training together brings a root nearer to its source"


def test_too_little_text_and_impossible_lengths_are_told(manager: Manager, tiny_source: Path) -> None:
    with pytest.raises(InvalidInput, match="too few to learn locality"):
        run(
            manager,
            manager.import_root("few", str(tiny_source), texts={"text-0": text(1, 40)}, options=RIDGE_ONLY),
        )
    with pytest.raises(InvalidInput, match="n"):
        manager.import_root("six", str(tiny_source), options={"n": 6})


def test_a_full_depth_without_a_root_for_it_is_told(manager: Manager, tiny_source: Path) -> None:
    texts = {"text-0": text(1)}
    run(manager, manager.import_root("tiny", str(tiny_source), texts=texts, alpha=1, options=RIDGE_ONLY))
    manager.create_tenant("acme")
    wanted = {"domain": "tiny", "task": "embedding", "options": {"depth": "full"}}
    with pytest.raises(InvalidInput, match=r"hmi root import tiny-full .* --split 0"):
        manager.create_model("acme.vectors", **wanted)  # type: ignore[arg-type]
    run(manager, manager.import_root("tiny-full", str(tiny_source), split=0))
    job = manager.create_model("acme.vectors", **wanted)  # type: ignore[arg-type]
    assert attempt(manager, job, fine_tune.run) is not None
    record = manager.model("acme.vectors")
    assert (record.depth, record.live.domain, record.live.root) == ("full", "tiny", "tiny-full")
