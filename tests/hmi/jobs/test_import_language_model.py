"""Language models as roots, end to end: import, PLOTs of causal windows, growth, repair, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hmi.cli.framework.endings import lines
from hmi.core import JobRecord
from hmi.errors import Conflict, InvalidInput, UnsupportedModel
from hmi.jobs.root import import_language_model
from hmi.manager import Manager
from hmi.manager.roots import export_locality
from hmi.model.network.decoder import Decoder
from hmi.model.sources.generative_root import GenerativeRoot, load_generative_root
from hmi.model.sources.language_model import load_language_model
from hmi.model.sources.root import load_root, verify_root
from hmi.model.sources.source import find_source
from hmi.model.text.batching import Encoded, pad_ids
from plot_store import Hits
from tests.hmi.labs.api_world import hmi
from tests.hmi.labs.build_lab import run
from tests.hmi.model.test_decoder import gguf_of, write_language_model
from tests.tiny import random_texts


def text(seed: int, lines: int = 280) -> bytes:
    return "\n".join(random_texts(lines, seed, 5, 20)).encode()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_language_model("llama", tmp_path_factory.mktemp("source") / "tiny-llama")


@pytest.fixture(scope="module")
def decoder(source: Path) -> Decoder:
    return load_language_model(find_source(str(source))).decoder


def root_of(manager: Manager) -> GenerativeRoot:
    record = manager.registry.root("tiny")
    return load_generative_root(manager.settings.data / "roots" / "tiny" / record.version, with_lower=True)


def looked_up(manager: Manager, ref: str, texts: list[Encoded]) -> tuple[list[torch.Tensor], Hits]:
    """The rows of each text's tokens but the begin token, from a PLOT."""
    tokens, offsets = packed(texts)
    with manager.plots.reader(manager.plots.refs()[ref].id) as reader:
        rows, hits = reader.lookup(tokens, offsets)
    return list(torch.from_numpy(rows).split([len(t) - 1 for t in texts])), hits


