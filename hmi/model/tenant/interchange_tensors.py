"""Converts the tensors of `adapters` files: modules, named by their path in BERT, and linear heads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from hmi.core import Task
from hmi.errors import InvalidInput
from hmi.model.network.shape import EncoderShape
from hmi.model.tenant.heads import head_input_size
from hmi.model.tenant.interchange import (
    EquivalentModule,
    check_base,
    conversion_error,
    read_json,
    shared_fields,
)
from hmi.model.tenant.modules import LORA_SCALE, new_module
from hmi.modulespec import SITES

_PATHS = {
    "q": "attention.self.query.loras",
    "k": "attention.self.key.loras",
    "v": "attention.self.value.loras",
    "fi": "intermediate.dense.loras",
    "fo": "output.dense.loras",
    "attn": "attention.output.adapters",
    "after_attn": "attention.output.adapters",
    "ffn": "output.adapters",
    "after_ffn": "output.adapters",
    "after_norm": "output.adapters",
}
"""The part of a layer's path that `adapters` uses for each site."""
_LORA_PARTS = {"down": "lora_A", "up": "lora_B"}
_BOTTLENECK_PARTS = {
    "down": "adapter_down.0.weight",
    "down_bias": "adapter_down.0.bias",
    "up": "adapter_up.weight",
    "up_bias": "adapter_up.bias",
}
_PREFIX = re.compile(r"^(?:\w+\.)?(?=encoder\.layer\.)")
"""A model with heads writes `bert.` in front of the names of its base model's tensors."""
HEAD_TASKS: dict[str, Task] = {
    "classification": "classification",
    "multilabel_classification": "multilabel",
    "tagging": "tagging",
}
"""Our tasks, by the `head_type` of `adapters`."""


@dataclass(frozen=True)
class HeadTwin:
    """A linear head: weight [labels, `head_input_size`], bias [labels], both fp32."""

    task: Task
    labels: tuple[str, ...]
    weight: Tensor
    bias: Tensor


def read_safetensors(raw: bytes, file: str) -> dict[str, Tensor]:
    """Parse a safetensors file. Raises InvalidInput, also for a pickle, which is never unpickled."""
    try:
        return load(raw)
    except (SafetensorError, KeyError) as error:  # KeyError: a dtype that torch does not have
        # Tested only now: a valid safetensors file begins with a length, which can look like a pickle.
        pickled = raw[:2] == b"PK" or raw[:1] == b"\x80"
        what = "a pickle, which could run code" if pickled else f"not a safetensors file ({error})"
        raise InvalidInput(
            f"{file} is {what}: save it again with model.save_adapter(folder, name, use_safetensors=True)",
            field=file,
        ) from error


def read_module(
    twin: EquivalentModule, tensors: Mapping[str, Tensor], shape: EncoderShape, split: int
) -> dict[str, Tensor]:
    """An adapter's tensors -> the state of a TenantModule, fp32.

    Layers that the adapter leaves out get a fresh module, which changes nothing. Raises InvalidInput, which
    names a tensor that is missing, unknown, of another size or not finite in fp16.
    """
    given = {_PREFIX.sub("", name): value for name, value in tensors.items()}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        state = new_module(twin.spec, shape, shape.layers - split).state_dict()
    for name, ours in list(state.items()):
        layer, site, part = place_of(name)
        if layer in twin.left_out:
            continue
        path = _path(layer + split, site, part, twin.name)
        found = _take_tensor(given, path, ours)
        state[name] = found * (twin.scale / _own_scale(site)) if part in ("up", "up_bias") else found
        if not bool(torch.isfinite(state[name].half()).all()):
            raise InvalidInput(f"{path} is not finite in 16 bits: train it again with a lower lr", field=path)
    if given:
        raise InvalidInput(
            f"{min(given)} is not a part of what adapter_config.json describes", field=min(given)
        )
    return state


def write_module(name: str, state: Mapping[str, Tensor], split: int) -> dict[str, Tensor]:
    """The state of a TenantModule -> fp32 tensors as `adapters` names them."""
    out = {}
    for key, value in state.items():
        layer, site, part = place_of(key)
        out[_path(layer + split, site, part, name)] = value.float().contiguous()
    return out


