"""The encoder against BERT of transformers: the same weights give the same hidden states."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hmi.errors import UnsupportedModel
from hmi.model.network.encoder import Encoder
from hmi.model.sources.source import find_source, load_encoder
from hmi.model.text.batching import pad_ids
from tests.tiny import write_tiny_source


def test_hidden_states_equal_transformers(tiny_source: Path, teacher: Encoder) -> None:
    transformers = pytest.importorskip("transformers", reason="the [adapters] extra is not installed")
    theirs = transformers.BertModel.from_pretrained(tiny_source, add_pooling_layer=False).eval()
    ids = pad_ids([[2, 7, 9, 11, 3], [2, 20, 3]])
    types = torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 0, 0]])
    mask = ids > 0
    with torch.no_grad():
        want = theirs(
            ids, attention_mask=mask.long(), token_type_ids=types, output_hidden_states=True
        ).hidden_states
        for layer in (1, 2, 4):
            got = teacher(ids, mask, types, upto=layer)
            torch.testing.assert_close(got[mask], want[layer][mask], atol=1e-5, rtol=1e-5)


def test_a_folder_with_a_pickle_only_is_refused(tmp_path: Path) -> None:
    folder = write_tiny_source(tmp_path / "m")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UnsupportedModel, match="pickle"):
        find_source(str(folder))


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    folder = write_tiny_source(tmp_path / "m")
    (folder / "model.safetensors").unlink()
    with pytest.raises(UnsupportedModel, match=r"no model\.safetensors"):
        find_source(str(folder))


def test_weights_that_break_off_are_refused(tmp_path: Path) -> None:
    folder = write_tiny_source(tmp_path / "m")
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])
    with pytest.raises(UnsupportedModel, match="does not hold the weights"):
        load_encoder(folder)


def test_another_architecture_is_refused_by_name(tmp_path: Path) -> None:
    folder = write_tiny_source(tmp_path / "m")
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text.replace('"bert"', '"electra"'))
    with pytest.raises(UnsupportedModel, match="model_type = 'electra'"):
        find_source(str(folder))


def test_an_unknown_source_says_what_was_tried() -> None:
    with pytest.raises(UnsupportedModel, match="neither a folder, an installed package"):
        find_source("no-such-package-anywhere")
