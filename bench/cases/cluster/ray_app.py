"""Ray Serve as a process of its own: dedicated models, adapters of one model, or a router to HMI.

`python ray_app.py MODE --port 9001 …` runs a Ray cluster of this machine and one application. It needs
ray[serve], onnxruntime, tokenizers, safetensors and xxhash, and nothing of HMI; `write` also needs torch,
transformers and onnx. `POST / {"inputs": text}` with the header `serve_multiplexed_model_id: TENANT` answers
`{"label", "scores"}`.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import importlib.util
import json
import os
import shutil
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ADDRESS = "127.0.0.12"
"""Ray's own address of loopback, since it refuses 127.0.0.1 for a node."""
STORE_BYTES = 80 << 20
"""Ray's object store. No call uses it."""
REPLICAS, AT_ONCE = 2, 64
LAYERS, RANK, LABELS, OPSET = 3, 8, 4, 17
"""Upper layers that an adapter changes, as many as a tenant's module of HMI does, and its rank."""
NAMES = {"ids": {0: "b", 1: "t"}, "mask": {0: "b", 1: "t"}, "down": {0: "b"}, "up": {0: "b"}}


def write(folder: Path, source: Path, tenants: int) -> None:
    """Write the encoder in fp32 and int8, optimised as for a deployment, and the tenants' files.

    A dedicated model is a whole copy in int8 on disk: its values do not change its speed.
    """
    import numpy as np
    import torch
    from onnxruntime.quantization import QuantType, quantize_dynamic  # type: ignore[import-not-found]
    from safetensors.numpy import save_file
    from transformers import BertModel

    class Graph(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert = BertModel.from_pretrained(source, attn_implementation="eager")

        def forward(self, ids: Any, mask: Any, down: Any = None, up: Any = None) -> Any:
            bert = self.bert
            rows, hidden = bert.embeddings(ids), (1.0 - mask[:, None, None].float()) * -1e9
            for i, layer in enumerate(bert.encoder.layer, LAYERS - len(bert.encoder.layer)):
                rows = layer(rows, hidden)[0]
                if down is not None and i >= 0:
                    rows = rows + torch.relu(rows @ down[:, i]) @ up[:, i]
            return rows[:, 0]

    graph = Graph().eval()
    dim = graph.bert.config.hidden_size
    two = torch.ones(2, 8, dtype=torch.int64)
    adapter = (torch.zeros(2, LAYERS, dim, RANK), torch.zeros(2, LAYERS, RANK, dim))
    for name, given in (("whole", (two, two)), ("adapted", (two, two, *adapter))):
        names, plain = list(NAMES)[: len(given)], folder / f"{name}.onnx"
        axes = {k: NAMES[k] for k in names}
        how: dict[str, Any] = {"dynamic_axes": axes, "opset_version": OPSET, "dynamo": False}
        with torch.inference_mode():
            torch.onnx.export(graph, given, str(plain), input_names=names, **how)
        small = folder / f"{name}-small.onnx"
        quantize_dynamic(plain, small, weight_type=QuantType.QInt8, per_channel=True)
        for model, precision in ((plain, "fp32"), (small, "int8")):
            session(model, optimised=folder / f"{name}-{precision}.onnx")
            model.unlink()
    draw = np.random.default_rng(0)
    for i in range(tenants):
        shutil.copyfile(folder / "whole-int8.onnx", folder / f"t{i:05}.onnx")
        shapes = {"down": (LAYERS, dim, RANK), "up": (LAYERS, RANK, dim), "head": (dim, LABELS)}
        drawn = {k: draw.normal(0, 0.03, shape).astype(np.float32) for k, shape in shapes.items()}
        save_file(drawn, folder / f"t{i:05}.safetensors")


def session(model: Path, optimised: Path | None = None) -> Any:
    """Open a model that `write` has optimised; or write it to `optimised`. One thread."""
    onnxruntime: Any = importlib.import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    if optimised is not None:
        options.optimized_model_filepath = str(optimised)
    else:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


def compute(asked: list[Any]) -> list[Any]:
    """Return the logits of texts, each given by its ids and its tenant's session and parts."""
    import numpy as np

    tokens = np.zeros((len(asked), max(len(ids) for ids, _ in asked)), np.int64)
    mask = np.zeros_like(tokens)
    for i, (ids, _) in enumerate(asked):
        tokens[i, : len(ids)], mask[i, : len(ids)] = ids, 1
    runs, parts = asked[0][1][0], [part for _, (_, part) in asked]
    named = [given.name for given in runs.get_inputs() if given.name in ("down", "up")]
    more = {name: np.stack([part[name] for part in parts]) for name in named}
    states = runs.run(None, {"ids": tokens, "mask": mask, **more})[0]
    return [row @ part["head"] for row, part in zip(states, parts, strict=True)]


def texts(given: argparse.Namespace) -> Any:
    """Return the application that classifies texts, each by its tenant's model."""
    import numpy as np
    from starlette.responses import Response

    serve: Any = importlib.import_module("ray.serve")

    batched = serve.batch(max_batch_size=given.batch, batch_wait_timeout_s=given.wait_ms / 1e3)
    adapted, folder = given.mode == "adapter", given.folder

    @serve.deployment(num_replicas=REPLICAS, max_ongoing_requests=AT_ONCE, ray_actor_options={"num_cpus": 1})
    class Texts:
        def __init__(self) -> None:
            from tokenizers import Tokenizer

            self._tokenizer = Tokenizer.from_file(str(given.tokenizer))
            self._tokenizer.no_padding()
            self._tokenizer.enable_truncation(128)
            self._one = ThreadPoolExecutor(1)  # computes and loads, so that the event loop stays free
            self._base = session(folder / f"adapted-{given.precision}.onnx") if adapted else None

        def _load(self, tenant: str) -> Any:
            from safetensors.numpy import load_file

            whole = self._base if adapted else session(folder / f"{tenant}.onnx")
            return whole, load_file(folder / f"{tenant}.safetensors")

        @serve.multiplexed(max_num_models_per_replica=given.models)  # type: ignore[untyped-decorator]
        async def model(self, tenant: str) -> Any:
            return await asyncio.get_running_loop().run_in_executor(self._one, self._load, tenant)

        @batched  # type: ignore[untyped-decorator]
        async def together(self, asked: list[Any]) -> list[Any]:
            return await asyncio.get_running_loop().run_in_executor(self._one, compute, asked)

        async def __call__(self, request: Any) -> Any:
            if request.method == "GET":
                return Response(b"{}", media_type="application/json")
            text, tenant = (await request.json())["inputs"], serve.get_multiplexed_model_id()
            asked = self._tokenizer.encode(text).ids, await self.model(tenant)
            if adapted:  # Ray Serve makes a batch of one model's calls; adapters may share one
                serve.context._unset_request_context()
            logits = await (self.together(asked) if given.batch > 1 else self._alone(asked))
            powers = np.exp(logits - logits.max())
            scores = (powers / powers.sum()).tolist()
            answer = {"label": int(logits.argmax()), "scores": scores}
            return Response(json.dumps(answer), media_type="application/json")

        async def _alone(self, asked: Any) -> Any:
            done = asyncio.get_running_loop().run_in_executor(self._one, compute, [asked])
            return (await done)[0]

    app: Any = Texts
    return app.bind()


def router(given: argparse.Namespace) -> Any:
    """Return the application that passes a call on to its tenant's server, and one of /echo back."""
    from starlette.responses import Response

    serve: Any = importlib.import_module("ray.serve")
    servers: dict[str, str] = json.loads(given.servers)

    @serve.deployment(num_replicas=1, max_ongoing_requests=AT_ONCE)
    class Router:
        def __init__(self) -> None:
            self._session: Any = None
            spec: Any = importlib.util.spec_from_file_location("ring", given.ring)
            ring: Any = importlib.util.module_from_spec(spec)
            sys.modules["ring"] = ring  # where its dataclasses look for it
            spec.loader.exec_module(ring)
            self._ranked = ring.ranked

        async def __call__(self, request: Any) -> Any:
            path, body = request.url.path, await request.body()
            if request.method == "GET" or path == "/echo":
                return Response(body or b"{}", media_type="application/json")
            if self._session is None:
                import aiohttp

                self._session = aiohttp.ClientSession()
            to = servers[self._ranked(path.rpartition("/")[2].partition(".")[0], servers)[0]]
            headers = {k: request.headers[k] for k in ("authorization", "content-type")}
            async with self._session.post(to + path, data=body, headers=headers) as answer:
                return Response(await answer.read(), answer.status, media_type="application/json")

    app: Any = Router
    return app.bind()


def run(given: argparse.Namespace) -> None:
    """Run the application until SIGTERM."""
    ray: Any = importlib.import_module("ray")
    serve: Any = importlib.import_module("ray.serve")

    ray.init(
        address="local",
        _node_ip_address=ADDRESS,
        num_cpus=2 * REPLICAS,
        include_dashboard=False,
        object_store_memory=STORE_BYTES,
        log_to_driver=False,
        _temp_dir=os.environ["HOME"],
    )
    serve.start(http_options={"host": "127.0.0.1", "port": given.port})
    serve.run((texts if given.mode in ("dedicated", "adapter") else router)(given), route_prefix="/")
    signal.pause()  # SIGTERM ends Ray, too


def main() -> None:
    parser = argparse.ArgumentParser(description="Ray Serve beside HMI")
    parser.add_argument("mode", choices=("write", "dedicated", "adapter", "route"))
    parser.add_argument("--folder", type=Path, help="of the models")
    parser.add_argument("--source", type=Path, help="the published model, for `write`")
    parser.add_argument("--tenants", type=int, default=0)
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--port", type=int)
    parser.add_argument("--precision", default="int8", choices=("fp32", "int8"))
    parser.add_argument("--models", type=int, default=1, help="models that a replica keeps")
    parser.add_argument("--batch", type=int, default=1, help="calls that may run as one batch")
    parser.add_argument("--wait-ms", type=float, default=0.0, help="time that a batch waits for calls")
    parser.add_argument("--servers", default="{}", help="URLs by id, as JSON")
    parser.add_argument("--ring", help="the file of HMI's function `ranked`")
    given = parser.parse_args()
    if given.mode == "write":
        write(given.folder, given.source, given.tenants)
    else:
        run(given)


if __name__ == "__main__":
    main()
