"""The CUDA look-up equals the reference bit for bit, on the CPU twin and on a GPU where there is one."""

from __future__ import annotations

import ctypes
import itertools

import cuda_twin
import cudalab as lab
import kernellab
import numpy as np
import pytest
from cuda_twin import put
from cudalab import VOCAB
from hmi_kernels.lookup import cuda, cuda_upload, layout, ops, reference
from hypothesis import given, settings
from hypothesis import strategies as st
from kernellab import Steps

cases = given(
    seed=st.integers(0, 1 << 30),
    n=st.integers(1, 5),
    window=st.sampled_from(["centred", "causal"]),
    dtypes=st.lists(st.sampled_from([0, 1, 2]), min_size=1, max_size=4),
    dim=st.sampled_from([1, 4, 5, 32, 66]),
    lengths=st.lists(st.integers(0, 30), min_size=0, max_size=8),
    steps=st.none() | st.lists(st.tuples(st.integers(1, 5), st.none() | st.integers(0, 3)), max_size=7),
    half=st.booleans(),
    backwards=st.booleans(),
    threads=st.sampled_from([1, 7, 32, 128]),
    blocks=st.none() | st.integers(1, 5),
)


@settings(max_examples=150, deadline=None)
@cases
def test_equals_the_reference(
    library: ctypes.CDLL,
    seed: int,
    n: int,
    window: layout.Window,
    dtypes: list[int],
    dim: int,
    lengths: list[int],
    steps: Steps,
    half: bool,
    backwards: bool,
    threads: int,
    blocks: int | None,
) -> None:
    rng = np.random.default_rng(seed)
    twin = cuda_twin.Twin(library, threads, backwards)
    twin.blocks = blocks
    chain, runs = kernellab.random_runs(rng, dtypes, dim, VOCAB, n, window)
    steps = None if steps is None else [(order, depth) for order, depth in steps if order <= n]
    table = cuda_upload.upload(ops.level_table(runs, n, dim, steps, window), twin)
    lab.same_as_reference(table, chain, lab.random_texts(rng, lengths), steps, half, window)


@pytest.mark.parametrize("window", ["centred", "causal"])
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("dtype", [0, 1, 2])
def test_every_width_and_type_on_each_device(
    device: cuda.LookupDevice, dtype: int, n: int, half: bool, window: layout.Window
) -> None:
    rng = np.random.default_rng(n)
    for dim in (7, 36):
        chain, runs = kernellab.random_runs(rng, [dtype, 2, dtype], dim, VOCAB, n, window)
        for steps in (None, [(n, 0), (max(1, n - 1), None), (1, 1), (1, 0)]):
            table = cuda_upload.upload(ops.level_table(runs, n, dim, steps, window), device)
            texts = lab.random_texts(rng, (40, 0, 1, 2, 3, 9))
            lab.same_as_reference(table, chain, texts, steps, half, window)
    lab.same_as_reference(table, chain, [], steps, half, window)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_positions_with_all_their_ngrams(device: cuda.LookupDevice, n: int) -> None:
    """With every n-gram of three tokens stored, each position has entries of all orders; any steps agree."""
    rng = np.random.default_rng(n)
    entries: dict[tuple[int, ...], np.ndarray] = {}
    runs = []
    for order in range(1, n + 1):
        ngrams = np.array(list(itertools.product(range(3), repeat=order)), np.uint32)
        vectors = rng.standard_normal((len(ngrams), layout.roles(n, order), 12)).astype(np.float32)
        rows = ops.encode(ngrams, vectors, 2, n)
        runs.append(kernellab.split_run(rng, rows, order, 2, vocab=VOCAB))
        entries |= {tuple(map(int, g)): v for g, v in zip(ngrams, vectors, strict=True)}
    texts = [rng.integers(0, 3, length).tolist() for length in (30, 0, 1, 2, 3, 4, 5)]
    orders = range(1, n + 1)
    for chosen in [[order] for order in orders] + [list(orders), list(reversed(orders)), []]:
        steps: Steps = [(order, None) for order in chosen]
        table = cuda_upload.upload(ops.level_table(runs, n, 12, steps), device)
        lab.same_as_reference(table, [entries], texts, steps, False)


@pytest.mark.parametrize("n", [2, 3, 5])
def test_alone_equals_batched(device: cuda.LookupDevice, n: int) -> None:
    rng = np.random.default_rng(n)
    _, runs = kernellab.random_runs(rng, [0, 1], 16, VOCAB, n)
    table = cuda_upload.upload(ops.level_table(runs, n, 16), device)
    texts = lab.random_texts(rng, (300, 1, 7, 8, 9, 0, 2, 64))
    together = lab.run(table, texts)
    alone = [lab.run(table, [text]) for text in texts]
    for part in range(3):
        assert np.array_equal(together[part], np.concatenate([answer[part] for answer in alone]))


def test_an_answer_may_begin_anywhere(device: cuda.LookupDevice) -> None:
    rng = np.random.default_rng(1)
    _, runs = kernellab.random_runs(rng, [0], 8, VOCAB)
    table = cuda_upload.upload(ops.level_table(runs, 3, 8), device)
    tokens, offsets = kernellab.ragged(lab.random_texts(rng, (20,)))
    order, depth = device.empty((20,), np.int8), device.empty((20,), np.int16)
    answers = []
    for shift in (0, 1):
        for kind in (np.float32, np.uint16, np.int16):
            out = device.empty((20 * 8 + 1,), kind)[shift : shift + 160].reshape(20, 8)
            cuda.lookup(table, put(device, tokens), put(device, offsets), VOCAB, out, order, depth)
            answers.append(device.read(out).tobytes())
    assert answers[:3] == answers[3:]
    assert answers[1] == answers[2]


@pytest.mark.gpu
def test_torch_tensors_and_foreign_streams() -> None:
    torch = pytest.importorskip("torch")
    try:
        device = cuda.CudaDevice()
    except cuda.NoDevice as error:
        pytest.skip(str(error))
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    with pytest.raises(cuda.NoDevice, match="choose 0"):
        cuda.CudaDevice(4096)
    rng = np.random.default_rng(2)
    chain, runs = kernellab.random_runs(rng, [0, 1], 32, VOCAB)
    table = cuda_upload.upload(ops.level_table(runs, 3, 32), device)
    texts = lab.random_texts(rng, (30, 5))
    expected = reference.lookup(chain, texts, 32)[0]
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        tokens, offsets = (torch.from_numpy(a).cuda() for a in kernellab.ragged(texts))
        out = torch.empty((35, 32), dtype=torch.bfloat16, device="cuda")
        order = torch.empty(35, dtype=torch.int8, device="cuda")
        depth = torch.empty(35, dtype=torch.int16, device="cuda")
        cuda.lookup(
            table, tokens, offsets, VOCAB, out.view(torch.int16), order, depth, stream=stream.cuda_stream
        )
    assert np.array_equal(out.view(torch.int16).cpu().numpy().view(np.uint16), reference.bfloat16(expected))
    with pytest.raises(ValueError, match="not in device memory"):
        cuda.lookup(table, tokens.cpu().numpy(), offsets, VOCAB, out.view(torch.int16), order, depth)
