"""The full encoder in other inference engines, each in its fastest mode, on one thread.

Engines that are not installed are left out; `pip install onnx onnxruntime openvino ctranslate2` installs all.
A batch of texts of unequal lengths is sorted by length and run in chunks, so that padding slows no engine.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hmi.model.network.encoder import Encoder

Batch = list[list[int]]
Run = Callable[[Batch], object]
Precision = Literal["fp32", "bf16", "int8"]
Peer = tuple[str, Precision, Run]
"""Name, the numbers that its products multiply, and its run."""
CHUNK = 4
"""Texts of a chunk, if a batch's texts are of unequal lengths."""
_NAMES = {"input_ids": {0: "b", 1: "t"}, "mask": {0: "b", 1: "t"}, "rows": {0: "b", 1: "t"}}


def peers(teacher: Encoder, source: Path, folder: Path) -> Iterator[Peer]:
    """Yield each mode of each installed engine.

    `source` is the folder of the published model.
    """
    model = exported(teacher, folder / "full.onnx")
    if model is not None:
        yield from _onnx_runtime(model, folder)
        yield from _openvino(model)
    yield from _ctranslate2(source, folder)


def _found(*names: str) -> tuple[Any, ...] | None:
    try:
        return tuple(importlib.import_module(name) for name in names)
    except ImportError:
        return None


class _Masked(nn.Module):
    """The encoder with an integer mask, as the engines pass it."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self._encoder = encoder

    def forward(self, input_ids: Tensor, mask: Tensor) -> Tensor:
        rows: Tensor = self._encoder(input_ids, mask.bool())
        return rows


def exported(teacher: Encoder, path: Path) -> Path | None:
    """Write the encoder as ONNX to `path` and return it; None if the package `onnx` is not installed."""
    if _found("onnx") is None:
        return None
    example = torch.ones(2, 8, dtype=torch.int64)
    torch.onnx.export(
        _Masked(teacher),
        (example, example),
        str(path),
        input_names=["input_ids", "mask"],
        output_names=["rows"],
        dynamic_axes=_NAMES,
        opset_version=17,
        dynamo=False,
    )
    return path


def _onnx_runtime(model: Path, folder: Path) -> Iterator[Peer]:
    found = _found("onnxruntime", "onnxruntime.quantization")
    if found is None:
        return
    ort, quantization = found
    options = one_thread(ort)
    small = folder / "full-int8.onnx"
    quantised(quantization, model, small)
    precisions: list[tuple[Precision, Path]] = [("fp32", model), ("int8", small)]
    for precision, path in precisions:
        session = ort.InferenceSession(str(path), options)

        def one(ids: NDArray[np.int64], mask: NDArray[np.int64], session: Any = session) -> object:
            return session.run(None, {"input_ids": ids, "mask": mask})

        yield from _modes("ONNX Runtime", precision, one)


def one_thread(runtime: Any) -> Any:
    """Return ONNX Runtime's options of a session on one thread that logs errors alone."""
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return options


def quantised(quantization: Any, model: Path, to: Path) -> None:
    """Write an ONNX model in int8. `quantization` is the module `onnxruntime.quantization`."""
    logging.disable(logging.WARNING)  # the library logs a line for each matrix
    quantization.quantize_dynamic(model, to, weight_type=quantization.QuantType.QInt8, per_channel=True)
    logging.disable(logging.NOTSET)


def _openvino(model: Path) -> Iterator[Peer]:
    found = _found("openvino")
    if found is None:
        return
    core = found[0].Core()
    precisions: list[tuple[Precision, str]] = [("fp32", "f32"), ("bf16", "bf16")]
    for precision, hint in precisions:
        settings = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": hint}
        request = core.compile_model(core.read_model(str(model)), "CPU", settings).create_infer_request()

        def one(ids: NDArray[np.int64], mask: NDArray[np.int64], request: Any = request) -> object:
            return request.infer([ids, mask])[0]

        yield from _modes("OpenVINO", precision, one)


def _ctranslate2(source: Path, folder: Path) -> Iterator[Peer]:
    found = _found("ctranslate2", "ctranslate2.converters")
    if found is None:
        return
    library, converters = found
    converters.TransformersConverter(str(source)).convert(str(folder / "ct2"))
    precisions: list[tuple[Precision, str]] = [("fp32", "float32"), ("int8", "int8")]
    for precision, kind in precisions:
        encoder = library.Encoder(
            str(folder / "ct2"), device="cpu", compute_type=kind, intra_threads=1, inter_threads=1
        )

        def run(batch: Batch, encoder: Any = encoder) -> object:
            texts = sorted(batch, key=len)
            chunks = [texts[i : i + 2 * CHUNK] for i in range(0, len(texts), 2 * CHUNK)]
            return [np.array(encoder.forward_batch(chunk).last_hidden_state) for chunk in chunks]

        yield f"CTranslate2 {precision}", precision, run


def _modes(
    name: str, precision: Precision, one: Callable[[NDArray[np.int64], NDArray[np.int64]], object]
) -> Iterator[Peer]:
    """Yield two modes: in chunks, and text by text. The faster one counts."""

    def in_chunks(batch: Batch) -> object:
        if len({len(text) for text in batch}) == 1:
            return one(*_padded(batch))
        texts = sorted(batch, key=len)
        return [one(*_padded(texts[i : i + CHUNK])) for i in range(0, len(texts), CHUNK)]

    yield f"{name} {precision}", precision, in_chunks
    yield (
        f"{name} {precision}, text by text",
        precision,
        lambda batch: [one(*_padded([text])) for text in batch],
    )


def _padded(batch: Batch) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return ids and mask, int64 [texts, longest text]."""
    ids = np.zeros((len(batch), max(map(len, batch))), np.int64)
    mask = np.zeros_like(ids)
    for i, text in enumerate(batch):
        ids[i, : len(text)], mask[i, : len(text)] = text, 1
    return ids, mask
