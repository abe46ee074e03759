"""The encoder kernels compiled for an older processor: AVX2 without AVX-512."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hmi_kernels.encoder import isa

CHILD = """
import numpy as np
from hmi_kernels.encoder import isa, ops, tile

def draw(*shape):
    return rng.standard_normal(shape).astype(np.float32) * 0.2

rng, dim, inner = np.random.default_rng(0), 64, 128
sizes = {"qkv": (3 * dim, dim), "out": (dim, dim), "inner": (inner, dim), "outer": (dim, inner)}
matrices = {name: (draw(*size), draw(size[0])) for name, size in sizes.items()}
weights = ops.LayerWeights(**matrices, norm1=(draw(dim), draw(dim)), norm2=(draw(dim), draw(dim)))
layer = ops.pack_layer(isa.FLOAT, weights, 4, 1e-12)
x = draw(90, dim)
out = np.empty_like(x)
texts = ops.Texts([0, 7, 8, 90], [None] * 3)
ops.run_layer(layer, 0, x.ctypes.data, texts, ops.Room(), out.ctypes.data)
print(isa.kinds(), tile.WIDE)
np.save(%r, out)
"""


def run(folder: Path, **environ: str) -> tuple[str, np.ndarray]:
    out = folder / "out.npy"
    child = subprocess.run(
        [sys.executable, "-c", CHILD % str(out)],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert child.returncode == 0, child.stderr[-2000:]
    return child.stdout.strip(), np.load(out)


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="compiles for AVX2 and runs it")
@pytest.mark.skipif(not isa.has("avx2"), reason="this processor has no AVX2")
def test_a_processor_with_avx2_alone_gets_the_same_answers(tmp_path: Path) -> None:
    older = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    told, got = run(tmp_path, **older)
    assert told == "[0] 1"
    _, wanted = run(tmp_path)
    np.testing.assert_allclose(got, wanted, atol=1e-5)
