"""The kernels of encoders' and decoders' layers, compiled for older processors than this one."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from textwrap import indent

import numpy as np
import pytest
from hmi_kernels.encoder import isa

AVX2 = "+sse,+sse2,+sse3,+ssse3,+sse4.1,+sse4.2,+popcnt,+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+lzcnt,+movbe,+cx16"
AVX512 = f"{AVX2},+avx512f,+avx512cd,+avx512bw,+avx512dq,+avx512vl"
OLDER = {
    "haswell": (AVX2, "[0, 3] 6"),
    "skylake-avx512": (AVX512, "[0, 3] 24"),
    "icelake-server": (f"{AVX512},+avx512vnni,+avx512vbmi", "[0, 3] 24"),
}
"""Processors with the features that numba may use, the kinds that they have, and sums of a tile."""
BEGIN = """
import numpy as np
from hmi_kernels.encoder import isa, tile

def draw(*shape):
    return rng.standard_normal(shape).astype(np.float32) * 0.2

rng = np.random.default_rng(0)
"""
ENCODER = """
from hmi_kernels.encoder import ops

dim, inner = 64, 128
sizes = {"qkv": (3 * dim, dim), "out": (dim, dim), "inner": (inner, dim), "outer": (dim, inner)}
matrices = {name: (draw(*size), draw(size[0])) for name, size in sizes.items()}
weights = ops.LayerWeights(**matrices, norm1=(draw(dim), draw(dim)), norm2=(draw(dim), draw(dim)))
layer = ops.pack_layer(kind, weights, 4, 1e-12, first_only=True)
x = draw(90, dim)
out, firsts = np.empty_like(x), np.empty_like(x[:3])
ranks = {"q": 3, "v": 8, "o": 20}
sites = {site: ops.LowRank(draw(rank, dim), draw(dim, rank)) for site, rank in ranks.items()}
sites["after_ffn"] = ops.LowRank(draw(8, dim), draw(dim, 8), draw(8), draw(dim), ops.SILU)
texts = ops.Texts([0, 7, 8, 90], [None, ops.pack_module(layer, [sites]), None])
ops.run_layer(layer, 0, x.ctypes.data, texts, ops.Room(), out.ctypes.data)
ops.run_layer(layer, 0, x.ctypes.data, texts, ops.Room(), firsts.ctypes.data, first_only=True)
found = np.concatenate([out, firsts])
"""
DECODER = """
from hmi_kernels.decoder import ops

dim, inner, heads, kv_heads, head, vocab = 128, 192, 4, 2, 32, 150
sizes = {"out": (dim, dim), "gate": (inner, dim), "inner": (inner, dim), "outer": (dim, inner)}
sizes |= {"norm1": (dim,), "norm2": (dim,), "q_norm": (head,), "k_norm": (head,)}
q, k, v = ((draw(size, dim), draw(size)) for size in (dim, kv_heads * head, kv_heads * head))
weights = ops.LayerWeights(q, k, v, **{name: draw(*size) for name, size in sizes.items()})
layers = ops.pack_layers(kind, [weights] * 2, 2, heads, kv_heads, 1e-5)
lows = {"q": (3, dim, dim), "v": (8, dim, kv_heads * head), "gate": (20, dim, inner), "fo": (8, inner, dim)}
sites = {site: ops.LowRank(draw(rank, a), draw(b, rank)) for site, (rank, a, b) in lows.items()}
modules, pages = [None, ops.pack_module(layers, [sites, {}])], ops.Pages(12, layers)
tables = [np.array([7, 0, 3, 9, 1], np.int64), np.array([2, 11, 5, 4, 8], np.int64)]
angles = np.arange(80, dtype=np.float32)[:, None] * 10000.0 ** -np.linspace(0, 1, head // 2)
turns = np.concatenate([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
room, steps, done = ops.Room(), [], [0, 0]
for counts in ([40, 33], [1, 1], [30, 7], [1, 1]):  # prompts, then single tokens beside a chunk
    rows, x = ops.StepRows(counts, done, tables, modules), draw(sum(counts), dim)
    ops.run_layers(layers, x, rows, turns, pages, room)
    steps.append(x)
    done = [a + b for a, b in zip(done, counts)]
states = np.concatenate(steps)
scores, tops, firsts = ops.scores(
    ops.pack_words(kind, draw(vocab, dim), draw(dim), 1e-5), states, room
)
best = [ops.best(row, 5, 1.0, top) for row, top in zip(scores, tops)]
ids = np.array([ids for ids, _, _ in best], np.float32)
assert (ids == np.argsort(-scores, 1)[:, :5]).all()
assert (ids[:, 0] == firsts).all()
totals = np.array([[*words, total] for _, words, total in best], np.float32)
found = np.concatenate([states.ravel(), scores[:, 1:vocab].ravel(), totals.ravel()])
"""
END = """
print(isa.kinds(), tile.SUMS)
np.save(%r, [layers_of(kind) for kind in (isa.FLOAT, isa.INT16)])
"""
CODES = {"encoder": ENCODER, "decoder": DECODER}
CASES = [
    ("haswell", "encoder"),
    ("skylake-avx512", "encoder"),
    pytest.param("icelake-server", "encoder", marks=pytest.mark.slow),
    ("haswell", "decoder"),
    pytest.param("skylake-avx512", "decoder", marks=pytest.mark.slow),
]


def run(folder: Path, layers: str, **environ: str) -> tuple[str, np.ndarray]:
    out = folder / "out.npy"
    body = indent(f"{CODES[layers]}\nreturn found\n", "    ")
    child = subprocess.run(
        [sys.executable, "-c", f"{BEGIN}\ndef layers_of(kind):\n{body}{END % str(out)}"],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert child.returncode == 0, child.stderr[-2000:]
    return child.stdout.strip(), np.load(out)


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for a cache of each processor: decoders load what encoders have compiled."""
    return tmp_path_factory.mktemp("caches")


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="compiles for x86 and runs it")
@pytest.mark.parametrize(("name", "layers"), CASES)
def test_an_older_processor_compiles_the_kernels_and_gets_the_same_answers(
    name: str, layers: str, caches: Path, tmp_path: Path
) -> None:
    features, wanted = OLDER[name]
    if not all(isa.has(feature.strip("+")) for feature in features.split(",")):
        pytest.skip(f"this processor cannot run code of {name}")
    cache = str(caches / name)
    told, got = run(tmp_path, layers, NUMBA_CPU_NAME=name, NUMBA_CPU_FEATURES=features, NUMBA_CACHE_DIR=cache)
    assert told == wanted
    _, here = run(tmp_path, layers)
    np.testing.assert_allclose(got[0], here[0], atol=1e-5)
    # A number that lies between two integers may fall to the other one.
    np.testing.assert_allclose(got[1], here[1], atol=1e-3)
