"""The steps of scripts/gpu_trial.py, each of which measures or checks one thing on the device.

    python scripts/gpu_steps.py DEVICE FOLDER WORK PIPE STEP…

The repository, kernels/ and tests/kernels/ must be on PYTHONPATH. DEVICE is `cuda`, or `twin` for the
simulation on the CPU, in small, whose figures mean nothing. The results go to the file descriptor PIPE, one
JSON object a line. Files go to FOLDER, others that processes share to WORK. It ends after a step that
failed, since a device that has failed once fails until the process ends.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_server import MINILM, asked, cpu_launcher, models_of
from hmi_kernels.compile import compile_entry
from hmi_kernels.lookup import cuda, cuda_upload, ops

from bench.cases.serve import gpu, gpu_bench, gpu_limits
from bench.cases.serve.isolation import TOLERANCE
from bench.harness.report import Figure
from bench.harness.server import ServerArm, running
from hmi.execution.cuda import Device, choose
from hmi.execution.cuda.choose import kernels_for, sound_decoder, sound_executor
from hmi.execution.cuda.torch_device import TorchDevice
from hmi.execution.cuda.twin import Twin
from hmi.model.network.shape import DecoderShape, EncoderShape
from hmi.model.sources.generative_root import UpperDecoder

HERE = Path(__file__).resolve().parents[1]
MPNET_BASE = EncoderShape(30527, 768, 12, 12, 3072, 512, 0, 1e-5, "mpnet", 32)
SMALL = (
    EncoderShape(9, 64, 4, 4, 128, 64, 2, 1e-12),
    EncoderShape(9, 64, 2, 4, 128, 64, 0, 1e-5, "mpnet", 32),
)
SMOLLM2 = DecoderShape(49153, 576, 9, 3, 64, 30, 1536, 8192, 1e-5, 1e5, tied=True)
SMALL_LLAMA = DecoderShape(150, 128, 4, 2, 32, 3, 192, 512, 1e-5, 1e4, tied=True)
SANITIZER_S = 30.0
PACKAGES = ("torch", "cupy-cuda13x", "numba", "numpy", "transformers", "aiohttp", "lmdb", "pydantic")


@dataclass
class Kit:
    """What steps share within a process."""

    device: str
    folder: Path
    """For files that are kept."""
    work: Path
    """For others, such as the server's data folder, which another process builds."""
    note: Callable[[str], None]
    """Tells what is no figure."""
    stack: ExitStack = field(default_factory=ExitStack)
    _bench: gpu_bench.GpuBench | None = None

    @property
    def real(self) -> bool:
        return self.device == "cuda"

    @property
    def bench(self) -> gpu_bench.GpuBench:
        """The benchmark's executor, PLOT and tenants."""
        if self._bench is None:
            compile_entry("lookup")
            sizes = gpu_bench.Sizes() if self.real else gpu_bench.TINY
            precision = "bf16" if self.real else "fp32"
            device = self.new_device()
            made = gpu_bench.opened(device, sizes, precision, self.launcher(device))
            self._bench = self.stack.enter_context(made)
            self.note(f"modules by {made_by(self._bench.executor)}")
        return self._bench

    def new_device(self) -> Device:
        return TorchDevice(kernels=kernels_for("bench")) if self.real else Twin(1)

    def launcher(self, device: Device) -> Any:
        """The kernels of modules on a device."""
        if isinstance(device, Twin):
            return device.launcher(cpu_launcher())
        return kernels_for("bench")


def made_by(executor: Any) -> str:
    return f"{executor.ways.name}, graphs {'on' if executor.graphs.on else 'off'}"


def card(kit: Kit) -> Iterator[Figure]:
    """The card, its driver, and the versions of packages; what `hmi doctor` says of them."""
    if kit.real:
        about = torch.cuda.get_device_properties(0)
        kit.note(f"{about.name}, compute capability {about.major}.{about.minor}")
        yield Figure("card_memory_gb", round(about.total_memory / 1e9, 1), "GB")
        yield Figure("card_multiprocessors", about.multi_processor_count, "")
    else:
        kit.note("the device is the twin")
    for name in PACKAGES:
        try:
            kit.note(f"{name} {version(name)}")
        except PackageNotFoundError:
            kit.note(f"{name} is not installed")
    kit.note(f"Python {sys.version.split()[0]}")
    command = [sys.executable, "-m", "hmi", "doctor", "--json", "--data", str(kit.folder / "none")]
    told = subprocess.run(command, cwd=HERE, capture_output=True, text=True)
    for finding in json.loads(told.stdout)["findings"]:
        if finding["check"] in ("path", "processor"):
            kit.note(f"doctor: {finding['text']}")
    if shutil.which("nvidia-smi") is not None:
        query = ["nvidia-smi", "--query-gpu=driver_version,clocks.sm,clocks.mem", "--format=csv,noheader"]
        told = subprocess.run(query, capture_output=True, text=True)
        kit.note(f"driver and clocks: {told.stdout.strip()}")


