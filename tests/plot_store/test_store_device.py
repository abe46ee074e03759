"""A reader on a device gives the reader's answers: on the CPU twin of the device's source, and on a GPU."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any

import cuda_twin
import numpy as np
import plotlab as lab
import pytest
from cuda_twin import put
from hmi_kernels.lookup import cuda
from hmi_kernels.lookup.layout import Window

from plot_store import Closed, Damaged, Invalid, Store, StoreFull
from plot_store.reading.device import DeviceReader

OLD = Path(__file__).parent / "formats" / "format-1.plot"


def look(
    on: DeviceReader, device: cuda.LookupDevice, batch: list[list[int]], **options: Any
) -> tuple[Any, Any]:
    tokens, offsets = lab.ragged(batch)
    return on.lookup(put(device, tokens), put(device, offsets), **options)


@pytest.mark.parametrize("counts", [(200, 40, 8), (60, 8), (300, 200, 60, 30, 9)])
@pytest.mark.parametrize("backoff", ["order", "version"])
@pytest.mark.parametrize("window", ["centred", "causal"])
def test_answers_what_the_reader_answers(
    store: Store, device: cuda.LookupDevice, counts: tuple[int, ...], backoff: str, window: Window
) -> None:
    n = len(counts)
    for depth, dtype in enumerate(["int8", "fp16", "fp32"]):
        made, ref = lab.content(depth, counts, window=window), "/".join(["r", "a", "b"][: depth + 1])
        lab.put(store, ref, made, dtype=dtype, n=n, window=window)
    batch = lab.texts(1)
    with store.reader("r/a/b", backoff=backoff) as reader, reader.on_device(device) as on:
        out, hits = lab.look(reader, batch)
        got, found = look(on, device, batch)
        assert np.array_equal(device.read(got).view(np.uint32), out.view(np.uint32))
        there = found.to_host()
        assert np.array_equal(there.order, hits.order)
        assert np.array_equal(there.depth, hits.depth)
        assert there.counts() == hits.counts()
        half, there_half = np.empty(out.shape, np.uint16), device.empty(out.shape, np.uint16)
        reader.lookup(*lab.ragged(batch), out=half)
        assert look(on, device, batch, out=there_half)[0] is there_half
        assert np.array_equal(device.read(there_half), half)


def test_rows_of_format_1_have_no_checks_and_are_copied_all_the_same(
    store: Store, device: cuda.LookupDevice
) -> None:
    store.import_archive(OLD)
    lab.put(store, "r/a", lab.content(3, (40, 20, 5), dim=5), dtype="fp16", extend=True)
    batch = lab.texts(3, (40, 100))
    with store.reader("r/a") as reader, reader.on_device(device) as on:
        expected, hits = lab.look(reader, batch)
        assert set(hits.order.tolist()) >= {1, 2, 3}
        assert np.array_equal(device.read(look(on, device, batch)[0]), expected)


def test_a_device_reader_keeps_its_copy_and_closes_with_its_reader(
    store: Store, device: cuda.LookupDevice
) -> None:
    lab.put(store, "r", lab.content(1))
    batch = lab.texts(2)
    reader = store.reader("r")
    first, second = reader.on_device(device), reader.on_device(device)
    assert first.bytes > sum(s.count for s in reader.version.segments if s.kind == "rows") * 3 * lab.DIM
    expected = lab.look(reader, batch)[0]
    lab.put(store, "r", lab.content(7))
    store.gc(orphan_age_s=-60)
    assert np.array_equal(device.read(look(first, device, batch)[0]), expected)
    first.close()
    first.close()
    with pytest.raises(Closed, match="device reader"):
        look(first, device, batch)
    assert np.array_equal(device.read(look(second, device, batch)[0]), expected)
    reader.close()
    with pytest.raises(Closed, match="reader has been closed"):
        look(second, device, batch)
    with pytest.raises(Closed):
        reader.on_device(device)


def test_what_is_refused(store: Store, device: cuda.LookupDevice) -> None:
    lab.put(store, "r", lab.content(1))
    with store.reader("r") as reader, reader.on_device(device) as on:
        with pytest.raises(Invalid, match="token id"):
            look(on, device, [[lab.VOCAB]])
        with pytest.raises(Invalid, match="out must be"):
            look(on, device, [[1, 2]], out=device.empty((2, lab.DIM), np.float64))
        for nothing in ([1, 2], 7, None):
            with pytest.raises(Invalid, match="tokens: a"):
                on.lookup(nothing, put(device, np.array([0, 2])))


def test_no_room_and_no_device(store: Store, library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.put(store, "r", lab.content(1))
    twin = cuda_twin.Twin(library)
    twin.free = 1000
    with store.reader("r") as reader:
        with pytest.raises(StoreFull, match=r"needs \d+ bytes of device memory and 1000 are free"):
            reader.on_device(twin)
        monkeypatch.setitem(sys.modules, "cupy", None)
        with pytest.raises(Invalid, match=r"pip install hmi-plot-store\[cuda\]"):
            reader.on_device(4095)


def test_a_damaged_row_is_named_and_not_copied(
    store: Store, device: cuda.LookupDevice, tmp_path: Path
) -> None:
    version = lab.put(store, "r", lab.content(1))
    name = next(s.name for s in version.segments if s.kind == "rows" and s.order == 3)
    lab.piece(store, name).flip(4096 + 40)  # in the first row
    with store.reader("r") as reader, pytest.raises(Damaged, match=f"row 0 of segment {name}"):
        reader.on_device(device)
