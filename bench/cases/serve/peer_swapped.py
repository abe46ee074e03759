"""Dedicated models as a peer: a whole encoder for each tenant, the least recently used swapped out.

A model takes as much memory as some 60 modules, so only a few of 1,000 tenants have their model in memory.
Another tenant's model is read from the disk when the tenant is asked. FILES files stand for the files of all
models.
"""

from __future__ import annotations

import importlib
import os
import shutil
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from bench.cases.path.encoders import exported
from bench.harness.page_cache import drop_cached
from hmi.model.encoder import Encoder

FILES = 16
"""The number of model files, and of models in memory."""
M = TypeVar("M")
Run = Callable[[NDArray[np.int64], list[int]], object]


class Swapped(Generic[M]):
    """Models by tenant, of which FILES are in memory."""

    def __init__(
        self, files: list[Path], load: Callable[[Path], M], answer: Callable[[M, NDArray[np.int64]], object]
    ) -> None:
        self._files, self._load, self._answer = files, load, answer
        self._models: OrderedDict[int, M] = OrderedDict()
        self.from_disk = False
        """True: each file is dropped from the page cache before it is read."""

    def run(self, ids: NDArray[np.int64], tenants: list[int]) -> object:
        """Answer the texts of each tenant together."""
        of: dict[int, list[int]] = {}
        for text, tenant in enumerate(tenants):
            of.setdefault(tenant, []).append(text)
        return [self._answer(self._model(tenant), ids[texts]) for tenant, texts in of.items()]

    def _model(self, tenant: int) -> M:
        if tenant in self._models:
            self._models.move_to_end(tenant)
            return self._models[tenant]
        if len(self._models) >= FILES:
            self._models.popitem(last=False)
        path = self._files[tenant % len(self._files)]
        if self.from_disk:
            drop_cached(path)
        found = self._models[tenant] = self._load(path)
        return found


def swapped(teacher: Encoder, folder: Path) -> Iterator[tuple[str, Run, bool]]:
    """Yield (name, run, whether it reads from the disk): each engine once from the disk, once from memory.

    Reading from memory is a bound on the time: the page cache of 1,000 models would take 90 GB.
    """
    for name, models in _engines(teacher, folder):
        for from_disk in (True, False):

            def run(
                ids: NDArray[np.int64], tenants: list[int], models: Any = models, from_disk: bool = from_disk
            ) -> object:
                models.from_disk = from_disk
                return models.run(ids, tenants)

            yield f"{name}_from_{'disk' if from_disk else 'page_cache'}", run, from_disk


def _engines(teacher: Encoder, folder: Path) -> Iterator[tuple[str, Swapped[Any]]]:
    first = folder / "model.safetensors"
    save_file({k: v.contiguous() for k, v in teacher.state_dict().items()}, first)
    yield "torch", Swapped(_copies(first), lambda path: _encoder(teacher, path), _encoded)
    try:
        runtime: Any = importlib.import_module("onnxruntime")
    except ImportError:
        return
    model = exported(teacher, folder / "model.onnx")
    if model is None:
        return
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    # A deployed model is optimised once, when it is stored: a load then takes the least time.
    options.optimized_model_filepath = str(folder / "optimised.onnx")
    runtime.InferenceSession(str(model), options)
    ready = runtime.SessionOptions()
    ready.intra_op_num_threads = ready.inter_op_num_threads = 1
    ready.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL

    def session(path: Path) -> Any:
        return runtime.InferenceSession(str(path), ready, providers=["CPUExecutionProvider"])

    def answer(session: Any, ids: NDArray[np.int64]) -> object:
        return session.run(None, {"input_ids": ids, "mask": np.ones_like(ids)})

    yield "onnx_runtime", Swapped(_copies(folder / "optimised.onnx"), session, answer)


def _copies(first: Path) -> list[Path]:
    """Return the files of FILES models, `first` among them, in full on the disk."""
    paths = [first, *(first.with_stem(f"{first.stem}-{i}") for i in range(1, FILES))]
    for path in paths[1:]:
        shutil.copyfile(first, path)
    for path in paths:
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.close(file)
    return paths


def _encoder(teacher: Encoder, path: Path) -> Encoder:
    """Return an encoder on a file's tensors, which are mapped and read as they are used."""
    with torch.device("meta"):
        model = Encoder(teacher.shape)
    model.load_state_dict(load_file(path), assign=True)
    return model.eval()


def _encoded(model: Encoder, ids: NDArray[np.int64]) -> object:
    texts = torch.from_numpy(ids)
    return model(texts, torch.ones_like(texts, dtype=torch.bool))
