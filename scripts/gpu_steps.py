"""The steps of scripts/gpu_trial.py, each of which measures or checks one thing on the device.

    python scripts/gpu_steps.py DEVICE FOLDER PIPE STEP…

The repository, kernels/ and tests/kernels/ must be on PYTHONPATH.
DEVICE is `cuda`, or `twin` for the simulation on the CPU, in small, whose figures mean nothing. The results
go to the file descriptor PIPE, one JSON object a line; files go to FOLDER. The process ends after a step that
has failed, since a device that has failed once fails for the rest of the process.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import torch
from hmi_kernels.compile import compile_entry
from hmi_kernels.lookup import cuda_device, cuda_upload, ops

from hmi.bench.report import Row
from hmi.bench.serve import gpu, gpu_limits
from hmi.bench.serve.gpu_timeline import timeline
from hmi.bench.serve.home import ROOT, build
from hmi.bench.serve.http_servers import Arm, running
from hmi.bench.serve.isolation import TOLERANCE
from hmi.bench.serve.plan import Plan
from hmi.bench.serve.tenants import LABELS, Ground, Model, key_of, mixed_spec, write_tenants
from hmi.config import Settings
from hmi.execution.cuda import Device, choose
from hmi.execution.cuda.choose import kernels_for, sound_executor
from hmi.execution.cuda.torch_device import CudaDevice
from hmi.execution.cuda.twin import Twin
from hmi.manager import Manager
from hmi.model.shape import EncoderShape
from tests.hmi.test_fused import BERT, MPNET, upper
from tests.tiny import TINY, random_texts, write_tiny_source

HERE = Path(__file__).resolve().parents[1]
MINILM = EncoderShape(30522, 384, 12, 6, 1536, 512, 2, 1e-12)
MPNET_BASE = EncoderShape(30527, 768, 12, 12, 3072, 512, 0, 1e-5, "mpnet", 32)
SANITIZER_S = 30.0
TEXTS_A_CALL = 6
PACKAGES = ("torch", "cupy-cuda13x", "numba", "numpy", "transformers", "aiohttp", "lmdb", "pydantic")


@dataclass
class Kit:
    """What steps share within a process."""

    device: str
    folder: Path
    notes: list[str] = field(default_factory=list)
    stack: ExitStack = field(default_factory=ExitStack)
    _bench: gpu.Bench | None = None

    @property
    def real(self) -> bool:
        return self.device == "cuda"

    @property
    def bench(self) -> gpu.Bench:
        """The benchmark's executor, PLOT and tenants."""
        if self._bench is None:
            compile_entry("lookup")
            sizes = gpu.Sizes() if self.real else gpu.TINY
            precision = "bf16" if self.real else "fp32"
            device = self.new_device()
            made = gpu.opened(device, sizes, precision, self.launcher(device))
            self._bench = self.stack.enter_context(made)
            self.notes.append(f"modules by {made_by(self._bench.executor)}")
        return self._bench

    def new_device(self) -> Device:
        return CudaDevice() if self.real else Twin(1)

    def launcher(self, device: Device) -> Any:
        """The kernels of modules on a device."""
        if isinstance(device, Twin):
            return device.launcher(cpu_launcher())
        return kernels_for("bench")


def cpu_launcher() -> Any:
    from tests.modules_twin import CpuLauncher

    return CpuLauncher()


def made_by(executor: Any) -> str:
    return f"{executor.ways.name}, graphs {'on' if executor.graphs.on else 'off'}"


def card(kit: Kit) -> Iterator[Row]:
    """The card, its driver, and the versions of packages; what `hmi doctor` says of them."""
    for name in PACKAGES:
        try:
            kit.notes.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            kit.notes.append(f"{name} is not installed")
    kit.notes.append(f"Python {sys.version.split()[0]}")
    command = [sys.executable, "-m", "hmi", "doctor", "--json", "--data", str(kit.folder / "none")]
    told = subprocess.run(command, cwd=HERE, capture_output=True, text=True)
    for finding in json.loads(told.stdout)["findings"]:
        if finding["check"] in ("path", "processor"):
            kit.notes.append(f"doctor: {finding['text']}")
    if not kit.real:
        kit.notes.append("the device is the twin")
        return
    if shutil.which("nvidia-smi") is not None:
        query = ["nvidia-smi", "--query-gpu=driver_version,clocks.sm,clocks.mem", "--format=csv,noheader"]
        told = subprocess.run(query, capture_output=True, text=True)
        kit.notes.append(f"driver and clocks: {told.stdout.strip()}")
    about = torch.cuda.get_device_properties(0)
    kit.notes.append(f"{about.name}, compute capability {about.major}.{about.minor}")
    yield Row("card_memory_gb", round(about.total_memory / 1e9, 1), "GB")
    yield Row("card_multiprocessors", about.multi_processor_count, "")


