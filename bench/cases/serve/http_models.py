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
from bench.harness.server import ONE_THREAD, ServerArm
from hmi.errors import Unavailable
from hmi.model.sources.source import DEFAULT_PACKAGE, find_source, load_encoder

HERE = Path(__file__).parent
NAMES = {"mask": "attention_mask", "rows": "last_hidden_state"}
"""The names that infinity expects of the graph's input and output."""
BATCHING = ("--calls", "16", "--wait-ms", "1")
"""LitServe's batching of calls. With a wait of 0 its worker polls without a pause and takes a whole core."""


def write(packages: Path | None, folder: Path) -> None:
    """Write the models. Raises Unavailable that says which package is missing."""
    environment = {**os.environ, **ONE_THREAD, **_environment(packages)}
    for words in (["-c", "import onnx, onnxruntime"], ["-m", "bench.cases.serve.http_models", str(folder)]):
        command = [sys.executable, *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Unavailable(f"the peers' models were not written: {done.stderr.strip()[-300:]}")


def litserve(folder: Path, precision: str, packages: Path | None, batching: bool = False) -> ServerArm:
    """LitServe over ONNX Runtime. `batching`: waiting calls run as one batch, which is faster with many
    callers and slower with one."""
    name = f"LitServe {precision}, batching" if batching else f"LitServe {precision}"
    tokenizer, model = (
        find_source(DEFAULT_PACKAGE).folder / "tokenizer.json",
        folder / precision / "model.onnx",
    )
    script = (sys.executable, "-P", str(HERE / "litserve_peer.py"), "--port", "{port}")
    command = (*script, "--model", str(model), "--tokenizer", str(tokenizer), *(BATCHING if batching else ()))
    return ServerArm(name, command, "/health", "/predict", _environment(packages))


def infinity(folder: Path, precision: str, packages: Path | None) -> ServerArm:
    """infinity over ONNX Runtime, which answers embeddings of the same model."""
    script = (sys.executable, "-P", str(HERE / "infinity_peer.py"))
    command = (*script, str(folder / f"infinity-{precision}"), "{port}")
    return ServerArm(f"infinity {precision}", command, "/health", "/embeddings", _environment(packages))


def _environment(packages: Path | None) -> dict[str, str]:
    """The environment of a peer's process: its packages, and settings that forbid hub and telemetry."""
    given = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "PYTHONWARNINGS": "ignore"}
    known = os.environ.get("PYTHONPATH", "")
    return given if packages is None else {**given, "PYTHONPATH": f"{packages}{os.pathsep}{known}"}


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
