"""The CUDA look-up equals the reference to the bit: its source run on the CPU, and on a GPU where there is
one."""

from __future__ import annotations

import ctypes
import itertools
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import cuda_twin
import numpy as np
import pytest
from hmi_kernels.lookup import cuda, cuda_device, cuda_upload, layout, ops, reference
from hypothesis import given, settings
from hypothesis import strategies as st

Chain = list[dict[tuple[int, ...], np.ndarray]]
Steps = list[tuple[int, int | None]]
VOCAB = 7


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    if cuda_twin.compiler() is None:
        pytest.skip("there is no g++ to compile kernels/hmi_kernels/lookup/lookup.cu for the CPU")
    return cuda_twin.compile_twin(tmp_path_factory.mktemp("twin"))


@pytest.fixture(scope="session")
def twin(library: ctypes.CDLL) -> cuda_twin.Twin:
    return cuda_twin.Twin(library)


@pytest.fixture(scope="session", params=["twin", pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> cuda.Device:
    if request.param == "twin":
        return request.getfixturevalue("twin")
    try:
        return cuda_device.CudaDevice()
    except cuda_device.NoDevice as error:
        pytest.skip(str(error))


def random_chain(
    rng: np.random.Generator, n: int, dtypes: list[int], dim: int
) -> tuple[Chain, list[ops.IndexRun]]:
    """Versions nearest first, as dictionaries for the reference and as index runs for the kernel."""
    chain: Chain = []
    runs: list[ops.IndexRun] = []
    for depth, dtype in enumerate(dtypes):
        entries: dict[tuple[int, ...], np.ndarray] = {}
        made: list[ops.IndexRun] = []  # of this version, oldest first
        for order in range(1, n + 1):
            for _ in range(int(rng.integers(0, 3))):
                ngrams = rng.integers(0, VOCAB, (int(rng.integers(1, 60)), order)).astype(np.uint32)
                vectors = rng.standard_normal((len(ngrams), layout.roles(n, order), dim)).astype(np.float32)
                made.append(make_run(rng, n, order, depth, dtype, ngrams, vectors))
                stored = reference.stored(vectors, dtype)
                entries.update({tuple(map(int, g)): v for g, v in zip(ngrams, stored, strict=True)})
        chain.append(entries)
        runs += reversed(made)
    return chain, runs


def make_run(
    rng: np.random.Generator,
    n: int,
    order: int,
    depth: int,
    dtype: int,
    ngrams: np.ndarray,
    vectors: np.ndarray,
) -> ops.IndexRun:
    rows = ops.encode(ngrams, vectors, dtype, n)
    parts = [np.ascontiguousarray(p) for p in np.array_split(rows, int(rng.integers(1, 4))) if len(p)]
    keys = [layout.row_keys(part, order) for part in parts]
    direct = order == 1 and bool(rng.integers(0, 2))
    salt = int(rng.integers(1 << 63)) * 2 + 1
    slots, shift, _ = ops.build_direct(keys, VOCAB) if direct else ops.build_index(keys, salt)
    views = tuple(ops.RowsView(part, np.zeros((len(part) + 63) // 64, np.uint64)) for part in parts)
    return ops.IndexRun(order, depth, dtype, slots, shift, direct, views, salt)


def random_texts(rng: np.random.Generator, lengths: Sequence[int]) -> list[list[int]]:
    return [rng.integers(0, VOCAB, length).tolist() for length in lengths]


def ragged(texts: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    tokens = np.array([t for text in texts for t in text], np.int32)
    return tokens, np.cumsum([0, *map(len, texts)]).astype(np.int64)


def put(device: cuda.Device, host: np.ndarray) -> Any:
    array = device.empty(host.shape, host.dtype)
    device.write(host, array)
    return array


def run(
    table: cuda.DeviceTable, texts: Sequence[Sequence[int]], half: bool = False, stream: int | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Bits of the answer (uint32, or uint16 for bfloat16), orders and depths."""
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
    table: cuda.DeviceTable, chain: Chain, texts: Sequence[Sequence[int]], steps: Steps | None, half: bool
) -> None:
    bits, order, depth = run(table, texts, half)
    expected, orders, depths = reference.lookup(chain, texts, table.dim, table.n, steps)
    wanted = reference.bfloat16(expected) if half else expected.view(np.uint32)
    assert np.array_equal(bits, wanted)
    assert order.tolist() == orders
    assert depth.tolist() == depths


cases = given(
    seed=st.integers(0, 1 << 30),
    n=st.integers(1, 5),
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
    dtypes: list[int],
    dim: int,
    lengths: list[int],
    steps: Steps | None,
    half: bool,
    backwards: bool,
    threads: int,
    blocks: int | None,
) -> None:
    rng = np.random.default_rng(seed)
    twin = cuda_twin.Twin(library, threads, backwards)
    twin.blocks = blocks
    chain, runs = random_chain(rng, n, dtypes, dim)
    steps = None if steps is None else [(order, depth) for order, depth in steps if order <= n]
    table = cuda_upload.upload(ops.level_table(runs, n, dim, steps), twin)
    same_as_reference(table, chain, random_texts(rng, lengths), steps, half)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("dtype", [0, 1, 2])
def test_every_width_and_type_on_each_device(device: cuda.Device, dtype: int, n: int, half: bool) -> None:
    rng = np.random.default_rng(n)
    for dim in (7, 36):
        chain, runs = random_chain(rng, n, [dtype, 2, dtype], dim)
        for steps in (None, [(n, 0), (max(1, n - 1), None), (1, 1), (1, 0)]):
            table = cuda_upload.upload(ops.level_table(runs, n, dim, steps), device)
            same_as_reference(table, chain, random_texts(rng, (40, 0, 1, 2, 3, 9)), steps, half)
    same_as_reference(table, chain, [], steps, half)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_positions_with_all_their_ngrams(device: cuda.Device, n: int) -> None:
    """Every n-gram of three tokens is stored, so each position is covered by as many as can be; steps in any
    order."""
    rng = np.random.default_rng(n)
    entries: dict[tuple[int, ...], np.ndarray] = {}
    runs = []
    for order in range(1, n + 1):
        ngrams = np.array(list(itertools.product(range(3), repeat=order)), np.uint32)
        vectors = rng.standard_normal((len(ngrams), layout.roles(n, order), 12)).astype(np.float32)
        runs.append(make_run(rng, n, order, 0, 2, ngrams, vectors))
        entries |= {tuple(map(int, g)): v for g, v in zip(ngrams, vectors, strict=True)}
    texts = [rng.integers(0, 3, length).tolist() for length in (30, 0, 1, 2, 3, 4, 5)]
    orders = range(1, n + 1)
    for chosen in [[order] for order in orders] + [list(orders), list(reversed(orders)), []]:
        steps: Steps = [(order, None) for order in chosen]
        table = cuda_upload.upload(ops.level_table(runs, n, 12, steps), device)
        same_as_reference(table, [entries], texts, steps, False)


@pytest.mark.parametrize("n", [2, 3, 5])
def test_alone_equals_batched(device: cuda.Device, n: int) -> None:
    rng = np.random.default_rng(n)
    _, runs = random_chain(rng, n, [0, 1], 16)
    table = cuda_upload.upload(ops.level_table(runs, n, 16), device)
    texts = random_texts(rng, (300, 1, 7, 8, 9, 0, 2, 64))
    together = run(table, texts)
    alone = [run(table, [text]) for text in texts]
    for part in range(3):
        assert np.array_equal(together[part], np.concatenate([answer[part] for answer in alone]))


def test_an_answer_may_begin_anywhere(device: cuda.Device) -> None:
    rng = np.random.default_rng(1)
    _, runs = random_chain(rng, 3, [0], 8)
    table = cuda_upload.upload(ops.level_table(runs, 3, 8), device)
    tokens, offsets = ragged(random_texts(rng, (20,)))
    order, depth = device.empty((20,), np.int8), device.empty((20,), np.int16)
    answers = []
    for shift in (0, 1):
        for kind in (np.float32, np.uint16, np.int16):
            out = device.empty((20 * 8 + 1,), kind)[shift : shift + 160].reshape(20, 8)
            cuda.lookup(table, put(device, tokens), put(device, offsets), VOCAB, out, order, depth)
            answers.append(device.read(out).tobytes())
    assert answers[:3] == answers[3:]
    assert answers[1] == answers[2]


@pytest.mark.parametrize("front", [False, True])
@pytest.mark.parametrize(
    ("tokens", "offsets", "message"),
    [
        ([1, 2, 3, 4], [0, 1], "offsets"),
        ([1, 2, 3, 4], [1, 4], "offsets"),
        ([1, 2, 3, 4], [-1, 4], "offsets"),
        ([1, 2, 3, 4], [0, 5], "offsets"),
        ([1, 2, 3, 4], [0, 4, 1, 4], "offsets"),
        ([1, 2, 3, 4], [0, -5, 4], "offsets"),
        ([1, 2, 3, 4], [0, 1 << 60], "offsets"),
        ([1, 2, 3, 4], [-(1 << 60), 1 << 60], "offsets"),
        ([1, 2, 3, 4], [0], "offsets"),
        ([1, 2, 3, 4], [], "offsets"),
        ([1, 2, 3, VOCAB], [0, 4], "token"),
        ([1, 2, 3, 1 << 30], [0, 4], "token"),
        ([1, 2, 3, -1], [0, 4], "token"),
    ],
)
def test_a_wrong_batch_is_refused(
    device: cuda.Device, front: bool, tokens: list[int], offsets: list[int], message: str
) -> None:
    if isinstance(device, cuda_twin.Twin):
        device = cuda_twin.Twin(device.library)
        device.front = front
    ones = np.arange(VOCAB, dtype=np.uint32)[:, None]
    rows = ops.encode(ones, np.ones((VOCAB, layout.roles(3, 1), 4), np.float32), 0, 3)
    runs = [direct_run([rows], list(range(VOCAB)))]
    table = cuda_upload.upload(ops.level_table(runs, 3, 4), device)
    out = device.empty((4, 4), np.float32)
    order, depth = device.empty((4,), np.int8), device.empty((4,), np.int16)
    given = put(device, np.array(tokens, np.int32)), put(device, np.array(offsets, np.int64))
    with pytest.raises(ValueError, match=message):
        cuda.lookup(table, *given, VOCAB, out, order, depth)


def test_arrays_that_do_not_fit_are_refused(device: cuda.Device) -> None:
    _, runs = random_chain(np.random.default_rng(0), 3, [0], 4)
    table = cuda_upload.upload(ops.level_table(runs, 3, 4), device)
    empty = device.empty
    good: dict[str, Any] = {
        "tokens": put(device, np.array([1, 2], np.int32)),
        "offsets": put(device, np.array([0, 2], np.int64)),
        "out": empty((2, 4), np.float32),
        "order": empty((2,), np.int8),
        "depth": empty((2,), np.int16),
    }
    bad: list[tuple[str, Any]] = [
        ("tokens", [1, 2]),
        ("tokens", empty((2,), np.int64)),
        ("offsets", empty((2, 1), np.int64)),
        ("offsets", empty((2,), np.int32)),
        ("out", empty((3, 4), np.float32)),
        ("out", empty((2, 4), np.float64)),
        ("out", empty((2, 8), np.float32)[:, ::2]),
        ("out", empty((8,), np.float32)),
        ("order", empty((2,), np.int16)),
        ("order", empty((4,), np.int8)[::2]),
        ("depth", empty((1,), np.int16)),
    ]
    for name, array in bad:
        arguments = good | {name: array}
        with pytest.raises(ValueError, match=name):
            cuda.lookup(table, vocab=VOCAB, **arguments)
    cuda.lookup(table, vocab=VOCAB, **good)


@pytest.mark.parametrize("seed", range(30))
def test_a_damaged_index_leads_to_no_foreign_row(
    device: cuda.Device, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random slots, were they uploaded: the process survives, and only rows of true keys are used."""
    rng = np.random.default_rng(seed)
    n = seed % 5 + 1
    _, runs = random_chain(rng, n, [0, 2], 4)
    for i, one in enumerate(runs):
        slots = one.slots.copy()
        if rng.integers(0, 2):
            hit = rng.integers(0, slots.size, slots.size // 2)
            slots[hit] ^= np.uint64(1) << rng.integers(0, 64, hit.size).astype(np.uint64)
        else:  # no slot is free: a probe must still end; small numbers are row ids of a direct index
            slots[:] = rng.integers(0, 1 << int(rng.integers(2, 63)), slots.size)
        runs[i] = replace(one, slots=slots)
    table = ops.level_table(runs, n, 4)
    tokens, offsets = texts = ragged(random_texts(rng, (60, 3)))
    parts = [tokens[:60].tolist(), tokens[60:].tolist()]
    out, order, depth = np.empty((63, 4), np.float32), np.empty(63, np.int8), np.empty(63, np.int16)
    with suppress(ops.DamagedRow):
        ops.lookup(table, tokens, offsets, VOCAB, out, order, depth)
    with suppress(ops.DamagedRow):
        cuda_upload.upload(table, device)
    monkeypatch.setattr(ops, "check_places", lambda table: None)
    bits, orders, depths = run(cuda_upload.upload(table, device), parts)
    meant = reference.lookup(truly_found(table, parts), parts, 4, n)
    assert texts[1].tolist() == [0, 60, 63]
    assert np.array_equal(bits, meant[0].view(np.uint32))
    assert orders.tolist() == meant[1]
    assert depths.tolist() == meant[2]


def truly_found(table: ops.LevelTable, texts: list[list[int]]) -> Chain:
    """What an index that lies still leads to, by key: a chain for the reference."""
    chain: Chain = [{} for _ in range(1 + max((run.depth for run in table.runs), default=0))]
    for order in range(1, table.n + 1):
        padded = [[0] * table.n + text + [0] * table.n for text in texts]
        grams = np.array([p[i : i + order] for p in padded for i in range(len(p) - order + 1)], np.uint32)
        addresses, levels = ops.find(table, order, grams, check=False)
        for gram, address, level in zip(grams.tolist(), addresses.tolist(), levels.tolist(), strict=True):
            if address:
                run_ = table.runs[level]
                rows = next(
                    v.rows for v in run_.segments if 0 <= address - v.rows.ctypes.data < v.rows.nbytes
                )
                row = rows[(address - rows.ctypes.data) // rows.shape[1]]
                chain[run_.depth][tuple(gram)] = layout.decode(
                    row[None], table.n, order, table.dim, run_.dtype
                )[0]
    return chain


def direct_run(parts: list[np.ndarray], slots: list[int], depth: int = 0, shift: int = 3) -> ops.IndexRun:
    views = tuple(ops.RowsView(part, np.zeros((len(part) + 63) // 64, np.uint64)) for part in parts)
    return ops.IndexRun(1, depth, 0, np.array(slots, np.uint64), shift, True, views)


def unigrams(tokens: list[int]) -> np.ndarray:
    """Rows of 256 bytes, so that on the device one segment begins where the one before it ends."""
    return ops.encode(np.array(tokens, np.uint32)[:, None], np.ones((len(tokens), 1, 224), np.float32), 0, 1)


def test_a_row_id_past_its_segment_is_a_miss(device: cuda.Device) -> None:
    run_ = direct_run(
        [unigrams([1, 2, 3]), unigrams([5])], [layout.EMPTY_SLOT, 0, 1, 2, layout.EMPTY_SLOT, 3, 16]
    )
    table = cuda_upload.upload(ops.level_table([run_], 1, 224), device)
    assert run(table, [[1, 2, 3, 5, 6]])[1].tolist() == [1, 1, 1, 0, 0]


def test_a_token_past_a_direct_index_is_a_miss(device: cuda.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two indexes of 32 slots lie side by side: what would be slot 37 of the first is slot 5 of the
    second."""
    rows = unigrams([37])
    monkeypatch.setattr(ops, "check_places", lambda table: None)
    near, far = direct_run([rows], [layout.EMPTY_SLOT] * 32), direct_run([rows], [0] * 32, depth=1)
    table = cuda_upload.upload(ops.level_table([near, far], 1, 224), device)
    out, order, depth = (
        device.empty((1, 224), np.float32),
        device.empty((1,), np.int8),
        device.empty((1,), np.int16),
    )
    given = put(device, np.array([37], np.int32)), put(device, np.array([0, 1], np.int64))
    cuda.lookup(table, *given, 64, out, order, depth)
    assert device.read(order).tolist() == [0]


def test_keys_of_two_words_are_compared_whole(device: cuda.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index whose every slot has the fingerprint of (2, 3, 4, 5), over a row of (1, 3, 4, 5)."""
    there, asked = np.array([[1, 3, 4, 5]], np.uint32), np.array([[2, 3, 4, 5]], np.uint32)
    rows = ops.encode(there, np.ones((1, 4, 4), np.float32), 2, 4)
    low, high = (int(word) for word in layout.pack_keys(asked)[0])
    slots = np.full(8, mix(low ^ mix(high)) << 32 & (1 << 64) - 1, np.uint64)
    one = ops.IndexRun(4, 0, 2, slots, 1, False, (ops.RowsView(rows, np.zeros(1, np.uint64)),))
    with pytest.raises(ops.DamagedRow):
        cuda_upload.upload(ops.level_table([one], 4, 4), device)
    monkeypatch.setattr(ops, "check_places", lambda table: None)
    table = cuda_upload.upload(ops.level_table([one], 4, 4), device)
    assert run(table, [[2, 3, 4, 5]])[1].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("salt", [layout.PLAIN_SALT, 0x9D39247E33776D41])
def test_a_search_ends_at_the_reach(device: cuda.Device, salt: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last slot that is searched holds the n-gram, or the first one that is not, as on the CPU."""
    # Every other slot means an n-gram that is nowhere.
    monkeypatch.setattr(ops, "check_places", lambda table: None)
    gram, cap = np.array([[1, 2, 3]], np.uint32), 3000
    rows = ops.encode(gram, np.ones((1, 3, 4), np.float32), 2, 3)
    hashed = mix(int(layout.pack_keys(gram)[0, 0]))
    mask = (1 << 64) - 1
    home = ((((hashed ^ salt >> 1) * salt) & mask) >> 32) * cap >> 32
    for reach in (layout.REACH, 1, 7, cap):
        for away in (reach - 1, reach):
            slots = np.full(cap, (~hashed & 0xFFFFFFFF) << 32, np.uint64)
            slots[(home + away) % cap] = (hashed & 0xFFFFFFFF) << 32
            one = ops.IndexRun(
                3, 0, 2, slots, 1, False, (ops.RowsView(rows, np.zeros(1, np.uint64)),), salt, reach
            )
            table = cuda_upload.upload(ops.level_table([one], 3, 4), device)
            served = 3 if away < reach or reach == cap else 0
            assert run(table, [[1, 2, 3]])[1].tolist() == [0, served, 0], (reach, away)


def mix(key: int) -> int:
    for _ in range(2):
        key = (key ^ key >> 32) * 0xD6E8FEB86659FD93 % (1 << 64)
    return key ^ key >> 32


def test_a_damaged_row_is_not_uploaded(device: cuda.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    monkeypatch.setattr(cuda_upload, "CHUNK_BYTES", 1 << 12)  # several chunks a segment
    ngrams = np.unique(rng.integers(0, VOCAB, (2000, 4)), axis=0).astype(np.uint32)
    vectors = rng.standard_normal((len(ngrams), layout.roles(4, 4), 12)).astype(np.float32)
    one = make_run(rng, 4, 4, 0, 0, ngrams, vectors)
    small = make_run(rng, 4, 1, 0, 0, np.array([[1]], np.uint32), np.ones((1, 4, 12), np.float32))
    table = ops.level_table([small, one], 4, 12)
    cuda_upload.upload(table, device)
    segment, row = len(one.segments) - 1, 777 % len(one.segments[-1].rows)
    view = one.segments[segment]
    view.rows[row, 50] ^= 4
    with pytest.raises(ops.DamagedRow) as caught:
        cuda_upload.upload(table, device)
    assert (caught.value.segment, caught.value.row) == (segment, row)  # longer n-grams come first
    view.verified[row // 64] |= np.uint64(1) << np.uint64(row % 64)
    cuda_upload.upload(table, device)  # known to have been sound, as all rows of format 1 are


def test_a_table_that_does_not_fit_is_refused_and_says_so(twin: cuda_twin.Twin) -> None:
    _, runs = random_chain(np.random.default_rng(3), 3, [0], 4)
    table = ops.level_table(runs, 3, 4)
    needed = cuda_upload.upload(table, twin).bytes
    small = cuda_twin.Twin(twin.library)
    small.free = needed - 1
    with pytest.raises(
        cuda_upload.DeviceFull, match=f"needs {needed} bytes of device memory and {needed - 1} are free"
    ):
        cuda_upload.upload(table, small)
    small.free = needed
    assert cuda_upload.upload(table, small).bytes == needed


def test_what_versions_share_is_uploaded_once(twin: cuda_twin.Twin) -> None:
    rng = np.random.default_rng(9)
    _, runs = random_chain(rng, 3, [0], 64)
    again = [replace(r, depth=1) for r in runs]
    once, twice = (cuda_upload.upload(ops.level_table(which, 3, 64), twin) for which in (runs, runs + again))
    assert (
        twice.bytes - once.bytes
        <= 8 * len(runs) * (cuda_upload.LEVEL_WORDS + 3 * cuda_upload.SEGMENT_WORDS) + cuda_upload.ALIGN
    )
    texts = random_texts(rng, (50,))
    assert np.array_equal(run(once, texts)[0], run(twice, texts)[0])


def test_without_cupy_the_cure_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(cuda_device.NoDevice, match=r"pip install hmi-server\[cuda\]"):
        cuda_device.CudaDevice()


@pytest.mark.gpu
def test_torch_tensors_and_foreign_streams() -> None:
    torch = pytest.importorskip("torch")
    try:
        device = cuda_device.CudaDevice()
    except cuda_device.NoDevice as error:
        pytest.skip(str(error))
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    with pytest.raises(cuda_device.NoDevice, match="choose 0"):
        cuda_device.CudaDevice(4096)
    rng = np.random.default_rng(2)
    chain, runs = random_chain(rng, 3, [0, 1], 32)
    table = cuda_upload.upload(ops.level_table(runs, 3, 32), device)
    texts = random_texts(rng, (30, 5))
    expected = reference.lookup(chain, texts, 32)[0]
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        tokens, offsets = (torch.from_numpy(a).cuda() for a in ragged(texts))
        out = torch.empty((35, 32), dtype=torch.bfloat16, device="cuda")
        order = torch.empty(35, dtype=torch.int8, device="cuda")
        depth = torch.empty(35, dtype=torch.int16, device="cuda")
        cuda.lookup(
            table, tokens, offsets, VOCAB, out.view(torch.int16), order, depth, stream=stream.cuda_stream
        )
    assert np.array_equal(out.view(torch.int16).cpu().numpy().view(np.uint16), reference.bfloat16(expected))
    with pytest.raises(ValueError, match="not in device memory"):
        cuda.lookup(table, tokens.cpu().numpy(), offsets, VOCAB, out.view(torch.int16), order, depth)
