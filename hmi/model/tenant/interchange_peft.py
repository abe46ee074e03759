"""Reads and writes LoRAs of language models in the format of the library `peft` (0.17).

An adapter is `adapter_config.json` and `adapter_model.safetensors`. It must leave out the lower layers, which
a PLOT replaces here. Any other setting that would change the answer is refused by name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hmi.core import ModuleSpec
from hmi.errors import InvalidInput
from hmi.model.network.shape import DecoderShape
from hmi.model.tenant.interchange import check_rank, conversion_error, is_number, read_json
from hmi.model.tenant.interchange_tensors import place_of
from hmi.model.tenant.modules import LORA_SCALE, new_module
from hmi.modulespec import Site

FORMAT = "peft 0.17"
PATHS: dict[Site, str] = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "fi": "mlp.up_proj",
    "fo": "mlp.down_proj",
}
"""The matrix of a layer at each site, as transformers names it."""
_SITES: dict[str, Site] = {path: site for site, path in PATHS.items()}
_NAME = re.compile(
    r"(?:base_model\.model\.)?model\.layers\.(\d{1,4})\.(\w+\.\w+)\.lora_([AB])(?:\.\w+)?\.weight"
)
_NEEDS: dict[str, Any] = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "bias": "none",
    "fan_in_fan_out": False,
    "use_dora": False,
    "use_qalora": False,
    "lora_bias": False,
    "rank_pattern": {},
    "alpha_pattern": {},
    "modules_to_save": None,
    "trainable_token_indices": None,
    "layer_replication": None,
    "target_parameters": None,
    "corda_config": None,
    "eva_config": None,
}
"""The values that these fields must have, if they are present. All other fields change no answer, or are told
by the tensors."""


@dataclass(frozen=True)
class PeftModule:
    """A language model's module that came from `peft`."""

    spec: ModuleSpec
    state: dict[str, Tensor]
    """The state of a `TenantModule`, fp32."""


def read_peft(
    raw_config: bytes, tensors: Mapping[str, Tensor], shape: DecoderShape, split: int
) -> PeftModule:
    """An adapter's files -> a module of the layers above `split`.

    Layers that the adapter leaves out get a fresh module, which changes nothing. Raises InvalidInput, which
    names the field or the tensor that has no equivalent.
    """
    config, scale = read_peft_config(raw_config)
    found: dict[str, tuple[str, Tensor]] = {}
    sites = set[Site]()
    for name, value in tensors.items():
        layer, site, part = _place(name)
        if not split <= layer < shape.layers:
            raise InvalidInput(
                f"{name} changes layer {layer}, and the root runs layers {split} to {shape.layers - 1}: "
                "train those alone (layers_to_transform), or name a domain of a root with split 0",
                field="adapter",
            )
        sites.add(site)
        found[f"sites.{layer - split}-{site}.{part}"] = name, value
    if not found:
        raise InvalidInput("the adapter has no tensors: save it again", field="adapter")
    spec = ModuleSpec(kind="lora", rank=config["r"], sites=tuple(site for site in PATHS if site in sites))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        state = new_module(spec, shape, shape.layers - split).state_dict()
    for ours, (name, value) in found.items():
        at, _, part = ours.rpartition(".")
        if f"{at}.{'up' if part == 'down' else 'down'}" not in found:
            raise InvalidInput(f"{name} has no counterpart: save the adapter again", field="adapter")
        if value.shape != state[ours].shape or not value.is_floating_point():
            raise InvalidInput(
                f"{name} is {list(value.shape)} where {list(state[ours].shape)} is needed", field="adapter"
            )
        state[ours] = value.float() * (scale / LORA_SCALE if part == "up" else 1.0)
        if not bool(torch.isfinite(state[ours].half()).all()):
            raise InvalidInput(
                f"{name} is not finite in 16 bits: train it again with a lower lr", field="adapter"
            )
    return PeftModule(spec, state)


def read_peft_config(raw: bytes) -> tuple[dict[str, Any], float]:
    """`adapter_config.json`, and the factor by which `peft` multiplies the change. Raises InvalidInput."""
    config = read_json(raw, "adapter_config.json")
    for field, wanted in _NEEDS.items():
        if config.get(field) not in (wanted, None):
            raise conversion_error(field, config.get(field), f"{wanted!r}")
    if config.get("peft_type") is None:
        raise conversion_error("peft_type", None, "'LORA'")
    rank, alpha = config.get("r"), config.get("lora_alpha")
    check_rank(rank, "r")
    if not is_number(alpha):
        raise conversion_error("lora_alpha", alpha, "a number")
    assert isinstance(rank, int)
    assert isinstance(alpha, int | float)
    return config, alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def write_peft(
    spec: ModuleSpec, state: Mapping[str, Tensor], shape: DecoderShape, split: int, base: str
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """`adapter_config.json` and the tensors of a module. base: the name of the root's source."""
    config = {
        **{field: value for field, value in _NEEDS.items() if not field.endswith("_config")},
        "base_model_name_or_path": base,
        "r": spec.rank,
        "lora_alpha": LORA_SCALE * spec.rank,
        "lora_dropout": 0.0,
        "use_rslora": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "target_modules": [PATHS[site].partition(".")[2] for site in PATHS if site in spec.all_sites],
        "layers_to_transform": list(range(split, shape.layers)),
        "layers_pattern": "layers",
    }
    tensors = {}
    for name, value in state.items():
        layer, site, part = place_of(name)
        path = f"base_model.model.model.layers.{layer + split}.{PATHS[site]}"  # type: ignore[index]
        tensors[f"{path}.lora_{'A' if part == 'down' else 'B'}.weight"] = value.float().contiguous()
    return config, tensors


def _place(name: str) -> tuple[int, Site, str]:
    """`base_model.model.model.layers.4.self_attn.q_proj.lora_A.weight` -> (4, "q", "down")."""
    found = _NAME.fullmatch(name)
    site = _SITES.get(found[2]) if found else None
    if found is None or site is None:
        raise InvalidInput(
            f"{name[:120]} is no LoRA of a layer's matrix: leave such parts out of the adapter",
            field="adapter",
        )
    return int(found[1]), site, "down" if found[3] == "A" else "up"
