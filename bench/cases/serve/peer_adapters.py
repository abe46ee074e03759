"""The library `adapters` as a peer: the full encoder with one LoRA for each text of a batch (BatchSplit)."""

from __future__ import annotations

import importlib
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from hmi.core import ModuleSpec
from hmi.errors import InvalidInput
from hmi.model.interchange import write_adapter_config
from hmi.model.root import RootInfo


def batch_split(
    source: Path, spec: ModuleSpec, info: RootInfo, batch: int
) -> Callable[[NDArray[np.int64], list[int]], object] | None:
    """Return the run of a batch in which text i has adapter i; None if the library is not installed.

    The adapters change the upper layers, as HMI's modules do. Only as many as a batch needs are loaded, since
    loading 1,000 takes the library minutes, and makes no batch faster. The last layer computes all rows.
    """
    try:
        adapters, composition, transformers = (
            importlib.import_module(name) for name in ("adapters", "adapters.composition", "transformers")
        )
    except ImportError:
        return None
    logging.getLogger("adapters").setLevel(logging.ERROR)  # it logs a line for each adapter
    config = json.loads((source / "config.json").read_text())
    if config["model_type"] != "bert":
        raise InvalidInput("the peer `adapters` needs a root of kind bert", field="only")
    model: Any = adapters.BertAdapterModel(transformers.BertConfig(**config))
    model.bert.load_state_dict(load_file(source / "model.safetensors"), strict=False)
    names = [f"a{i}" for i in range(batch)]
    settings = write_adapter_config("a", spec, info.shape, info.split)["config"]
    for name in names:
        model.add_adapter(name, config=adapters.LoRAConfig.from_dict(settings))
    model.eval()

    def run(ids: NDArray[np.int64], tenants: list[int]) -> object:
        model.active_adapters = composition.BatchSplit(*names[: len(ids)], batch_sizes=[1] * len(ids))
        return model.bert(torch.from_numpy(ids)).last_hidden_state

    return run
