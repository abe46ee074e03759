"""MPNet as a root: the encoder against transformers, packed against padded, windows, ids, and an import."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hmi.core import ModuleSpec
from hmi.errors import UnsupportedModel
from hmi.execution.packed import PackedExecutor, run_classified, run_rows
from hmi.model.network.encoder import Encoder, attend_padded
from hmi.model.network.relative import bucket_of, relative_bias
from hmi.model.sources.lower import POSITION_BASE, LocalLower
from hmi.model.sources.root import Root, RootInfo, load_root, save_root, split_encoder
from hmi.model.sources.source import find_source, load_encoder
from hmi.model.text.batching import pad_ids, pad_rows
from hmi.model.text.tokenizer import Tokenizer
from hmi.training.root.distillation import (
    DistilPlan,
    distil_lower,
    fit_ridge,
    init_slots,
    make_batch,
    sample_batches,
)
from hmi.training.root.fidelity import measure_fidelity
from tests.modules import random_module
from tests.tiny import random_texts, write_tiny_mpnet

SPLIT = 2


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_mpnet(tmp_path_factory.mktemp("source") / "tiny-mpnet")


@pytest.fixture(scope="module")
def mpnet(source: Path) -> Encoder:
    return load_encoder(source)


@pytest.fixture(scope="module")
def tokenizer(source: Path) -> Tokenizer:
    return Tokenizer(source / "tokenizer.json")


@pytest.fixture
def lower(mpnet: Encoder, tokenizer: Tokenizer) -> LocalLower:
    lower, _, _ = split_encoder(mpnet, SPLIT, tokenizer.cls_id)
    g = torch.Generator().manual_seed(1)
    assert lower.slot_bias is not None
    with torch.no_grad():
        for p in (lower.slot_keys, lower.slot_values, lower.slot_bias):
            p.copy_(torch.randn(p.shape, generator=g) * 0.3)
    return lower.eval().requires_grad_(False)


def theirs_of(ids: Tensor) -> Tensor:
    """Our ids as the source has them: padding 1 and <s> 0, which HMI swaps."""
    return torch.where(ids > 1, ids, 1 - ids)


def test_hidden_states_equal_transformers(source: Path, mpnet: Encoder, tokenizer: Tokenizer) -> None:
    transformers = pytest.importorskip("transformers", reason="the [adapters] extra is not installed")
    theirs = transformers.MPNetModel.from_pretrained(source, add_pooling_layer=False).eval()
    texts = tokenizer.encode([" ".join(random_texts(4, 1, 18, 20))[:400], "good film", "bad"], 60)
    assert len(texts[0]) > 40, "far enough for the logarithmic buckets"
    ids = pad_ids([text.ids for text in texts])
    mask = ids > 0
    with torch.no_grad():
        want = theirs(theirs_of(ids), attention_mask=mask.long(), output_hidden_states=True).hidden_states
        for layer in range(5):
            torch.testing.assert_close(
                mpnet(ids, mask, upto=layer)[mask], want[layer][mask], atol=1e-5, rtol=1e-5
            )


def test_buckets_equal_transformers() -> None:
    modeling = pytest.importorskip(
        "transformers.models.mpnet.modeling_mpnet", reason="transformers is not installed"
    )
    distances = torch.arange(-600, 601)
    for buckets in (32, 16):
        want = modeling.MPNetEncoder.relative_position_bucket(distances, buckets)
        assert torch.equal(bucket_of(distances, buckets), want)


@pytest.mark.parametrize("queries", [None, 1, 3])
def test_relative_bias_is_the_bucket_of_each_distance(queries: int | None) -> None:
    table = torch.randn(8, 3)
    got = relative_bias(table, 7, queries)
    assert got.shape == (3, queries or 7, 7)
    for i in range(queries or 7):
        for j in range(7):
            assert torch.equal(got[:, i, j], table[bucket_of(torch.tensor(j - i), 8)])


def test_padding_is_zero_and_pairs_have_two_types(tokenizer: Tokenizer) -> None:
    text, pair = tokenizer.encode(["good film", ("good film", "bad")], 20)
    assert (tokenizer.pad_id, tokenizer.cls_id) == (1, 1)
    assert text.ids[0] == tokenizer.cls_id
    assert text.ids[-1] == tokenizer.sep_id
    assert 0 not in text.ids
    assert pair.types == [0, 0, 0, 0, 0, 1, 1]
    cut = tokenizer.encode([("good film " * 9, "bad plot " * 9)], 12)[0]
    assert [len(cut), cut.ids.count(tokenizer.sep_id), cut.types.count(1)] == [12, 3, 5]


def test_a_config_and_a_tokenizer_of_other_padding_are_told(source: Path, tmp_path: Path) -> None:
    folder = write_tiny_mpnet(tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "hidden_act": "relu"}))
    with pytest.raises(UnsupportedModel, match="hidden_act = 'relu'"):
        find_source(str(folder))


def slow_entry(lower: LocalLower, window: list[int]) -> Tensor:
    """One window in fp64, query by query and head by head: the oracle."""
    e, heads, size = lower.embeddings, lower.shape.heads, lower.shape.dim // lower.shape.heads
    at = [i for i, token in enumerate(window) if token > 0]
    place = [0 if window[i] == lower.cls_id else POSITION_BASE + i for i in at]
    rows = [
        e.word.weight[window[i]].double() + e.position.weight[p].double()
        for i, p in zip(at, place, strict=True)
    ]
    x = F.layer_norm(
        torch.stack(rows), (lower.shape.dim,), e.ln.weight.double(), e.ln.bias.double(), lower.shape.eps
    )
    assert lower.slot_bias is not None
    for index, layer in enumerate(lower.layers):
        w = {k: v.double() for k, v in layer.state_dict().items()}
        q, k, v = (x @ w["qkv.weight"].T + w["qkv.bias"]).chunk(3, dim=-1)
        k, v = (
            torch.cat([k, lower.slot_keys[index].double()]),
            torch.cat([v, lower.slot_values[index].double()]),
        )
        context = torch.zeros_like(q)
        for row, i in enumerate(at):
            for h in range(heads):
                s = slice(h * size, (h + 1) * size)
                near = [w["relative"][bucket_of(torch.tensor(j - i), lower.shape.buckets), h] for j in at]
                bias = torch.stack([*near, *lower.slot_bias[index, :, h].double()])
                context[row, s] = torch.softmax(k[:, s] @ q[row, s] / size**0.5 + bias, 0) @ v[:, s]
        a = context @ w["o.weight"].T + w["o.bias"] + x
        y = F.layer_norm(a, (lower.shape.dim,), w["ln1.weight"], w["ln1.bias"], lower.shape.eps)
        f = F.gelu(y @ w["fi.weight"].T + w["fi.bias"]) @ w["fo.weight"].T + w["fo.bias"] + y
        x = F.layer_norm(f, (lower.shape.dim,), w["ln2.weight"], w["ln2.bias"], lower.shape.eps)
    out = torch.zeros(lower.n, lower.shape.dim, dtype=torch.float64)
    for row, i in enumerate(at):
        out[i] = x[row] @ lower.fold[i].double()
    return out


@pytest.mark.parametrize("window", [[7, 8, 9], [0, 1, 7], [1, 7, 8], [8, 2, 0], [0, 9, 0], [9, 0, 0]])
def test_an_entry_has_exact_relative_attention(lower: LocalLower, window: list[int]) -> None:
    got = lower.entries(torch.tensor([window]))[0]
    torch.testing.assert_close(got.double(), slow_entry(lower, window), atol=1e-5, rtol=1e-4)


def test_a_shorter_ngram_is_a_window_with_missing_neighbours(lower: LocalLower) -> None:
    got = lower.ngram_entries(torch.tensor([[7, 8]]))[0].double()
    left, right = slow_entry(lower, [7, 8, 0]), slow_entry(lower, [0, 7, 8])
    torch.testing.assert_close(got, torch.stack([left[0], left[1], right[1], right[2]]), atol=1e-5, rtol=0)


@pytest.mark.parametrize("cls_only", [True, False])
def test_packed_equals_padded_alone(mpnet: Encoder, cls_only: bool) -> None:
    upper, heads = mpnet.layers[SPLIT:], mpnet.shape.heads
    modules = [None, *(random_module(ModuleSpec(rank=3), mpnet.shape, len(upper), seed) for seed in (1, 2))]
    rng, g = random.Random(0), torch.Generator().manual_seed(0)
    lengths = [1, 30, 2, 12, 45, 7, 30]
    chosen = [rng.choice(modules) for _ in lengths]
    texts = [torch.randn(n, mpnet.shape.dim, generator=g) for n in lengths]
    offsets = [0, *torch.tensor(lengths).cumsum(0).tolist()]
    run = run_classified if cls_only else run_rows
    got = run(PackedExecutor(upper, mpnet.shape), torch.cat(texts), offsets, chosen)
    for i, (text, module) in enumerate(zip(texts, chosen, strict=True)):
        rows, mask = pad_rows([text])
        before = rows
        for j, layer in enumerate(upper):
            before = rows
            attend = attend_padded(mask, heads)
            rows = layer(rows, attend) if module is None else layer(rows, attend, module.delta(j))
        want = torch.cat([rows[0, 0], before[0].mean(0)]) if cls_only else rows[0]
        mine = got[i] if cls_only else got[offsets[i] : offsets[i + 1]]
        torch.testing.assert_close(mine, want, atol=1e-5, rtol=1e-5)


def test_first_rows_alone_equal_all_rows(mpnet: Encoder) -> None:
    """Training of a classifier computes only one query a text in the last layer."""
    x, mask = pad_rows([torch.randn(9, mpnet.shape.dim), torch.randn(4, mpnet.shape.dim)])
    attend, layer = attend_padded(mask, mpnet.shape.heads), mpnet.layers[-1]
    first = layer(x, attend, queries=lambda rows: rows[:, :1])
    torch.testing.assert_close(first[:, 0], layer(x, attend)[:, 0], atol=1e-5, rtol=1e-5)


def test_locality_is_learnt_and_stored(
    source: Path, mpnet: Encoder, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    texts = tokenizer.encode(random_texts(300), 60)
    held_out = [make_batch(tokenizer.encode(random_texts(40, seed=9), 60))]
    lower, upper, bias = split_encoder(mpnet, SPLIT, tokenizer.cls_id)
    batches = sample_batches(texts, 256, random.Random(0))
    warm = [next(batches) for _ in range(8)]

    def error() -> float:
        return measure_fidelity(lower, bias, upper, mpnet, held_out)["split_relative_error"]

    init_slots(lower, mpnet, warm[0])
    assert lower.slot_bias is not None
    assert lower.slot_bias.abs().min() > 0
    errors = [error()]
    fit_ridge(lower, bias, mpnet, warm, 0.03)
    errors.append(error())
    distil_lower(
        lower, bias, mpnet, texts, DistilPlan(steps=40, tokens_per_step=128, lr=1e-3), lambda *_: None
    )
    errors.append(error())
    assert errors[0] > errors[1] > errors[2], errors
    info = RootInfo(
        name="m",
        version="v1",
        source={"sha256": ""},
        shape=mpnet.shape,
        split=SPLIT,
        created="",
        fidelity_by_kind={"short": {"cls_cosine": 0.5}},
    )
    save_root(tmp_path / "v1", Root(info, upper, bias, tokenizer, lower), source / "tokenizer.json")
    again = load_root(tmp_path / "v1", with_lower=True)
    assert again.info.shape == mpnet.shape
    assert again.info.fidelity_by_kind == info.fidelity_by_kind
    assert again.lower is not None
    ids = pad_ids([text.ids for text in texts[:3]])
    assert torch.equal(again.lower(ids), lower(ids))
