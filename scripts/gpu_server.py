"""The server of scripts/gpu_trial.py: its data folder, the server itself, and the calls to it.

python scripts/gpu_server.py home DEVICE WORK          # builds WORK/home, then writes WORK/built.json
python scripts/gpu_server.py serve DEVICE DATA PORT
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import sys
import traceback
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from bench.cases.serve.plan import ServePlan
from bench.harness.home import LABELS, ROOT, Ground, HomeModel, build, key_of, mixed_spec, write_tenants
from hmi.config import Settings
from hmi.execution.cuda import choose
from hmi.execution.cuda.choose import sound_executor
from hmi.execution.cuda.twin import Twin
from hmi.manager import Manager
from hmi.model.network.shape import EncoderShape
from tests.tiny import TINY, random_texts, write_tiny_source

MINILM = EncoderShape(30522, 384, 12, 6, 1536, 512, 2, 1e-12)
TEXTS_A_CALL = 6


def cpu_launcher() -> Any:
    from tests.modules_twin import CpuLauncher

    return CpuLauncher()


def models_of(device: str) -> list[HomeModel]:
    return [HomeModel(f"x{i:05}", i, mixed_spec(i)) for i in range(300 if device == "cuda" else 12)]


def build_home(device: str, work: Path) -> None:
    """The server's data folder: a root of random weights, and tenants of mixed kinds and ranks."""
    error = None
    try:
        # The shape of MiniLM but for words that no text has, each of which would be looked up once.
        source = write_tiny_source(
            work / "source", shape=replace(MINILM, vocab=1000) if device == "cuda" else TINY
        )
        (work / "corpus.txt").write_text("\n".join(random_texts(200, seed=1)))
        plan = ServePlan(tenants=1, corpus=work / "corpus.txt", source=str(source), learn=True)
        data = build(plan, work / "home").data
        with closing(Manager(Settings(data=data, job_workers=0))) as manager:
            write_tenants(manager, Ground.of(manager, ROOT), models_of(device))
    except BaseException:
        error = traceback.format_exc()[-3000:]
    (work / "built.tmp").write_text(json.dumps(error))
    (work / "built.tmp").rename(work / "built.json")


async def asked(port: int, models: list[HomeModel]) -> tuple[np.ndarray, np.ndarray]:
    """The scores of every model, asked alone and all at once: [models, texts · labels] each."""
    texts = random_texts(TEXTS_A_CALL, seed=9)
    every = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", connector=every) as http:

        async def ask(model: HomeModel) -> list[float]:
            headers = {"Authorization": f"Bearer {key_of(model.tenant)}"}
            body = {"inputs": texts, "parameters": {"return": ["scores"]}}
            async with http.post(f"/infer/{model.id}", json=body, headers=headers) as answer:
                answer.raise_for_status()
                outputs = (await answer.json())["outputs"]
            return [output["scores"][label] for output in outputs for label in LABELS]

        first = [await ask(model) for model in models]
        together = await asyncio.gather(*(ask(model) for model in models))
    return np.array(first), np.array(together)


def serve(device: str, data: str, port: str) -> None:
    """`hmi serve`, on the twin if asked to. It ends with the process that has started it."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    from hmi.cli import main
    from hmi.execution import choose as executors

    if device == "twin":

        def on_twin(root: Any, *_: Any) -> Any:
            twin = Twin(1)
            shape, launcher = root.info.shape, twin.launcher(cpu_launcher())
            return sound_executor(root.upper, shape, "fp32", twin, 1 << 20, launcher), "cuda fp32"

        choose.ROUNDS = 1
        executors._on_device = on_twin
    else:
        os.environ["HMI_DEVICE"] = "cuda"
    sys.argv = ["hmi", "serve", "--data", data, "--port", port, "--job-workers", "0"]
    main()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(*sys.argv[2:])
    else:
        build_home(sys.argv[2], Path(sys.argv[3]))