def kernels(kit: Kit) -> Iterator[Figure]:
    """Every kernel against its reference, and whole executors of both shapes."""
    import test_kernel_modules

    yield Figure("lookup_kernel_cases", lookups_equal(lookup_device(kit), dims=(7, 36)), "cases, bit for bit")
    launcher = kernels_for("bench") if kit.real else cpu_launcher()
    for kinds in test_kernel_modules.ON_DEVICES:
        test_kernel_modules.check_on("cuda" if kit.real else "cpu", kinds, launcher)
    yield Figure("modules_kernel_cases", len(test_kernel_modules.ON_DEVICES), "cases")
    for shape in (MINILM, MPNET_BASE) if kit.real else SMALL:
        device = kit.new_device()
        layers = gpu_bench.layers_of(shape, shape.layers // 2)
        found = sound_executor(layers, shape, "bf16", device, 64 << 20, kit.launcher(device))
        kit.note(f"{shape.kind}: modules by {made_by(found)}")
    device, upper = kit.new_device(), UpperDecoder(SMOLLM2 if kit.real else SMALL_LLAMA, 0).eval()
    writes = sound_decoder(upper.requires_grad_(False), 64, "bf16", device, 64 << 20, kit.launcher(device))
    kit.note(f"a language model: modules by {writes.ways.name}")


def lookup_device(kit: Kit) -> Any:
    """The device as look-ups know it."""
    if kit.real:
        return cuda.CudaDevice()
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


def sanitizer(kit: Kit) -> Iterator[Figure]:
    """The smallest look-ups under compute-sanitizer, which refuses some machines."""
    name, tool = "sanitizer_errors", shutil.which("compute-sanitizer")
    if not kit.real or tool is None:
        why = "compute-sanitizer is not installed" if kit.real else "the twin has guard pages of its own"
        yield Figure(name, None, "errors", 0, False, why=why)
        return
    command = [tool, "--tool", "memcheck", sys.executable, __file__, "smallest"]
    with (kit.folder / "sanitizer.txt").open("w+") as out:
        child = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
        try:
            child.wait(SANITIZER_S)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            yield Figure(name, None, "errors", 0, False, why=f"it ran longer than {SANITIZER_S:.0f} s")
            return
        out.seek(0)
        told = out.read()
    found = re.search(r"ERROR SUMMARY: (\d+) error", told)
    why = None if found else told.strip()[-300:]
    yield Figure(name, int(found[1]) if found else None, "errors", 0, False, why=why)


def tests(kit: Kit) -> Iterator[Figure]:
    """The tests marked `gpu`."""
    where = ["tests/kernels/test_kernel_cuda.py", "tests/kernels/test_kernel_modules.py"]
    if kit.real:
        for name in ("test_cuda_*.py", "test_decoding_*.py"):
            found = sorted(map(str, (HERE / "tests" / "hmi" / "execution").glob(name)))
            assert found, f"no {name}: the tests have moved"
            where += found
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", "-v", "-rs", *where]
    log = kit.folder / "tests.txt"
    with log.open("w") as out:
        subprocess.run([*command, "-o", "faulthandler_timeout=30"], cwd=HERE, stdout=out, stderr=out)
    last = log.read_text().strip().rpartition("\n")[2]
    counts = {what: int(n) for n, what in re.findall(r"(\d+) (passed|failed|error|skipped)", last)}
    if not counts:
        raise RuntimeError(f"pytest: {last}")
    kit.note(f"pytest: {last}")
    yield Figure("tests_passed", counts.get("passed", 0), "tests", 1 if kit.real else None)
    yield Figure("tests_skipped", counts.get("skipped", 0), "tests")
    yield Figure("tests_failed", counts.get("failed", 0) + counts.get("error", 0), "tests", 0, False)


def server(kit: Kit) -> Iterator[Figure]:
    """A server on the device: tenants of mixed kinds and ranks, each asked alone and all at once."""
    while not (built := kit.work / "built.json").exists():
        time.sleep(0.1)
    if (error := json.loads(built.read_text())) is not None:
        raise RuntimeError(f"the data folder was not built: {error}")
    models, data = models_of(kit.device), kit.work / "home" / "data"
    command = (
        sys.executable,
        str(HERE / "scripts" / "gpu_server.py"),
        "serve",
        kit.device,
        str(data),
        "{port}",
    )
    arm = ServerArm("server", command, "/readyz", environment={"HMI_STREAMS": "2"})
    begun = time.monotonic()
    with running(arm, kit.folder) as serving:
        yield Figure("server_ready_s", round(time.monotonic() - begun, 2), "s")
        first, together = asyncio.run(asked(serving.port, models))
        found = re.search(r'hmi_executor\{[^}]*executor="([^"]+)"[^}]*\} 1', serving.get("/metrics"))
    executor = found[1] if found else "none"
    kit.note(f"executor: {executor}")
    apart = np.abs(together[:, None] - first[None]).max(-1)
    own, precision, count = apart.diagonal().copy(), executor.rpartition(" ")[2], len(models)
    np.fill_diagonal(apart, np.inf)
    yield Figure("server_on_device", int(executor.startswith("cuda ")), "", 1)
    yield Figure("server_answers", together.size, "scores of as many tenants at once", runs=count)
    off = float(f"{own.max():.2g}")
    yield Figure("server_batched_less_alone", off, "of a score", TOLERANCE.get(precision, 0.05), False, count)
    # Rounding may bring an answer nearer to a very similar tenant's, so another's must be much nearer.
    others = int((apart.min(1) < own / 4).sum())
    yield Figure("server_answers_of_another_tenant", others, "tenants", 0, False, count)
    yield Figure("server_nearest_two_tenants", float(f"{apart.min():.2g}"), "of a score", runs=count)


def overlaps(kit: Kit) -> Iterator[Figure]:
    """A timeline of what the device does at the same time."""
    yield from gpu.timeline(kit.bench, kit.folder / "timeline.json")


def throughput(kit: Kit) -> Iterator[Figure]:
    """Many tenants beside one, and beside dedicated models."""
    yield from gpu.dedicated(kit.bench)
    yield from gpu.flat(kit.bench)


def ablation(kit: Kit) -> Iterator[Figure]:
    """The paper's table 6."""
    yield from gpu.ablation(kit.bench)


def limits(kit: Kit) -> Iterator[Figure]:
    """Look-up, layers and modules beside what the device can do."""
    if not kit.real:
        gpu_limits.LOOKUP_TOKENS, gpu_limits.LOOKUP_ENTRIES, gpu_limits.COPY_BYTES = 300, 64, 1 << 12
        gpu_limits.LOOKUP_DIM = 8
    yield from gpu.modules(kit.bench)
    yield from gpu_limits.lookups(kit.bench.device, lookup_device(kit), kit.bench.sizes.runs)
    yield from gpu_limits.limits(kit.bench)


STEPS: dict[str, Callable[[Kit], Iterator[Figure]]] = {
    "card": card,
    "kernels": kernels,
    "tests": tests,
    "server": server,
    "timeline": overlaps,
    "throughput": throughput,
    "ablation": ablation,
    "limits": limits,
    "sanitizer": sanitizer,
}


class Heard(logging.Handler):
    """Tells what the choice of executors logs."""

    def __init__(self, note: Callable[[str], None]) -> None:
        super().__init__(logging.DEBUG)
        self.note = note

    def emit(self, record: logging.LogRecord) -> None:
        self.note(self.format(record)[-2000:])


def work(device: str, folder: Path, shared: Path, pipe: int, names: list[str]) -> None:
    """Run steps, and tell of each begin and end, and of what is found, at once."""
    with os.fdopen(pipe, "w", buffering=1) as out:

        def tell(**what: Any) -> None:
            out.write(json.dumps(what) + "\n")

        kit = Kit(device, folder, shared, lambda text: tell(note=text))
        if not kit.real:
            choose.ROUNDS = 1
        log = logging.getLogger("hmi.execution")
        log.setLevel(logging.DEBUG)
        log.addHandler(Heard(kit.note))
        for name in names:
            tell(begins=name)
            begun, error = time.monotonic(), None
            try:
                for row in STEPS[name](kit):
                    tell(row=asdict(row) | {"ok": row.ok})
            except BaseException:
                error = traceback.format_exc()[-6000:]
            tell(ended=name, seconds=round(time.monotonic() - begun, 2), error=error)
            if error is not None:
                break
        out.flush()
        os._exit(0)  # a device that has failed may never let go


if __name__ == "__main__":
    if sys.argv[1] == "smallest":
        lookups_equal(cuda.CudaDevice(), dims=(7,))
    else:
        work(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), sys.argv[5:])