def packed(texts: list[Encoded]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    return (
        np.array([i for t in texts for i in t.ids[1:]], np.int32),
        np.cumsum([0, *(len(t) - 1 for t in texts)], dtype=np.int64),
    )


@pytest.mark.parametrize(("split", "n"), [(2, 3), (1, 2), (3, 5)])
def test_a_plot_gives_what_the_lower_layers_compute(
    manager: Manager, source: Path, split: int, n: int
) -> None:
    job = manager.import_root(
        "tiny", str(source), split=split, texts={"text-0": text(1)}, alpha=10, options={"n": n}
    )
    run(manager, job)
    run(manager, manager.create_domain("tiny/news", text(2, 30), alpha=100))
    record = manager.registry.root("tiny")
    assert (record.n, record.split, record.generates) == (n, split, True)
    assert record.fidelity["kl"] > 0
    root = root_of(manager)
    assert root.lower is not None
    texts = root.tokenizer.encode(text(2, 30).decode().splitlines()[:6], 60)
    rows, hits = looked_up(manager, "tiny/news", texts)
    with torch.inference_mode():
        exact = root.lower(pad_ids([t.ids for t in texts]))
    longest = [min(i + 1, n) for t in texts for i in range(len(t) - 1)]
    assert hits.order.tolist() == longest, "the domain covers all of its own text"
    for got, want, t in zip(rows, exact, texts, strict=True):
        assert ((got - want[1 : len(t)]).norm() / want[1 : len(t)].norm()).item() < 0.02  # int8 rows
    # A text of which the PLOT has but a part: each token has the entry of the order that was found.
    others = root.tokenizer.encode(text(3, 8).decode().splitlines(), 60)
    rows, hits = looked_up(manager, "tiny/news", others)
    found = iter(hits.order.tolist())
    orders = pad_ids([[0, *(next(found) for _ in t.ids[1:])] for t in others])
    assert len(set(hits.order.tolist())) > 1
    with torch.inference_mode():
        exact = root.lower(pad_ids([t.ids for t in others]), orders)
    for got, want, t in zip(rows, exact, others, strict=True):
        assert ((got - want[1 : len(t)]).norm() / want[1 : len(t)].norm()).item() < 0.02


@torch.inference_mode()
def test_a_scrambled_lower_half_changes_nothing_on_covered_text(manager: Manager, source: Path) -> None:
    """N-grams that the PLOT lacks are computed here, so on other text the scrambled layers show."""
    run(manager, manager.import_root("tiny", str(source), split=2, texts={"text-0": text(1)}, alpha=10))
    run(manager, manager.create_domain("tiny/news", text(2, 30), alpha=100))
    root = root_of(manager)
    lower = root.lower
    assert lower is not None

    def answered(texts: list[Encoded]) -> tuple[int, torch.Tensor, torch.Tensor]:
        """How many n-grams are missing; all rows but the begin tokens'; the scores after each token."""
        found, hits = looked_up(manager, "tiny/news", texts)
        longest = np.array([min(i + 1, 3) for t in texts for i in range(len(t) - 1)])
        lacks = torch.from_numpy(hits.order < longest)[:, None]
        rows = torch.where(lacks, computed(texts), torch.cat(found))
        each = rows.split([len(t) - 1 for t in texts])
        states = [root.upper(torch.cat([root.upper.first[None], own])[None])[0] for own in each]
        return int(lacks.sum()), rows, root.upper.logits(torch.cat(states))[:, 1:]

    def computed(texts: list[Encoded]) -> torch.Tensor:
        rows = lower(pad_ids([t.ids for t in texts]))
        return torch.cat([row[1 : len(t)] for row, t in zip(rows, texts, strict=True)])

    covered, others = (root.tokenizer.encode(text(i, 30).decode().splitlines(), 60) for i in (2, 3))
    before = *answered(covered), *answered(others), computed(covered)
    for weights in lower.parameters():
        weights.copy_(torch.randn_like(weights))
    after = *answered(covered), *answered(others), computed(covered)
    assert (before[0], after[0]) == (0, 0), "the domain covers all of its own text"
    assert before[3] == after[3] > 0
    for i in (1, 2):
        assert torch.equal(before[i], after[i])
    for i in (4, 5, 6):
        assert ((after[i] - before[i]).norm() / before[i].norm()).item() > 0.5


def test_a_root_that_looks_up_words_alone_is_its_source(
    manager: Manager, source: Path, decoder: Decoder
) -> None:
    run(manager, manager.import_root("tiny", str(source), texts={"text-0": text(1)}))
    record = manager.registry.root("tiny")
    assert (record.n, record.split) == (1, 0)
    assert record.fidelity["perplexity_ratio"] == 1.0
    root = root_of(manager)
    (one,) = root.tokenizer.encode(["good film, the bad plot rises"], 60)
    (rows,), _ = looked_up(manager, "tiny", [one])
    with torch.inference_mode():
        got = root.upper.logits(root.upper(torch.cat([root.upper.first[None], rows])[None]))
        want = decoder.logits(decoder(torch.tensor([one.ids])))
    torch.testing.assert_close(got, want, atol=0.02, rtol=0.02)  # words are stored in fp16
    said = json.loads((manager.settings.data / "roots" / "tiny" / record.version / "root.json").read_text())
    assert said["format"] == 5
    assert "generates" not in record.model_copy(update={"generates": False}).model_dump_json()
    assert '"generates":true' in record.model_dump_json()


def test_growth_by_misses_and_an_archive(manager: Manager, source: Path, tmp_path: Path) -> None:
    def next_of(target: str, job: JobRecord) -> str:
        view = {"kind": job.kind, "target": target, "job": job.job, "result": run(manager, job)}
        return lines(view)[-1]

    of_root = manager.import_root("tiny", str(source), split=2, texts={"text-0": text(1)}, alpha=10)
    assert "--domain tiny --task generation works, too" in next_of("tiny", of_root)
    said = next_of("tiny/news", manager.create_domain("tiny/news", text(2, 30), alpha=100))
    assert said == "next: hmi model create TENANT.MODEL ROWS --domain tiny/news --task generation"
    root = root_of(manager)
    assert root.lower is not None
    texts = root.tokenizer.encode(text(4, 20).decode().splitlines() * 6, 60)
    manager.misses.start()
    manager.set_domain("tiny/news", record_misses=True)
    before, hits = manager.plots.version("tiny/news"), looked_up(manager, "tiny/news", texts)[1]
    manager.misses.record(before, *packed(texts), hits)
    longest = np.array([min(i + 1, 3) for t in texts for i in range(len(t) - 1)])
    assert (hits.order < longest).any()
    result = run(manager, manager.grow_domain("tiny/news"))
    grown = manager.plots.version("tiny/news")
    assert grown.schema.window == "causal"
    assert result["stored_trigrams"] == grown.entries[3] - before.entries[3] > 0
    rows, hits = looked_up(manager, "tiny/news", texts[:20])
    late = longest[: len(hits.order)] == 3
    assert (hits.order[late] == 3).all()
    orders = iter(hits.order.tolist())
    with torch.inference_mode():
        for got, t in zip(rows, texts, strict=False):
            want = root.lower(torch.tensor([t.ids]), torch.tensor([[0, *(next(orders) for _ in t.ids[1:])]]))
            assert ((got - want[0, 1:]).norm() / got.norm()).item() < 0.02
    archive = tmp_path / "news.hmiplot"
    manager.export_domain("tiny/news", archive, lambda done, total: None)
    copy, _ = manager.import_domain(archive, "tiny/copy", lambda done, total: None)
    assert copy.entries == grown.entries
    again, _ = looked_up(manager, "tiny/copy", texts[:20])
    assert all(torch.equal(a, b) for a, b in zip(rows, again, strict=True))


def test_a_gguf_file_is_imported_and_repaired(manager: Manager, source: Path, tmp_path: Path) -> None:
    path = gguf_of(source, tmp_path / "tiny.gguf", "llama")
    given = {"split": 1, "texts": {"text-0": text(1)}, "alpha": 10.0}
    run(manager, manager.import_root("tiny", str(path), **given))
    record = manager.registry.root("tiny")
    folder = manager.settings.data / "roots" / "tiny" / record.version
    whole = {p.name: p.read_bytes() for p in folder.iterdir()}
    for name in whole:
        (folder / name).write_bytes(b"{}")
        assert verify_root(folder)
        run(manager, manager.import_root("tiny", str(path), texts={"text-0": text(1)}, alpha=10.0))
        assert not verify_root(folder)
        for file in folder.iterdir():
            same = file.read_bytes() == whole[file.name]
            assert same or json.loads(file.read_text()) == json.loads(whole[file.name]), (name, file.name)


def test_a_gguf_file_of_another_architecture_starts_no_job(manager: Manager, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf", reason="the [gguf] extra is not installed")
    writer = gguf.GGUFWriter(str(tmp_path / "gpt2.gguf"), "gpt2")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(UnsupportedModel, match="its architecture is 'gpt2'"):
        manager.import_root("tiny", str(tmp_path / "gpt2.gguf"), texts={"text-0": text(1)})
    assert manager.registry.jobs() == []


def test_layers_are_trained_together_and_on_from_there(
    manager: Manager, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {"text-0": text(1)}
    onwards = {"start": "shipped", "joint_steps": 1}
    given = {"split": 2, "texts": texts, "alpha": 0.0}
    with pytest.raises(InvalidInput, match=r"no locality weights ship .*leave start=shipped out"):
        run(manager, manager.import_root("bad", str(source), **given, options=onwards))
    run(manager, manager.import_root("fitted", str(source), **given))
    run(manager, manager.import_root("tiny", str(source), **given, options={"joint_steps": 40}))
    fitted, trained = (manager.registry.root(name) for name in ("fitted", "tiny"))
    assert trained.fidelity["kl"] < fitted.fidelity["kl"]
    file = tmp_path / "x.locality.zst"
    name, size = export_locality(manager.registry, manager.root_files, "tiny", file, str(source))
    assert (name.endswith("-split2.locality.zst"), size) == (True, file.stat().st_size)
    monkeypatch.setattr(import_language_model, "shipped_locality", lambda *_: file)
    run(manager, manager.import_root("shipped", str(source), **given))
    shipped = manager.registry.root("shipped")
    assert shipped.fidelity["kl"] == pytest.approx(trained.fidelity["kl"], rel=0.05)
    run(manager, manager.import_root("on", str(source), **given, options=onwards))
    assert manager.registry.root("on").fidelity["kl"] != shipped.fidelity["kl"]
    with pytest.raises(InvalidInput, match=r"nothing is trained: give distil=true"):
        run(manager, manager.import_root("no", str(source), **given, options={"joint_steps": 1}))
    run(manager, manager.import_root("bare", str(source), split=2))
    bare = manager.registry.root("bare")
    assert bare.fidelity == trained.fidelity, "as the weights' file says"
    assert bare.fidelity_by_kind == trained.fidelity_by_kind != {}
    # A damaged root is repaired without its split, but with the options that decide its bits.
    monkeypatch.undo()
    folder = manager.settings.data / "roots" / "tiny" / trained.version
    (folder / "upper.safetensors").write_bytes(b"")
    again = manager.import_root("tiny", str(source), texts=texts, alpha=0.0, options={"joint_steps": 40})
    run(manager, again)
    assert not verify_root(folder)


def test_a_source_whose_states_are_not_finite_makes_no_root(manager: Manager, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = write_language_model("llama", tmp_path / "llama")
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.3.mlp.down_proj.weight"] *= float("nan")
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(UnsupportedModel, match="not finite"):
        run(manager, manager.import_root("tiny", str(folder), texts={"text-0": text(1)}))
    assert manager.registry.roots() == []


def test_what_a_language_model_cannot_do_yet_is_said(
    manager: Manager, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for options, split, field in (({"steps": 1}, 2, "steps"), ({"n": 3}, None, "n"), ({"n": 3}, 0, "n")):
        with pytest.raises(InvalidInput, match=rf"options\.{field} is of no use"):
            manager.import_root("tiny", str(source), split=split, options=options)
    run(manager, manager.import_root("tiny", str(source), texts={"text-0": text(1)}))
    run(manager, manager.create_domain("tiny/news", text(2, 30)))
    manager.create_tenant("acme")
    data = manager.settings.data
    rows = data / "rows.jsonl"
    rows.write_text("\n".join(json.dumps({"text": f"good {i}", "label": "ab"[i % 2]}) for i in range(60)))
    with pytest.raises(InvalidInput, match="language model"):
        manager.create_model("acme.intent", domain="tiny/news", task="classification", data=rows)
    with pytest.raises(InvalidInput, match=r"pretrain"):
        manager.create_domain("tiny/other", text(2, 30), pretrain=True)
    with pytest.raises(Conflict, match="no shards"):
        manager.root_shards.make("tiny")
    record = manager.registry.root("tiny")
    with pytest.raises(UnsupportedModel, match="language model"):
        load_root(data / "roots" / "tiny" / record.version)
    with pytest.raises(Conflict, match="no locality weights"):
        export_locality(manager.registry, manager.root_files, "tiny", data / "x", None)
    shown = hmi(capsys, "root", "show", "tiny", "--data", data)
    assert "PERPLEXITY / SOURCE'S" in shown
    (data / "held.txt").write_bytes(text(5, 20))
    asked = ("root", "measure", "tiny", data / "held.txt", "--source", source, "--json", "--data", data)
    measured = json.loads(hmi(capsys, *asked))
    assert measured["held.txt"]["perplexity_ratio"] == 1.0
