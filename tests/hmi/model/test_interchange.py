"""Which configurations of the `adapters` library are accepted, and that the others are refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from hmi.core import ModuleSpec
from hmi.errors import InvalidInput
from hmi.model.sources.root import Root
from hmi.model.tenant.interchange import FORMAT, read_adapter_config, write_adapter_config
from hmi.model.tenant.interchange_tensors import (
    HeadTwin,
    read_head,
    read_module,
    read_safetensors,
    write_head,
    write_module,
)
from hmi.model.tenant.modules import new_module

SPLIT = 2


@pytest.mark.parametrize("rank", [1, 7, 12, 53, 107, 216, 384])
@pytest.mark.parametrize("dim", [384, 768])
def test_every_rank_survives_a_reduction_factor(tiny_root: Root, rank: int, dim: int) -> None:
    shape = type(tiny_root.info.shape)(**{**vars(tiny_root.info.shape), "dim": dim})
    for kind in ("parallel", "sequential", "houlsby"):
        spec = ModuleSpec(kind=kind, rank=rank)
        raw = json.dumps(write_adapter_config("a", spec, shape, SPLIT)).encode()
        assert read_adapter_config(raw, shape, SPLIT).spec == spec


def test_lora_of_an_old_library_is_scaled_as_it_was_trained(tiny_root: Root) -> None:
    config = write_adapter_config("a", ModuleSpec(rank=4, sites=("q",)), tiny_root.info.shape, SPLIT)
    for version, scale in (("adapters.1.0.1", 1.0), ("adapters.1.1.0", 2.0), (FORMAT, 2.0)):
        raw = json.dumps({**config, "version": version}).encode()
        assert read_adapter_config(raw, tiny_root.info.shape, SPLIT).scale == scale


def test_heads_without_a_twin_say_why(tiny_root: Root) -> None:
    size, shape = tiny_root.dim, tiny_root.info.shape
    reads_mean = HeadTwin("classification", ("a", "b"), torch.ones(2, 2 * size), torch.zeros(2))
    assert "the mean" in str(write_head("a", reads_mean, shape))
    assert "pair" in str(
        write_head("a", HeadTwin("pair", ("a", "b"), torch.ones(2, 3 * size), torch.zeros(2)), shape)
    )


HEAD = {"head_type": "classification", "layers": 1, "num_labels": 2, "label2id": {"a": 1, "b": 0}}


def read_plain_head(root: Root, changes: dict[str, Any], weight: torch.Tensor) -> HeadTwin:
    config = {
        "name": "a",
        "model_type": "bert",
        "hidden_size": 32,
        "version": FORMAT,
        "config": {**HEAD, **changes},
    }
    tensors = save({"heads.a.1.weight": weight, "heads.a.1.bias": torch.zeros(2)})
    return read_head(json.dumps(config).encode(), tensors, root.info.shape)


def test_a_head_has_its_labels_in_the_order_of_their_ids(tiny_root: Root) -> None:
    head = read_plain_head(tiny_root, {}, torch.ones(2, 32))
    assert head.labels == ("b", "a")
    assert head.weight.sum(1).tolist() == [32.0, 32.0]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("head_type", "question_answering"),
        ("layers", 2),
        ("use_pooler", True),
        ("label2id", None),
        ("label2id", {"a": 0, "b": 2}),
        ("label2id", {"a": 0}),
    ],
)
def test_heads_of_another_form_are_refused_by_name(tiny_root: Root, field: str, value: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_plain_head(tiny_root, {field: value}, torch.ones(2, 32))
    assert caught.value.details["field"] == field


@pytest.mark.parametrize("weight", [torch.ones(3, 32), torch.full((2, 32), torch.nan)], ids=["size", "nan"])
def test_heads_of_impossible_numbers_are_refused(tiny_root: Root, weight: torch.Tensor) -> None:
    with pytest.raises(InvalidInput, match=r"is needed|not finite"):
        read_plain_head(tiny_root, {}, weight)


GOOD = {
    "name": "a",
    "model_type": "bert",
    "hidden_size": 32,
    "version": FORMAT,
    "config": {"architecture": "lora", "r": 4, "alpha": 8, "attn_matrices": ["q"], "leave_out": [0, 1]},
}
BOTTLENECK = {
    "mh_adapter": False,
    "output_adapter": True,
    "reduction_factor": 8,
    "non_linearity": "relu",
    "original_ln_before": True,
    "leave_out": [0, 1],
}


def test_the_configurations_that_are_spoilt_below_are_good(tiny_root: Root) -> None:
    for config in (GOOD["config"], BOTTLENECK):
        twin = read_adapter_config(
            json.dumps({**GOOD, "config": config}).encode(), tiny_root.info.shape, SPLIT
        )
        assert twin.spec.kind == ("lora" if config is GOOD["config"] else "sequential")


@pytest.mark.parametrize(
    ("field", "value", "base"),
    [
        ("composition_mode", "scale", GOOD["config"]),
        ("use_dora", True, GOOD["config"]),
        ("use_gating", True, GOOD["config"]),
        ("vera_d", 0.1, GOOD["config"]),
        ("r", {"q": 4}, GOOD["config"]),
        ("r", 0, GOOD["config"]),
        ("alpha", "8", GOOD["config"]),
        ("attn_matrices", ["q", "o"], GOOD["config"]),
        ("leave_out", [0], GOOD["config"]),
        ("leave_out", None, GOOD["config"]),
        ("novelty", 1, GOOD["config"]),
        ("architecture", "prefix_tuning", GOOD["config"]),
        ("architecture", "reft", GOOD["config"]),
        ("selfattn_lora", False, GOOD["config"]),
        ("non_linearity", "gelu", BOTTLENECK),
        ("scaling", "learned", BOTTLENECK),
        ("ln_before", True, BOTTLENECK),
        ("phm_layer", True, BOTTLENECK),
        ("inv_adapter", "nice", BOTTLENECK),
        ("mh_adapter", True, BOTTLENECK),
        ("reduction_factor", {"2": 8, "default": 4}, BOTTLENECK),
        ("reduction_factor", 0, BOTTLENECK),
        ("reduction_factor", 1e-308, BOTTLENECK),
        ("scaling", float("nan"), BOTTLENECK),
        ("residual_before_ln", "post_add", BOTTLENECK),
        ("original_ln_after", False, BOTTLENECK),
        ("output_adapter", False, BOTTLENECK),
    ],
)
def test_settings_without_a_twin_are_refused_by_name(
    tiny_root: Root, field: str, value: Any, base: dict[str, Any]
) -> None:
    raw = json.dumps({**GOOD, "config": {**base, field: value}}).encode()
    with pytest.raises(InvalidInput) as caught:
        read_adapter_config(raw, tiny_root.info.shape, SPLIT)
    assert caught.value.details["field"] == field
    assert field in caught.value.message


@pytest.mark.parametrize(
    ("field", "value"),
    [("model_type", "roberta"), ("hidden_size", 768), ("version", "0.1"), ("name", "a.b"), ("config", None)],
)
def test_an_adapter_of_another_model_is_refused(tiny_root: Root, field: str, value: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_adapter_config(json.dumps({**GOOD, field: value}).encode(), tiny_root.info.shape, SPLIT)
    assert caught.value.details["field"] == field


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_configuration_is_refused(tiny_root: Root, raw: bytes) -> None:
    with pytest.raises(InvalidInput, match=r"adapter_config\.json"):
        read_adapter_config(raw, tiny_root.info.shape, SPLIT)


@pytest.mark.parametrize(
    ("kind", "sites", "field"),
    [("lora", None, "module.sites"), ("ln", None, "module.kind"), ("lora+ln", ("q", "ln1"), "module.kind")],
)
def test_modules_without_a_twin_are_not_exported(tiny_root: Root, kind: Any, sites: Any, field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        write_adapter_config("a", ModuleSpec(kind=kind, sites=sites), tiny_root.info.shape, SPLIT)
    assert caught.value.details["field"] == field


def test_tensors_that_do_not_fit_are_named(tiny_root: Root) -> None:
    shape = tiny_root.info.shape
    twin = read_adapter_config(json.dumps(GOOD).encode(), shape, SPLIT)
    good = write_module("a", new_module(twin.spec, shape, SPLIT).state_dict(), SPLIT)
    read_module(twin, good, shape, SPLIT)
    first = min(good)
    spoilt = [
        ({k: v for k, v in good.items() if k != first}, "lacks"),
        ({**good, first: good[first][:1]}, "is needed"),
        ({**good, first: torch.full_like(good[first], 1e6)}, "not finite"),
        ({**good, "encoder.layer.2.output.gates.a.w": torch.zeros(1)}, "not a part"),
    ]
    for tensors, says in spoilt:
        with pytest.raises(InvalidInput, match=says):
            read_module(twin, tensors, shape, SPLIT)


def test_a_pickle_is_never_opened(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(1)}, tmp_path / "pytorch_adapter.bin")
    for raw in ((tmp_path / "pytorch_adapter.bin").read_bytes(), b"\x80\x04K\x01."):
        with pytest.raises(InvalidInput, match="use_safetensors=True"):
            read_safetensors(raw, "weights")
    with pytest.raises(InvalidInput, match="not a safetensors file"):
        read_safetensors(b"\x10" * 40, "weights")


def test_a_file_that_begins_like_a_pickle_is_read() -> None:
    """A safetensors file begins with the header's length, whose first byte can be 0x80 as in a pickle."""
    files = [save({"t" * n: torch.zeros(1)}) for n in range(1, 256)]
    alike = [f for f in files if f[:1] == b"\x80"]
    assert alike
    assert all(len(read_safetensors(f, "a")) == 1 for f in alike)