def kernels(kit: Kit) -> Iterator[Row]:
    """Every kernel against its reference; whole executors of both shapes; then the sanitizer."""
    import test_kernel_modules

    yield Row("lookup_kernel_cases", lookups_equal(lookup_device(kit), dims=(7, 36)), "cases, bit for bit")
    launcher = kernels_for("bench") if kit.real else cpu_launcher()
    for kinds in test_kernel_modules.ON_DEVICES:
        test_kernel_modules.check_on("cuda" if kit.real else "cpu", kinds, launcher)
    yield Row("modules_kernel_cases", len(test_kernel_modules.ON_DEVICES), "cases")
    for shape in (MINILM, MPNET_BASE) if kit.real else (BERT, MPNET):
        device = kit.new_device()
        layers = gpu.layers_of(shape, shape.layers // 2) if kit.real else upper(shape)
        found = sound_executor(layers, shape, "bf16", device, 64 << 20, kit.launcher(device))
        kit.notes.append(f"{shape.kind}: modules by {made_by(found)}")
    yield sanitized(kit)


def lookup_device(kit: Kit) -> Any:
    """The device as look-ups know it."""
    if kit.real:
        return cuda_device.CudaDevice()
    import cuda_twin

    with tempfile.TemporaryDirectory() as folder:
        return cuda_twin.Twin(cuda_twin.compile_twin(Path(folder)))


def lookups_equal(device: Any, dims: tuple[int, ...]) -> int:
    """Compare look-ups with the reference, and return how many. Raises AssertionError."""
    import cudalab
    import kernellab

    count, rng = 0, np.random.default_rng(1)
    for dtype in (0, 1, 2):
        for dim in dims:
            chain, runs = kernellab.random_runs(rng, [dtype, 2, dtype], dim, cudalab.VOCAB, 3)
            table = cuda_upload.upload(ops.level_table(runs, 3, dim), device)
            texts = cudalab.random_texts(rng, (40, 0, 1, 2, 3, 9))
            for half in (False, True):
                cudalab.same_as_reference(table, chain, texts, None, half)
                count += 1
    return count


def sanitized(kit: Kit) -> Row:
    """Run the smallest look-ups under compute-sanitizer."""
    name, tool = "sanitizer_errors", shutil.which("compute-sanitizer")
    if not kit.real or tool is None:
        why = "the twin has guard pages of its own" if not kit.real else "compute-sanitizer is not installed"
        return Row(name, None, "errors", 0, False, why=why)
    command = [tool, "--tool", "memcheck", "--error-exitcode", "9", sys.executable, __file__, "smallest"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SANITIZER_S)
    except subprocess.TimeoutExpired:
        return Row(name, None, "errors", 0, False, why=f"it ran longer than {SANITIZER_S:.0f} s")
    (kit.folder / "sanitizer.txt").write_text(done.stdout + done.stderr)
    found = re.search(r"ERROR SUMMARY: (\d+) error", done.stdout)
    if found is None:
        return Row(name, None, "errors", 0, False, why=(done.stdout + done.stderr).strip()[-300:])
    return Row(name, int(found[1]), "errors", 0, False)


def tests(kit: Kit) -> Iterator[Row]:
    """The tests marked `gpu`."""
    where = ["tests/kernels/test_kernel_cuda.py", "tests/kernels/test_kernel_modules.py"]
    if kit.real:
        where += map(str, (HERE / "tests" / "hmi").glob("test_cuda_*.py"))
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", "-rs", *where]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True)
    (kit.folder / "tests.txt").write_text(done.stdout[-200_000:] + done.stderr[-20_000:])
    last = done.stdout.strip().rpartition("\n")[2]
    counts = {what: int(n) for n, what in re.findall(r"(\d+) (passed|failed|error|skipped)", last)}
    if not counts:
        raise RuntimeError(f"pytest: {last or done.stderr.strip()[-300:]}")
    kit.notes.append(f"pytest: {last}")
    yield Row("tests_passed", counts.get("passed", 0), "tests", 1 if kit.real else None)
    yield Row("tests_skipped", counts.get("skipped", 0), "tests")
    yield Row("tests_failed", counts.get("failed", 0) + counts.get("error", 0), "tests", 0, False)


def server(kit: Kit) -> Iterator[Row]:
    """A server on the device: tenants of mixed kinds and ranks, each asked alone and all at once."""
    count = 300 if kit.real else 12
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = write_tiny_source(folder / "source", shape=MINILM if kit.real else TINY)
        (folder / "corpus.txt").write_text("\n".join(random_texts(200, seed=1)))
        plan = Plan(tenants=1, corpus=folder / "corpus.txt", source=str(source), learn=True)
        data = build(plan, folder / "home").data
        models = [Model(f"x{i:05}", i, mixed_spec(i)) for i in range(count)]
        with closing(Manager(Settings(data=data, job_workers=0))) as manager:
            for _ in write_tenants(manager, Ground.of(manager, ROOT), models):
                pass
        command = (sys.executable, __file__, "serve", kit.device, str(data), "{port}")
        arm = Arm("server", command, "/readyz", environment={"HMI_STREAMS": "2"})
        begun = time.monotonic()
        with running(arm, kit.folder) as serving:
            yield Row("server_ready_s", round(time.monotonic() - begun, 2), "s")
            first, together = asyncio.run(asked(serving.port, models))
            found = re.search(r'hmi_executor\{[^}]*executor="([^"]+)"[^}]*\} 1', serving.get("/metrics"))
    executor = found[1] if found else "none"
    kit.notes.append(f"executor: {executor}")
    apart = np.abs(together[:, None] - first[None]).max(-1)
    own, precision = apart.diagonal(), executor.rpartition(" ")[2]
    yield Row("server_on_device", int(executor.startswith("cuda ")), "", 1)
    yield Row("server_answers", together.size, "scores of as many tenants at once", runs=count)
    off = float(f"{own.max():.2g}")
    yield Row("server_batched_less_alone", off, "of a score", TOLERANCE.get(precision, 0.05), False, count)
    others = int((apart.argmin(1) != np.arange(count)).sum())
    yield Row("server_answers_of_another_tenant", others, "tenants", 0, False, count)


async def asked(port: int, models: list[Model]) -> tuple[np.ndarray, np.ndarray]:
    """The scores of every model, asked alone and all at once: [models, texts · labels] each."""
    texts = random_texts(TEXTS_A_CALL, seed=9)
    every = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", connector=every) as http:

        async def ask(model: Model) -> list[float]:
            headers = {"Authorization": f"Bearer {key_of(model.tenant)}"}
            body = {"inputs": texts, "parameters": {"return": ["scores"]}}
            async with http.post(f"/infer/{model.id}", json=body, headers=headers) as answer:
                answer.raise_for_status()
                outputs = (await answer.json())["outputs"]
            return [output["scores"][label] for output in outputs for label in LABELS]

        first = [await ask(model) for model in models]
        together = await asyncio.gather(*(ask(model) for model in models))
    return np.array(first), np.array(together)


def overlaps(kit: Kit) -> Iterator[Row]:
    """A timeline of what the device does at the same time."""
    yield from timeline(kit.bench, kit.folder / "timeline.json")


def throughput(kit: Kit) -> Iterator[Row]:
    """Many tenants beside one, and beside dedicated models."""
    yield from gpu.flat(kit.bench)
    yield from gpu.dedicated(kit.bench)


def ablation(kit: Kit) -> Iterator[Row]:
    """The paper's table 6."""
    yield from gpu.ablation(kit.bench)


def limits(kit: Kit) -> Iterator[Row]:
    """Look-up, layers and modules beside what the device can do."""
    if not kit.real:
        gpu_limits.LOOKUP_TOKENS, gpu_limits.LOOKUP_ENTRIES, gpu_limits.COPY_BYTES = 300, 64, 1 << 12
        gpu_limits.LOOKUP_DIM = 8
    yield from gpu.modules(kit.bench)
    yield from gpu_limits.lookups(kit.bench.device, lookup_device(kit), kit.bench.sizes.runs)
    yield from gpu.device_limits(kit.bench)


STEPS: dict[str, Callable[[Kit], Iterator[Row]]] = {
    "card": card,
    "kernels": kernels,
    "tests": tests,
    "server": server,
    "timeline": overlaps,
    "throughput": throughput,
    "ablation": ablation,
    "limits": limits,
}


class Heard(logging.Handler):
    """Keeps what the choice of executors logs."""

    def __init__(self, notes: list[str]) -> None:
        super().__init__(logging.DEBUG)
        self.notes = notes

    def emit(self, record: logging.LogRecord) -> None:
        self.notes.append(self.format(record)[-2000:])


def serve(device: str, data: str, port: str) -> None:
    """`hmi serve`, on the twin if asked to."""
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


def work(device: str, folder: Path, pipe: int, names: list[str]) -> None:
    """Run steps, and tell of each begin and end."""
    kit = Kit(device, folder)
    if not kit.real:
        choose.ROUNDS = 1
    log = logging.getLogger("hmi.execution")
    log.setLevel(logging.DEBUG)
    with os.fdopen(pipe, "w", buffering=1) as out, kit.stack:

        def tell(**what: Any) -> None:
            out.write(json.dumps(what) + "\n")

        for name in names:
            tell(begins=name)
            begun, kit.notes = time.monotonic(), []
            log.addHandler(heard := Heard(kit.notes))
            rows, error = [], None
            try:
                for row in STEPS[name](kit):
                    rows.append(row)
                    tell(row=asdict(row) | {"ok": row.ok})
            except BaseException:
                error = traceback.format_exc()[-6000:]
            log.removeHandler(heard)
            tell(ended=name, seconds=round(time.monotonic() - begun, 2), notes=kit.notes, error=error)
            if error is not None:
                os._exit(1)  # a device that has failed may never let go


if __name__ == "__main__":
    if sys.argv[1] == "smallest":
        lookups_equal(cuda_device.CudaDevice(), dims=(7,))
    elif sys.argv[1] == "serve":
        serve(*sys.argv[2:])
    else:
        work(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
