"""Modules and heads against the `adapters` library: the same weights give the same hidden states."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save, save_file
from torch import Tensor

from hmi.core import ModuleSpec
from hmi.execution.packed import PackedExecutor, run_rows
from hmi.model.network.encoder import Encoder
from hmi.model.sources.root import Root
from hmi.model.tenant.heads import head_input
from hmi.model.tenant.interchange import EquivalentModule, read_adapter_config, write_adapter_config
from hmi.model.tenant.interchange_tensors import (
    HeadTwin,
    read_head,
    read_module,
    read_safetensors,
    write_head,
    write_module,
)
from hmi.model.tenant.modules import module_from, new_module

adapters = pytest.importorskip("adapters", reason="the oracle needs the extra `adapters`")
transformers = pytest.importorskip("transformers", reason="the oracle needs the extra `adapters`")

IDS = torch.tensor([[2, 9, 12, 30, 7, 8, 21, 3]])
LOWER = [0, 1]
SPLIT = 2

CONFIGS: dict[str, tuple[str, dict[str, Any], ModuleSpec]] = {
    "lora": (
        "LoRAConfig",
        {
            "r": 4,
            "alpha": 20,
            "attn_matrices": ["v", "q", "k"],
            "intermediate_lora": True,
            "output_lora": True,
        },
        ModuleSpec(rank=4, sites=("q", "k", "v", "fi", "fo")),
    ),
    "lora-qv": ("LoRAConfig", {}, ModuleSpec(rank=8, sites=("q", "v"))),
    "lora-ffn": (
        "LoRAConfig",
        {"selfattn_lora": False, "output_lora": True},
        ModuleSpec(rank=8, sites=("fo",)),
    ),
    "parallel": ("ParBnConfig", {"mh_adapter": True}, ModuleSpec(kind="parallel", rank=16)),
    "parallel-ffn": ("ParBnConfig", {}, ModuleSpec(kind="parallel", rank=16, sites=("ffn",))),
    "sequential": ("SeqBnConfig", {"scaling": 0.5}, ModuleSpec(kind="sequential", rank=2)),
    "houlsby": ("DoubleSeqBnConfig", {"reduction_factor": 5}, ModuleSpec(kind="houlsby", rank=6)),
}


@pytest.fixture
def bert(tiny_source: Path) -> Any:
    """BERT of `adapters` with the weights of the tiny source."""
    config = transformers.BertConfig(**json.loads((tiny_source / "config.json").read_text()))
    model = adapters.BertAdapterModel(config)
    found = model.bert.load_state_dict(load_file(tiny_source / "model.safetensors"), strict=False)
    assert {n.split(".")[0] for n in found.missing_keys} <= {"pooler", "prompt_tuning"}, found
    return model.eval()


def add(bert: Any, name: str, *, randomly: bool = True) -> None:
    kind, changes, _ = CONFIGS[name]
    bert.add_adapter(name, config=getattr(adapters, kind)(leave_out=LOWER, **changes))
    bert.set_active_adapters(name)
    if randomly:
        g = torch.Generator().manual_seed(len(name))
        with torch.no_grad():
            for path, p in bert.named_parameters():
                if f".{name}." in path:
                    p.copy_(torch.randn(p.shape, generator=g) * 0.2)
    bert.eval()


def theirs(bert: Any) -> Tensor:
    with torch.inference_mode():
        out: Tensor = bert.bert(IDS).last_hidden_state[0]
    return out


def ours(root: Root, teacher: Encoder, state: dict[str, Tensor] | None) -> Tensor:
    """The source's lower layers, then the upper layers with a module rebuilt from its
    tensors, packed as in serving."""
    with torch.inference_mode():
        x = teacher(IDS, torch.ones_like(IDS, dtype=torch.bool), upto=SPLIT)[0]
    module = None if state is None else module_from(state)
    return run_rows(PackedExecutor(root.upper, root.info.shape), x, [0, len(x)], [module])


def read_folder(folder: Path, root: Root) -> tuple[EquivalentModule, dict[str, Tensor]]:
    twin = read_adapter_config((folder / "adapter_config.json").read_bytes(), root.info.shape, SPLIT)
    tensors = read_safetensors((folder / "adapter.safetensors").read_bytes(), "adapter.safetensors")
    return twin, read_module(twin, tensors, root.info.shape, SPLIT)


@pytest.mark.parametrize("name", CONFIGS)
def test_an_imported_adapter_gives_the_same_states(
    bert: Any, tiny_root: Root, teacher: Encoder, tmp_path: Path, name: str
) -> None:
    add(bert, name)
    bert.save_adapter(str(tmp_path), name, use_safetensors=True)
    twin, state = read_folder(tmp_path, tiny_root)
    assert twin.spec == CONFIGS[name][2]
    torch.testing.assert_close(ours(tiny_root, teacher, state), theirs(bert), atol=1e-4, rtol=1e-4)
    assert float((ours(tiny_root, teacher, None) - theirs(bert)).abs().max()) > 0.05, (
        "the adapter changes something"
    )


@pytest.mark.parametrize("name", CONFIGS)
def test_an_exported_module_gives_the_same_states(
    bert: Any, tiny_root: Root, teacher: Encoder, tmp_path: Path, name: str
) -> None:
    spec = CONFIGS[name][2].model_copy(update={"rank": 7})  # 7 does not divide the dimension
    state = new_module(spec, tiny_root.info.shape, SPLIT).state_dict()
    g = torch.Generator().manual_seed(1)
    state = {k: (torch.randn(v.shape, generator=g) * 0.2).half() for k, v in state.items()}
    config = write_adapter_config("mine", spec, tiny_root.info.shape, SPLIT)
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    save_file(write_module("mine", state, SPLIT), tmp_path / "adapter.safetensors")
    loaded: dict[str, Any] = {}
    bert.load_adapter(str(tmp_path), use_safetensors=True, set_active=True, loading_info=loaded)
    assert not loaded["missing_keys"]
    assert not [k for k in loaded["unexpected_keys"] if "mine" in k]
    bert.eval()
    torch.testing.assert_close(ours(tiny_root, teacher, state), theirs(bert), atol=1e-4, rtol=1e-4)
    again = read_folder(tmp_path, tiny_root)
    assert again[0].spec == spec
    for key, value in again[1].items():
        torch.testing.assert_close(value, state[key].float(), atol=0, rtol=0)


def test_an_upper_layer_that_is_left_out_stays_as_it_is(
    bert: Any, tiny_root: Root, teacher: Encoder, tmp_path: Path
) -> None:
    bert.add_adapter("part", config=adapters.LoRAConfig(leave_out=[*LOWER, 3], init_weights="bert"))
    bert.set_active_adapters("part")
    bert.eval().save_adapter(str(tmp_path), "part", use_safetensors=True)
    _, state = read_folder(tmp_path, tiny_root)
    torch.testing.assert_close(ours(tiny_root, teacher, state), theirs(bert), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["classification", "multilabel", "tagging"])
def test_heads_of_one_linear_map_come_along(
    bert: Any, tiny_root: Root, teacher: Encoder, tmp_path: Path, kind: str
) -> None:
    add(bert, "lora")
    names = {0: "O", 1: "B-x", 2: "I-x"}
    if kind != "tagging":
        several = kind == "multilabel"
        bert.add_classification_head("lora", num_labels=3, layers=1, id2label=names, multilabel=several)
    else:
        bert.add_tagging_head("lora", num_labels=3, id2label=names)
    bert.eval().save_adapter(str(tmp_path), "lora", use_safetensors=True)
    config, tensors = ((tmp_path / f).read_bytes() for f in ("head_config.json", "model_head.safetensors"))
    head = read_head(config, tensors, tiny_root.info.shape)
    assert (head.task, head.labels) == (kind, ("O", "B-x", "I-x"))
    rows = ours(tiny_root, teacher, read_folder(tmp_path, tiny_root)[1])[None]
    mask = torch.ones(1, rows.shape[1], dtype=torch.bool)
    read = head_input(
        head.task, rows, torch.randn(rows.shape), torch.zeros(1, rows.shape[1], dtype=torch.long), mask
    )
    with torch.inference_mode():
        logits = bert(IDS, head="lora").logits
    torch.testing.assert_close(read @ head.weight.T + head.bias, logits, atol=1e-4, rtol=1e-4)
    back = write_head("lora", head, tiny_root.info.shape)
    assert not isinstance(back, str)
    for key, value in back[1].items():
        assert torch.equal(value, load_file(tmp_path / "model_head.safetensors")[key])
    assert read_head(json.dumps(back[0]).encode(), save(back[1]), tiny_root.info.shape).labels == head.labels


def test_an_exported_head_is_loaded_by_adapters(bert: Any, tiny_root: Root, tmp_path: Path) -> None:
    weight = torch.randn(3, tiny_root.dim)
    made = write_head(
        "mine", HeadTwin("tagging", ("a", "b", "c"), weight, torch.ones(3)), tiny_root.info.shape
    )
    assert not isinstance(made, str)
    (tmp_path / "head_config.json").write_text(json.dumps(made[0]))
    save_file(made[1], tmp_path / "model_head.safetensors")
    bert.load_head(str(tmp_path), use_safetensors=True)
    assert torch.equal(bert.heads["mine"][1].weight, weight)