def read_head(raw_config: bytes, raw_tensors: bytes, shape: EncoderShape) -> HeadTwin:
    """A head of `adapters` -> ours. Raises InvalidInput, which names what has no equivalent.

    Our heads for classification and multi-label tasks read a mean row besides [CLS]. The imported head's
    weights for the mean are zero, so it gives the same answers as in `adapters`.
    """
    full = read_json(raw_config, "head_config.json")
    name, config = check_base(full, shape), full.get("config")
    if not isinstance(config, dict) or config.get("head_type") not in HEAD_TASKS:
        found = config.get("head_type") if isinstance(config, dict) else config
        raise conversion_error("head_type", found, "one of " + ", ".join(HEAD_TASKS))
    if config.get("layers") != 1 or config.get("use_pooler"):
        field = "use_pooler" if config.get("layers") == 1 else "layers"
        raise conversion_error(
            field, config.get(field), "false" if field == "use_pooler" else "1: our heads are one linear map"
        )
    task, labels = HEAD_TASKS[config["head_type"]], _labels(config.get("label2id"))
    given = read_safetensors(raw_tensors, "model_head.safetensors")
    weight = _take_tensor(given, f"heads.{name}.1.weight", torch.empty(len(labels), shape.dim))
    bias = torch.zeros(len(labels))
    if config.get("bias", True):
        bias = _take_tensor(given, f"heads.{name}.1.bias", bias)
    if not bool(torch.isfinite(torch.cat([weight.flatten(), bias]).half()).all()):
        raise InvalidInput("the head is not finite in 16 bits: train it again with a lower lr", field="head")
    wide = torch.zeros(len(labels), head_input_size(task, shape.dim))
    wide[:, : shape.dim] = weight
    return HeadTwin(task, labels, wide, bias)


def write_head(
    name: str, head: HeadTwin, shape: EncoderShape
) -> tuple[dict[str, Any], dict[str, Tensor]] | str:
    """(`head_config.json`, tensors) for `adapters`, or the reason why the head has no equivalent."""
    if head.task not in HEAD_TASKS.values():
        return f"a head for the task {head.task} reads what no head of adapters reads"
    if bool((head.weight[:, shape.dim :] != 0).any()):
        return "its head reads the mean of the rows besides [CLS], which no head of adapters does"
    kind = next(k for k, task in HEAD_TASKS.items() if task == head.task)
    config = {
        "head_type": kind,
        "num_labels": len(head.labels),
        "layers": 1,
        "activation_function": None,
        "label2id": {label: i for i, label in enumerate(head.labels)},
        "dropout_prob": None,
        **({} if kind == "tagging" else {"use_pooler": False, "bias": True}),
    }
    tensors = {"weight": head.weight[:, : shape.dim], "bias": head.bias}
    named = {f"heads.{name}.1.{part}": value.float().contiguous() for part, value in tensors.items()}
    return {**shared_fields(name, shape), "model_class": "BertAdapterModel", "config": config}, named


def place_of(name: str) -> tuple[int, str, str]:
    """`sites.0-q.down` -> (0, "q", "down")."""
    _, key, part = name.split(".")
    layer, _, site = key.partition("-")
    return int(layer), site, part


def _path(layer: int, site: str, part: str, name: str) -> str:
    parts = _LORA_PARTS if site in SITES["lora"] else _BOTTLENECK_PARTS
    return f"encoder.layer.{layer}.{_PATHS[site]}.{name}.{parts[part]}"


def _own_scale(site: str) -> float:
    return LORA_SCALE if site in SITES["lora"] else 1.0


def _take_tensor(given: dict[str, Tensor], path: str, like: Tensor) -> Tensor:
    found = given.pop(path, None)
    if found is None:
        raise InvalidInput(f"the file lacks {path}: save the adapter again", field=path)
    if found.shape != like.shape or not found.is_floating_point():
        raise InvalidInput(f"{path} is {list(found.shape)} where {list(like.shape)} is needed", field=path)
    return found.float()


def _labels(label2id: Any) -> tuple[str, ...]:
    """The labels in the order of their ids. Raises InvalidInput if the head does not name them."""
    if not isinstance(label2id, dict) or sorted(map(str, label2id.values())) != sorted(
        map(str, range(len(label2id)))
    ):
        raise conversion_error(
            "label2id", label2id, "label names with the ids 0, 1, …: give the head id2label and save again"
        )
    if len(label2id) < 2:
        raise conversion_error("label2id", label2id, "two labels or more")
    return tuple(sorted(map(str, label2id), key=lambda label: int(label2id[label])))
