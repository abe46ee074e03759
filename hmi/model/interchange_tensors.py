"""The tensors of `adapters` files: a module's by the paths of a BERT, and heads of one linear map."""

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
from hmi.model.heads import head_input_size
from hmi.model.interchange import Twin, about, check_base, read_json, refused
from hmi.model.modules import LORA_SCALE, new_module
from hmi.model.shape import EncoderShape
from hmi.modulespec import SITES

PATHS = {
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
_LORA_PARTS = {"down": "lora_A", "up": "lora_B"}
_BOTTLENECK_PARTS = {
    "down": "adapter_down.0.weight",
    "down_bias": "adapter_down.0.bias",
    "up": "adapter_up.weight",
    "up_bias": "adapter_up.bias",
}
_PREFIX = re.compile(r"^(?:\w+\.)?(?=encoder\.layer\.)")
"""A model with heads writes `bert.` before its base model's tensors."""
HEAD_TASKS: dict[str, Task] = {
    "classification": "classification",
    "multilabel_classification": "multilabel",
    "tagging": "tagging",
}


@dataclass(frozen=True)
class HeadTwin:
    """A head of one linear map: weight [labels, what our head reads], bias [labels]."""

    task: Task
    labels: tuple[str, ...]
    weight: Tensor
    bias: Tensor


def read_safetensors(raw: bytes, file: str) -> dict[str, Tensor]:
    """The tensors of a safetensors file; raises InvalidInput, also for a pickle, which is never opened."""
    try:
        return load(raw)
    except (
        SafetensorError,
        KeyError,
    ) as error:  # KeyError: a type of numbers that this library does not read
        # Told apart only now: a safetensors file begins with a length, which may look like either.
        pickled = raw[:2] == b"PK" or raw[:1] == b"\x80"
        what = "a pickle, which could run code" if pickled else f"not a safetensors file ({error})"
        raise InvalidInput(
            f"{file} is {what}: save it again with model.save_adapter(folder, name, use_safetensors=True)",
            field=file,
        ) from error


def read_module(
    twin: Twin, tensors: Mapping[str, Tensor], shape: EncoderShape, split: int
) -> dict[str, Tensor]:
    """An adapter's tensors -> the state of a TenantModule, fp32. Layers that it leaves out get a fresh one.

    Raises InvalidInput naming the tensor that is missing, of another size, not finite in fp16 or not known.
    """
    given = {_PREFIX.sub("", name): value for name, value in tensors.items()}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        state = new_module(twin.spec, shape, shape.layers - split).state_dict()
    for name, ours in list(state.items()):
        layer, site, part = _place(name)
        if layer in twin.left_out:
            continue
        path = _path(layer + split, site, part, twin.name)
        found = _taken(given, path, ours)
        state[name] = found * (twin.scale / _own_scale(site)) if part in ("up", "up_bias") else found
        if not bool(torch.isfinite(state[name].half()).all()):
            raise InvalidInput(f"{path} is not finite in 16 bits: train it again with a lower lr", field=path)
    if given:
        raise InvalidInput(
            f"{min(given)} is not a part of what adapter_config.json describes", field=min(given)
        )
    return state


def write_module(name: str, state: Mapping[str, Tensor], split: int) -> dict[str, Tensor]:
    """The state of a TenantModule, whose spec has a twin -> tensors as `adapters` names them, fp32."""
    out = {}
    for key, value in state.items():
        layer, site, part = _place(key)
        out[_path(layer + split, site, part, name)] = value.float().contiguous()
    return out


def read_head(raw_config: bytes, raw_tensors: bytes, shape: EncoderShape) -> HeadTwin:
    """A head of `adapters` -> ours; raises InvalidInput naming what has no twin.

    Classification here reads [CLS] and the mean of the rows before the last layer; an imported head gives the
    mean no weight, so it answers as it did.
    """
    full = read_json(raw_config, "head_config.json")
    name, config = check_base(full, shape), full.get("config")
    if not isinstance(config, dict) or config.get("head_type") not in HEAD_TASKS:
        found = config.get("head_type") if isinstance(config, dict) else config
        raise refused("head_type", found, "one of " + ", ".join(HEAD_TASKS))
    if config.get("layers") != 1 or config.get("use_pooler"):
        field = "use_pooler" if config.get("layers") == 1 else "layers"
        raise refused(
            field, config.get(field), "false" if field == "use_pooler" else "1: our heads are one linear map"
        )
    task, labels = HEAD_TASKS[config["head_type"]], _labels(config.get("label2id"))
    given = read_safetensors(raw_tensors, "model_head.safetensors")
    weight = _taken(given, f"heads.{name}.1.weight", torch.empty(len(labels), shape.dim))
    bias = torch.zeros(len(labels))
    if config.get("bias", True):
        bias = _taken(given, f"heads.{name}.1.bias", bias)
    if not bool(torch.isfinite(torch.cat([weight.flatten(), bias]).half()).all()):
        raise InvalidInput("the head is not finite in 16 bits: train it again with a lower lr", field="head")
    wide = torch.zeros(len(labels), head_input_size(task, shape.dim))
    wide[:, : shape.dim] = weight
    return HeadTwin(task, labels, wide, bias)


def write_head(
    name: str, head: HeadTwin, shape: EncoderShape
) -> tuple[dict[str, Any], dict[str, Tensor]] | str:
    """(`head_config.json`, its tensors) for `adapters`; or why the head has no twin there."""
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
    return {**about(name, shape), "model_class": "BertAdapterModel", "config": config}, named


def _place(name: str) -> tuple[int, str, str]:
    """`sites.0-q.down` -> (0, "q", "down")."""
    _, key, part = name.split(".")
    layer, _, site = key.partition("-")
    return int(layer), site, part


def _path(layer: int, site: str, part: str, name: str) -> str:
    parts = _LORA_PARTS if site in SITES["lora"] else _BOTTLENECK_PARTS
    return f"encoder.layer.{layer}.{PATHS[site]}.{name}.{parts[part]}"


def _own_scale(site: str) -> float:
    return LORA_SCALE if site in SITES["lora"] else 1.0


def _taken(given: dict[str, Tensor], path: str, like: Tensor) -> Tensor:
    found = given.pop(path, None)
    if found is None:
        raise InvalidInput(f"the file lacks {path}: save the adapter again", field=path)
    if found.shape != like.shape or not found.is_floating_point():
        raise InvalidInput(f"{path} is {list(found.shape)} where {list(like.shape)} is needed", field=path)
    return found.float()


def _labels(label2id: Any) -> tuple[str, ...]:
    """Labels by their ids; raises InvalidInput where the head does not say them."""
    if not isinstance(label2id, dict) or sorted(map(str, label2id.values())) != sorted(
        map(str, range(len(label2id)))
    ):
        raise refused(
            "label2id", label2id, "label names with the ids 0, 1, …: give the head id2label and save again"
        )
    if len(label2id) < 2:
        raise refused("label2id", label2id, "two labels or more")
    return tuple(sorted(map(str, label2id), key=lambda label: int(label2id[label])))
