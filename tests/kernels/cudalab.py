"""Look-ups on a device: arrays in its memory, the kernel's answer, and what it must equal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from cuda_twin import put
from hmi_kernels.lookup import cuda, ops, reference
from hmi_kernels.lookup.layout import Window
from kernellab import MULTIPLIER, Chain, Steps, ragged, view

VOCAB = 7


def random_texts(rng: np.random.Generator, lengths: Sequence[int]) -> list[list[int]]:
    """One text of random tokens for each length."""
    return [rng.integers(0, VOCAB, length).tolist() for length in lengths]


def run(
    table: cuda.DeviceTable, texts: Sequence[Sequence[int]], half: bool = False, stream: int | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Look texts up: the vectors' bits (uint32, or uint16 if `half` asks for bfloat16), orders and depths."""
    tokens, offsets = ragged(texts)
    total = tokens.size
    empty = table.device.empty
    out = empty((total, table.dim), np.uint16 if half else np.float32)
    order, depth = empty((total,), np.int8), empty((total,), np.int16)
    tokens_there, offsets_there = put(table.device, tokens), put(table.device, offsets)
    cuda.lookup(table, tokens_there, offsets_there, VOCAB, out, order, depth, stream=stream)
    answer = [table.device.read(a) for a in (out, order, depth)]
    return answer[0].view(np.uint16 if half else np.uint32), answer[1], answer[2]


def same_as_reference(
    table: cuda.DeviceTable,
    chain: Chain,
    texts: Sequence[Sequence[int]],
    steps: Steps,
    half: bool,
    window: Window = "centred",
) -> None:
    """Assert that the device's answer is the reference's: vectors bit for bit, orders and depths."""
    bits, order, depth = run(table, texts, half)
    expected, orders, depths = reference.lookup(chain, texts, table.dim, table.n, steps, window)
    wanted = reference.bfloat16(expected) if half else expected.view(np.uint32)
    assert np.array_equal(bits, wanted)
    assert order.tolist() == orders
    assert depth.tolist() == depths


def direct_run(parts: list[np.ndarray], slots: list[int], depth: int = 0, shift: int = 3) -> ops.IndexRun:
    """A direct index with these slots over rows of single tokens, whether they belong together or not."""
    return ops.IndexRun(1, depth, 0, np.array(slots, np.uint64), shift, True, tuple(map(view, parts)))


def mix(key: int) -> int:
    """The hash of a hash index, as the kernels compute it."""
    for _ in range(2):
        key = (key ^ key >> 32) * MULTIPLIER % (1 << 64)
    return key ^ key >> 32
