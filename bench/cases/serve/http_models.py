"""`bench.cases.serve.http_models FOLDER`: writes the full encoder in the forms that peers serve.

FOLDER gets `fp32/model.onnx` and `int8/model.onnx` (for LitServe), and `infinity-fp32` and `infinity-int8`,
each with the configuration, the tokenizer and one ONNX file. It runs as a process of its own, whose packages
onnx and onnxruntime may come from another folder.
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from bench.cases.path.encoders import exported, quantised
from bench.cases.serve.http_servers import Arm, peer_environment
from hmi.errors import Unavailable
from hmi.model.source import DEFAULT_PACKAGE, find_source, load_encoder

HERE = Path(__file__).parent
NAMES = {"mask": "attention_mask", "rows": "last_hidden_state"}
"""The names that infinity expects of the graph's input and output."""
BATCHING = ("--calls", "16", "--wait-ms", "1")
"""LitServe's batching of calls. With a wait of 0 its worker polls without a pause and takes a whole core."""


def write(packages: Path | None, folder: Path) -> None:
    """Write the models. Raises Unavailable that says which package is missing."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **peer_environment(packages)}
    for words in (["-c", "import onnx, onnxruntime"], ["-m", "bench.cases.serve.http_models", str(folder)]):
        command = [sys.executable, *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Unavailable(f"the peers' models were not written: {done.stderr.strip()[-300:]}")


def litserve(folder: Path, precision: str, packages: Path | None) -> Arm:
    """LitServe over ONNX Runtime with one model for every tenant."""
    model = str(folder / precision / "model.onnx")
    return _litserve(f"LitServe {precision}", model, precision, (), packages)


def litserve_batching(folder: Path, precision: str, packages: Path | None) -> Arm:
    """LitServe as `litserve` runs it, but waiting calls run as one batch: faster with many callers, slower
    with one."""
    model = str(folder / precision / "model.onnx")
    return _litserve(f"LitServe {precision}, batching", model, precision, BATCHING, packages)


def litserve_dedicated(folder: Path, resident: int, packages: Path | None) -> Arm:
    """LitServe with a model in int8 for each tenant: `tenants/NAME.onnx`, of which some stay in memory."""
    given = (*BATCHING, "--resident", str(resident))
    name = f"LitServe int8, {resident} dedicated models in memory"
    return _litserve(name, str(folder / "tenants" / "{tenant}.onnx"), "int8", given, packages)


def infinity(folder: Path, precision: str, packages: Path | None) -> Arm:
    """infinity over ONNX Runtime, which answers embeddings of the same model."""
    command = (
        sys.executable,
        "-P",
        str(HERE / "infinity_peer.py"),
        str(folder / f"infinity-{precision}"),
        "{port}",
    )
    environment = peer_environment(packages)
    return Arm(f"infinity {precision}", command, "/health", precision, "/embeddings", environment)


def _litserve(name: str, model: str, precision: str, given: tuple[str, ...], packages: Path | None) -> Arm:
    tokenizer = find_source(DEFAULT_PACKAGE).folder / "tokenizer.json"
    script = (sys.executable, "-P", str(HERE / "litserve_peer.py"), "--port", "{port}")
    command = (*script, "--model", model, "--tokenizer", str(tokenizer), *given)
    return Arm(name, command, "/health", precision, "/predict", peer_environment(packages))


def main() -> None:
    folder = Path(sys.argv[1])
    source = find_source(DEFAULT_PACKAGE).folder
    torch.set_num_threads(1)
    for precision in ("fp32", "int8"):
        (folder / precision).mkdir(parents=True)
    with torch.inference_mode():
        whole = exported(load_encoder(source), folder / "fp32" / "model.onnx")
    assert whole is not None, "the caller has checked that onnx is installed"
    quantised(importlib.import_module("onnxruntime.quantization"), whole, folder / "int8" / "model.onnx")
    for precision, name in (("fp32", "model.onnx"), ("int8", "model_quantized.onnx")):
        to = folder / f"infinity-{precision}"
        to.mkdir()
        for file in source.iterdir():
            if file.is_file() and file.suffix in (".json", ".txt"):
                shutil.copy(file, to)
        _renamed(folder / precision / "model.onnx", to / name)


def _renamed(model: Path, to: Path) -> None:
    onnx: Any = importlib.import_module("onnx")
    found = onnx.load(str(model))
    for value in (*found.graph.input, *found.graph.output):
        value.name = NAMES.get(value.name, value.name)
    for node in found.graph.node:
        for names in (node.input, node.output):
            names[:] = [NAMES.get(name, name) for name in names]
    onnx.save(found, str(to))


if __name__ == "__main__":
    main()
