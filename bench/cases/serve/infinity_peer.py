"""infinity over ONNX Runtime (its `optimum` engine) on one compute thread, as a process of its own.

`python infinity_peer.py FOLDER PORT`: FOLDER is a model's folder with `config.json`, the tokenizer's files
and one ONNX file. It needs infinity_emb, optimum, optimum-onnx, onnxruntime and transformers, and nothing of
HMI.
`POST /embeddings {"model", "input": [text, …]}` answers the texts' embeddings.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

import onnxruntime  # type: ignore[import-not-found]


def one_thread() -> None:
    """Make each session that infinity opens run on one thread: infinity has no setting for it."""
    opened = onnxruntime.InferenceSession.__init__

    @functools.wraps(opened)
    def init(self: Any, model: Any, sess_options: Any = None, *args: Any, **named: Any) -> None:
        options = sess_options or onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        opened(self, model, options, *args, **named)

    onnxruntime.InferenceSession.__init__ = init


def main() -> None:
    folder, port = sys.argv[1:3]
    os.chdir(folder)  # optimum finds a local ONNX file by its relative path only
    one_thread()
    from infinity_emb.cli import cli  # type: ignore[import-not-found]

    given = {
        "model-id": ".",
        "served-model-name": "peer",
        "engine": "optimum",
        "device": "cpu",
        "host": "127.0.0.1",
        "port": port,
        "batch-size": "32",
    }
    # The model's own graph is run as it is: the fused one that optimum makes of it was measured as slower.
    flags = ["--no-model-warmup", "--no-bettertransformer", "--onnx-disable-optimize"]
    sys.argv = ["infinity_emb", "v2", *[f"--{k}={v}" for k, v in given.items()], *flags]
    cli()


if __name__ == "__main__":
    main()
