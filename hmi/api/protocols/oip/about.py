"""Descriptions of a model for the protocol's calls: its inputs and outputs, and its configuration."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from hmi.api.protocols.oip.tensors import Datatype
from hmi.core import ModelRecord, ModelVersion, Task

PLATFORM = "hmi"
OUTPUTS: dict[Task, tuple[str, ...]] = {
    "classification": ("LABEL", "SCORE", "SCORES", "CLASSES", "KNOWN", "TRUNCATED"),
    "pair": ("LABEL", "SCORE", "SCORES", "CLASSES", "KNOWN", "TRUNCATED"),
    "multilabel": ("LABELS", "SCORES", "CLASSES", "KNOWN", "TRUNCATED"),
    "regression": ("VALUE", "KNOWN", "TRUNCATED"),
    "tagging": ("TAGS", "TAG_SCORES", "ENTITIES", "KNOWN", "TRUNCATED"),
    "embedding": ("EMBEDDING", "TRUNCATED"),
    "generation": ("text_output",),
}
"""The outputs of each task, in their order."""
_DATATYPES: dict[str, Datatype] = {
    "SCORE": "FP32",
    "SCORES": "FP32",
    "VALUE": "FP32",
    "EMBEDDING": "FP32",
    "KNOWN": "BOOL",
    "TRUNCATED": "BOOL",
}
_TRITON = {"BYTES": "TYPE_STRING", "FP32": "TYPE_FP32", "BOOL": "TYPE_BOOL"}


@dataclass(frozen=True)
class Port:
    """An input or output of a model. In its shape, -1 stands for any length."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]
    optional: bool = False

    def metadata(self) -> dict[str, Any]:
        """Return the tensor as the protocol's metadata describes it."""
        return {"name": self.name, "datatype": self.datatype, "shape": list(self.shape)}

    def config(self) -> dict[str, Any]:
        """Return the tensor as Triton's configuration describes it, but for `optional`, which only inputs
        have.
        """
        return {"name": self.name, "data_type": _TRITON[self.datatype], "dims": list(self.shape)}


def inputs_of(version: ModelVersion) -> tuple[Port, ...]:
    """The inputs of a model: TEXT, TEXT and TEXT_PAIR, or TEXT or TOKENS; text_input of one that writes."""
    if version.task == "generation":
        return (Port("text_input", "BYTES", (1,)),)
    if version.task == "tagging":
        return Port("TEXT", "BYTES", (-1,), True), Port("TOKENS", "BYTES", (-1,), True)
    if version.task == "pair" or version.rules.paired:
        return Port("TEXT", "BYTES", (-1,)), Port("TEXT_PAIR", "BYTES", (-1,))
    return (Port("TEXT", "BYTES", (-1,)),)


def outputs_of(version: ModelVersion) -> dict[str, Port]:
    """The outputs of a model, by name."""
    labels = len(version.labels)
    shapes = {
        "SCORES": (-1, labels),
        "CLASSES": (labels,),
        "EMBEDDING": (-1, version.metrics.get("dim", -1)),
        "text_output": (1,),
    }
    return {
        name: Port(name, _DATATYPES.get(name, "BYTES"), shapes.get(name, (-1,)))
        for name in OUTPUTS[version.task]
    }


def metadata_of(record: ModelRecord) -> dict[str, Any]:
    """The protocol's metadata of a model."""
    live = record.live
    return {
        "name": f"{record.tenant}.{record.name}",
        "versions": [str(record.current)],
        "platform": PLATFORM,
        "inputs": [port.metadata() for port in inputs_of(live)],
        "outputs": [port.metadata() for port in outputs_of(live).values()],
    }


def config_of(record: ModelRecord) -> dict[str, Any]:
    """The configuration of a model in Triton's form, in JSON.

    `max_batch_size` is 0: the first number of each shape is the number of rows.
    """
    live = record.live
    parameters = {
        "task": live.task,
        "labels": json.dumps(live.labels, ensure_ascii=False),
        "domain": live.domain,
        "root": live.root,
        "max_length": str(live.max_length),
    }
    return {
        "name": f"{record.tenant}.{record.name}",
        "platform": PLATFORM,
        "backend": PLATFORM,
        "version_policy": {"specific": {"versions": [record.current]}},
        "max_batch_size": 0,
        "input": [{**port.config(), "optional": port.optional} for port in inputs_of(live)],
        "output": [port.config() for port in outputs_of(live).values()],
        "parameters": {name: {"string_value": value} for name, value in parameters.items()},
    }


def index_of(record: ModelRecord) -> list[dict[str, str]]:
    """The entries of a model in the repository's index, one for each version."""
    name = f"{record.tenant}.{record.name}"
    entries = []
    for each in record.versions:
        if each.version == record.current:
            entries.append({"name": name, "version": str(each.version), "state": "READY", "reason": ""})
        else:
            reason = f"version {record.current} answers"
            state = {"state": "UNAVAILABLE", "reason": reason}
            entries.append({"name": name, "version": str(each.version), **state})
    return entries
