"""The encoder kernels compiled for older processors than this one."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hmi_kernels.encoder import isa

AVX2 = "+sse,+sse2,+sse3,+ssse3,+sse4.1,+sse4.2,+popcnt,+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+lzcnt,+movbe,+cx16"
AVX512 = f"{AVX2},+avx512f,+avx512cd,+avx512bw,+avx512dq,+avx512vl"
OLDER = {
    "haswell": (AVX2, "[0] 1"),
    "skylake-avx512": (AVX512, "[0] 4"),
    "icelake-server": (f"{AVX512},+avx512vnni,+avx512vbmi", "[0] 4"),
}
"""Processors with the features that numba may use, the kinds that they have, and vectors of a tile."""
CHILD = """
import numpy as np
from hmi_kernels.encoder import isa, ops, tile

def draw(*shape):
    return rng.standard_normal(shape).astype(np.float32) * 0.2

rng, dim, inner = np.random.default_rng(0), 64, 128
sizes = {"qkv": (3 * dim, dim), "out": (dim, dim), "inner": (inner, dim), "outer": (dim, inner)}
matrices = {name: (draw(*size), draw(size[0])) for name, size in sizes.items()}
weights = ops.LayerWeights(**matrices, norm1=(draw(dim), draw(dim)), norm2=(draw(dim), draw(dim)))
layer = ops.pack_layer(isa.FLOAT, weights, 4, 1e-12, first_only=True)
x = draw(90, dim)
out, firsts = np.empty_like(x), np.empty_like(x[:3])
ranks = {"q": 3, "v": 8, "o": 20}
sites = {site: ops.LowRank(draw(rank, dim), draw(dim, rank)) for site, rank in ranks.items()}
sites["after_ffn"] = ops.LowRank(draw(8, dim), draw(dim, 8), draw(8), draw(dim), ops.SILU)
texts = ops.Texts([0, 7, 8, 90], [None, ops.pack_module(layer, [sites]), None])
ops.run_layer(layer, 0, x.ctypes.data, texts, ops.Room(), out.ctypes.data)
ops.run_layer(layer, 0, x.ctypes.data, texts, ops.Room(), firsts.ctypes.data, first_only=True)
print(isa.kinds(), tile.WIDE)
np.save(%r, np.concatenate([out, firsts]))
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


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="compiles for x86 and runs it")
@pytest.mark.parametrize(
    "name", ["haswell", "skylake-avx512", pytest.param("icelake-server", marks=pytest.mark.slow)]
)
def test_an_older_processor_compiles_the_kernels_and_gets_the_same_answers(name: str, tmp_path: Path) -> None:
    features, wanted = OLDER[name]
    if not all(isa.has(feature.strip("+")) for feature in features.split(",")):
        pytest.skip(f"this processor cannot run code of {name}")
    cache = str(tmp_path / "cache")
    told, got = run(tmp_path, NUMBA_CPU_NAME=name, NUMBA_CPU_FEATURES=features, NUMBA_CACHE_DIR=cache)
    assert told == wanted
    _, here = run(tmp_path)
    np.testing.assert_allclose(got, here, atol=1e-5)
