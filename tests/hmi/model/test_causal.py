"""The lower layers of a language model on single n-grams, against the whole model."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from hmi.errors import Damaged
from hmi.model.network.decoder import Decoder
from hmi.model.sources.causal import CausalLower
from hmi.model.sources.generative_root import UpperDecoder, split_decoder
from hmi.model.sources.language_model import load_language_model
from hmi.model.sources.locality import apply_locality, save_locality
from hmi.model.sources.source import find_source
from hmi.model.text.batching import Encoded
from hmi.training.root import causal_joint
from hmi.training.root.causal import fit_folds, measure_causal
from hmi.training.root.causal_joint import CausalJointPlan, train_causal_jointly
from tests.hmi.model.test_decoder import KINDS, write_language_model
from tests.tiny import random_texts

BEGIN = 2


@pytest.fixture(scope="module", params=KINDS)
def decoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    folder = write_language_model(request.param, tmp_path_factory.mktemp("source") / request.param)
    return load_language_model(find_source(str(folder))).decoder


def changed(lower: CausalLower) -> CausalLower:
    """The same with a random matrix and bias for each order."""
    torch.manual_seed(1)
    with torch.no_grad():
        lower.fold.add_(0.1 * torch.randn_like(lower.fold))
        lower.shift.add_(torch.randn_like(lower.shift))
    return lower


def ids_of(decoder: Decoder, texts: int, length: int) -> torch.Tensor:
    made = torch.randint(4, decoder.shape.vocab, (texts, length), generator=torch.Generator().manual_seed(3))
    made[:, 0] = BEGIN
    return made


@pytest.mark.parametrize(("depth", "n"), [(0, 1), (1, 2), (2, 3), (3, 5)])
def test_an_entry_is_the_state_of_the_last_token(decoder: Decoder, depth: int, n: int) -> None:
    lower = changed(split_decoder(decoder, depth, BEGIN, n)[0])
    with torch.inference_mode():
        for order in range(1, n + 1):
            ngrams = ids_of(decoder, 7, order + 1)[:, 1:]
            got = lower.ngram_entries(ngrams)
            assert got.shape == (7, 1, decoder.shape.dim)
            for ngram, entry in zip(ngrams, got, strict=True):
                state = decoder(torch.tensor([[BEGIN, *ngram.tolist()]]), upto=depth)[0, -1]
                want = state @ lower.fold[order - 1] + lower.shift[order - 1]
                torch.testing.assert_close(entry[0], want, atol=1e-5, rtol=1e-5)
        begin = decoder(torch.tensor([[BEGIN]]), upto=depth)[0, 0]
        torch.testing.assert_close(lower.first_row(), begin, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("n", [2, 3, 5])
def test_a_row_depends_on_its_window_alone(decoder: Decoder, n: int) -> None:
    lower = changed(split_decoder(decoder, 2, BEGIN, n)[0])
    ids = ids_of(decoder, 1, 12)
    with torch.inference_mode():
        rows = lower(ids)[0]
        for at in range(1, 12):
            other = ids.clone()
            other[0, at] = 5 if ids[0, at] != 5 else 6
            same = ((lower(other)[0] - rows).abs().amax(-1) < 1e-4).tolist()
            assert same == [not at <= i < at + n for i in range(12)]
        alone = torch.cat([lower(ids[:, :length])[0, -1:] for length in range(1, 13)])
        torch.testing.assert_close(rows, alone, atol=1e-4, rtol=1e-4)


def test_rows_of_chosen_orders_and_of_padding(decoder: Decoder) -> None:
    lower = changed(split_decoder(decoder, 2, BEGIN, 3)[0])
    ids = ids_of(decoder, 4, 9)
    ids[1, 5:] = 0
    orders = torch.randint(1, 6, ids.shape, generator=torch.Generator().manual_seed(5))
    with torch.inference_mode():
        rows = lower(ids, orders)
        for text in range(4):
            for at in range(9):
                order = min(int(orders[text, at]), 3, at)
                if not ids[text, at]:
                    want = torch.zeros(decoder.shape.dim)
                elif at == 0:
                    want = lower.first_row()
                else:
                    want = lower.ngram_entries(ids[text, at - order + 1 : at + 1][None])[0, 0]
                torch.testing.assert_close(rows[text, at], want, atol=1e-4, rtol=1e-4)


def parts_of(decoder: Decoder, split: int, n: int) -> tuple[CausalLower, UpperDecoder]:
    return split_decoder(decoder, split, BEGIN, n)


def test_no_layer_looked_up_is_the_whole_model(decoder: Decoder) -> None:
    lower, upper = parts_of(decoder, 0, 1)
    ids = ids_of(decoder, 3, 10)
    with torch.inference_mode():
        assert torch.equal(upper.logits(upper(lower(ids))), decoder.logits(decoder(ids)))


def test_fitting_lessens_the_error(decoder: Decoder, tmp_path: Path) -> None:
    source = find_source(str(write_language_model(decoder.shape.kind, tmp_path / "source")))
    tokenizer = load_language_model(source).tokenizer
    texts = tokenizer.encode(random_texts(300, 1, 8, 20), 64)
    errors = []
    for n in (2, 3):
        lower, upper = parts_of(decoder, 2, n)
        plain = measure_causal(lower, upper, decoder, texts[:40], lower.n)
        fit_folds(lower, decoder, texts[40:], lambda done, total: None)
        fitted = measure_causal(lower, upper, decoder, texts[:40], lower.n)
        assert fitted["split_relative_error"] < plain["split_relative_error"]
        assert fitted["source_perplexity"] == plain["source_perplexity"]
        errors.append(fitted["split_relative_error"])
    assert errors[1] < errors[0]


def test_all_layers_are_trained_by_differences_that_are_stored_small(
    decoder: Decoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(causal_joint, "RANK", 2)
    source = find_source(str(write_language_model(decoder.shape.kind, tmp_path / "source")))
    texts = load_language_model(source).tokenizer.encode(random_texts(300, 1, 8, 20), 64)
    parts, start = parts_of(decoder, 2, 3), parts_of(decoder, 2, 3)

    def kl(some: tuple[CausalLower, UpperDecoder]) -> float:
        return measure_causal(some[0], some[1], decoder, texts[:40], 3)["kl"]

    fit_folds(parts[0], decoder, texts[40:], lambda done, total: None)
    fitted = kl(parts)
    plan = CausalJointPlan(60, tokens=256, lr=1e-2)
    train_causal_jointly(parts, decoder, texts[40:], plan, lambda step, total, loss: None)
    trained = kl(parts)
    assert trained < 0.9 * fitted
    assert torch.equal(parts[1].first, parts[0].first_row())
    assert not any(p.requires_grad for part in parts for p in part.parameters())
    before = dict(start[1].named_parameters())
    for name, value in parts[1].named_parameters():
        if name.split(".")[-2:][0] in causal_joint.MATRICES and value.dim() == 2:
            assert torch.linalg.matrix_rank(value - before[name], rtol=1e-3) == 2
        elif name != "first":
            assert torch.equal(value, before[name]), name
    path = tmp_path / "x.locality.zst"
    save_locality(path, parts, start, {"source_sha256": "x", "split": 2}, 2)
    again = parts_of(decoder, 2, 3)
    assert apply_locality(path, again)["split"] == 2
    assert kl(again) == pytest.approx(trained, rel=0.02)
    assert torch.equal(again[1].first, again[0].first_row())
    with pytest.raises(Damaged, match="do not fit"):
        apply_locality(path, parts_of(decoder, 1, 2))
    with torch.no_grad():
        parts[1].norm.weight[0] = float("nan")
    save_locality(path, parts, start, {"source_sha256": "x", "split": 2}, 2)
    with pytest.raises(Damaged, match=r"upper\.norm\.weight has numbers that are not finite"):
        apply_locality(path, parts_of(decoder, 2, 3))


def test_a_step_depends_on_its_seed_alone(decoder: Decoder, tmp_path: Path) -> None:
    source = find_source(str(write_language_model(decoder.shape.kind, tmp_path / "source")))
    encoded = load_language_model(source).tokenizer.encode(random_texts(50, 1, 3, 20), 64)
    texts = causal_joint.known_to_others(encoded, 3)
    complete = 0
    for step in range(20):
        ids, orders = causal_joint.drawn(texts, 200, (0, step))
        again, same = causal_joint.drawn(texts, 200, (0, step))
        assert torch.equal(ids, again)
        assert 100 <= int((ids > 0).sum()) < 400
        if orders is None:
            complete += 1
            assert same is None
        else:
            assert same is not None
            assert torch.equal(orders, same)
            assert torch.equal(orders > 0, ids > 0)
    assert 3 < complete < 17


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_what_a_text_shares_with_others(n: int) -> None:
    draw = random.Random(1)
    texts = [[BEGIN, *draw.choices((4, 5, 6, 70_000), k=draw.randrange(12))] for _ in range(30)]
    texts += [[BEGIN], [BEGIN, 9, 9, 9, 9, 9]]  # what a text repeats is not known to others
    found = causal_joint.known_to_others([Encoded(ids, [], []) for ids in texts], n)
    windows = [
        {tuple(ids[i : i + order]) for order in range(1, n + 1) for i in range(1, len(ids) - order + 1)}
        for ids in texts
    ]
    seen = set()
    for number, (ids, known) in enumerate(zip(texts, found, strict=True)):
        others = set[tuple[int, ...]]().union(*windows[:number], *windows[number + 1 :])
        want = [
            max([1, *(o for o in range(2, min(n, at) + 1) if tuple(ids[at - o + 1 : at + 1]) in others)])
            for at in range(len(ids))
        ]
        assert (known.ids, known.orders) == (ids, want)
        seen |= set(want)
    assert seen == set(range(1, n + 1))
