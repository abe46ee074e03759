"""Artefacts on disk: named by content, checked when read, collected only when nothing needs them."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from hmi.errors import Damaged, InvalidInput, StorageFull
from hmi.stores.layout import FORMAT, clear_leftovers, open_layout, wait_lock
from hmi.stores.tensors.adapter_store import AdapterStore

TENSORS = {"module.a": torch.arange(12.0).reshape(3, 4).half(), "head.out.bias": torch.ones(3)}


@pytest.fixture
def store(tmp_path: Path) -> AdapterStore:
    return AdapterStore(tmp_path / "adapters")


def test_a_stored_artefact_is_read_back(store: AdapterStore) -> None:
    name, size = store.put(TENSORS, {"task": "pair", "by": "j1"})
    got = store.get(name)
    assert got.keys() == TENSORS.keys()
    assert all(torch.equal(got[k], v) and got[k].dtype == v.dtype for k, v in TENSORS.items())
    assert (store.names(), store.bytes()) == ({name}, size)


def test_equal_content_has_one_name_in_every_process(store: AdapterStore, tmp_path: Path) -> None:
    name, _ = store.put(TENSORS, {"task": "pair", "by": "j1", "c": "d"})
    assert store.put(dict(reversed(TENSORS.items())), {"c": "d", "by": "j1", "task": "pair"})[0] == name
    assert store.put({**TENSORS, "head.out.bias": torch.zeros(3)})[0] != name
    script = (
        "import sys, torch; from pathlib import Path\n"
        "from hmi.stores.tensors.adapter_store import AdapterStore\n"
        "t = {'module.a': torch.arange(12.0).reshape(3, 4).half(), 'head.out.bias': torch.ones(3)}\n"
        "print(AdapterStore(Path(sys.argv[1])).put(t, {'by': 'j1', 'task': 'pair', 'c': 'd'})[0])\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "elsewhere")]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip() == name


def test_a_view_is_stored_whole(store: AdapterStore) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    name, _ = store.put({"t": base.T, "row": base[1]})
    assert torch.equal(store.get(name)["t"], base.T)
    assert torch.equal(store.get(name)["row"], base[1])


@pytest.mark.parametrize("at", [0, 9, -1])
def test_a_flipped_bit_is_found(store: AdapterStore, tmp_path: Path, at: int) -> None:
    name, _ = store.put(TENSORS)
    path = tmp_path / "adapters" / f"{name}.safetensors"
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(Damaged, match="checksum"):
        store.get(name)
    assert store.put(TENSORS)[0] == name, "storing it again repairs it"
    assert store.get(name).keys() == TENSORS.keys()


def test_no_flipped_bit_of_the_head_is_an_unknown_error(store: AdapterStore, tmp_path: Path) -> None:
    name, _ = store.put(TENSORS, {"task": "pair", "rows": "AAAA"})
    path = tmp_path / "adapters" / f"{name}.safetensors"
    data = path.read_bytes()
    refused = 0
    for at in range(8, 8 + int.from_bytes(data[:8], "little")):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[at] ^= 1 << bit
            path.write_bytes(damaged)
            try:
                store.about(name)
            except Damaged:
                refused += 1
    assert refused > 100


def test_a_missing_artefact_and_an_impossible_name_are_damage(store: AdapterStore) -> None:
    for name in ("0" * 64, "../../etc/passwd", "0" * 63, "", "A" * 64, "0" * 64 + "\n"):
        with pytest.raises(Damaged):
            store.get(name)


def test_gc_keeps_what_is_needed_and_what_is_young(store: AdapterStore, tmp_path: Path) -> None:
    kept, old, young = (store.put({"x": torch.tensor([float(i)])})[0] for i in range(3))
    stranger = tmp_path / "adapters" / "notes.safetensors"
    stranger.write_text("mine")
    for path in (tmp_path / "adapters").iterdir():
        if young not in path.name:
            os.utime(path, (time.time() - 9999,) * 2)
    store.spare(["0" * 64])
    removed, size = store.gc({kept}, 3600)
    assert removed == [old]
    assert size > 0
    assert store.names() == {kept, young}
    assert stranger.exists()
    assert store.gc({kept}, 0.0)[0] == [young]


def test_storing_an_artefact_again_makes_it_young(store: AdapterStore, tmp_path: Path) -> None:
    name, _ = store.put(TENSORS)
    os.utime(tmp_path / "adapters" / f"{name}.safetensors", (time.time() - 9999,) * 2)
    store.put(TENSORS)
    assert store.gc(set(), 3600) == ([], 0)


def test_gc_waits_for_writers(store: AdapterStore, tmp_path: Path) -> None:
    name, _ = store.put(TENSORS)
    done = threading.Event()

    def collect() -> None:
        store.gc(set(), 0.0)
        done.set()

    with wait_lock(tmp_path / "adapters" / ".lock", shared=True):
        thread = threading.Thread(target=collect)
        thread.start()
        assert not done.wait(0.1)
        assert store.names() == {name}
    thread.join()
    assert store.names() == set()


def test_a_full_disk_leaves_nothing(
    store: AdapterStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StorageFull):
            store.put(TENSORS)
    assert [p.name for p in (tmp_path / "adapters").iterdir()] == [".lock"]
    name, _ = store.put(TENSORS)
    assert store.get(name)


def test_leftovers_go_when_they_are_old(tmp_path: Path) -> None:
    layout = open_layout(tmp_path)
    old, young = layout.adapters / ".a.1.tmp", layout.adapters / ".b.2.tmp"
    folder = layout.roots / "tiny" / ".v1.3.tmp"
    folder.mkdir(parents=True)
    busy = layout.roots / "tiny" / ".v2.4.tmp"
    busy.mkdir()
    for path in (old, young, folder / "weights", layout.adapters / "kept"):
        path.write_text("x")
    for path in (old, folder / "weights", folder, busy, layout.adapters / "kept"):
        os.utime(path, (time.time() - 9999,) * 2)
    (busy / "weights").write_text("still being written")
    assert sorted(clear_leftovers(layout.roots, 3600) + clear_leftovers(layout.adapters, 3600)) == [
        ".a.1.tmp",
        ".v1.3.tmp",
    ]
    assert young.exists()
    assert busy.exists()
    assert (layout.adapters / "kept").exists()


def test_a_newer_format_is_refused_with_the_cure(tmp_path: Path) -> None:
    open_layout(tmp_path)
    assert (tmp_path / "FORMAT").read_text() == f"{FORMAT}\n"
    open_layout(tmp_path)
    (tmp_path / "FORMAT").write_text(f"{FORMAT + 1}\n")
    with pytest.raises(Damaged, match=f"format {FORMAT + 1}.*up to {FORMAT}.*upgrade"):
        open_layout(tmp_path)
    (tmp_path / "FORMAT").write_text("")
    with pytest.raises(Damaged):
        open_layout(tmp_path)


def test_a_file_is_no_data_folder(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(InvalidInput, match="data folder"):
        open_layout(tmp_path / "data")


def mapped_files() -> int:
    return sum(".safetensors" in line for line in Path("/proc/self/maps").read_text().splitlines())


def test_a_mapped_artefact_is_a_view_of_its_file(store: AdapterStore) -> None:
    tensors = {
        **TENSORS,
        "none": torch.zeros(0, 4),
        "one": torch.tensor(2.5),
        "i8": torch.ones(3).to(torch.int8),
    }
    name, size = store.put(tensors)
    before = mapped_files()
    mapped = store.map(name)
    assert (mapped.bytes, mapped_files()) == (size, before + 1)
    for _ in range(2):
        assert mapped.tensors.keys() == tensors.keys()
        for key, value in tensors.items():
            assert torch.equal(mapped.tensors[key], value)
            assert mapped.tensors[key].dtype == value.dtype
        mapped.rest()
    one = mapped.tensors["one"]
    del mapped
    assert (mapped_files(), one.item()) == (before + 1, 2.5), "the last view keeps it"
    del one
    assert mapped_files() == before


def test_mapped_artefacts_hold_no_open_files(store: AdapterStore) -> None:
    names = [store.put({"a": torch.full((8,), float(i))})[0] for i in range(20)]
    before = len(os.listdir("/proc/self/fd"))
    mapped = [store.map(name) for name in names]
    assert len(os.listdir("/proc/self/fd")) == before
    assert [m.tensors["a"][0].item() for m in mapped] == list(range(20))


@pytest.mark.parametrize("how", ["cut", "altered", "appended"])
def test_a_check_finds_that_a_mapped_file_changed_in_place(
    store: AdapterStore, tmp_path: Path, how: str
) -> None:
    name, size = store.put({"a": torch.randn(9000)})
    path, mapped = tmp_path / "adapters" / f"{name}.safetensors", store.map(name)
    os.utime(path)
    mapped.check()
    with path.open("r+b") as file:
        file.truncate(4096 if how == "cut" else size)
        file.seek(size if how == "appended" else 3000)
        file.write(b"x" * (100 if how != "cut" else 0))
    with pytest.raises(Damaged, match="checksum"):
        mapped.check()


def test_a_mapping_outlives_its_file_and_its_replacement(store: AdapterStore, tmp_path: Path) -> None:
    tensors = {"a": torch.randn(9000)}
    name, _ = store.put(tensors)
    path, mapped = tmp_path / "adapters" / f"{name}.safetensors", store.map(name)
    mapped.rest()
    (tmp_path / "other").write_bytes(b"short")
    (tmp_path / "other").rename(path)
    mapped.check()
    path.unlink()
    mapped.check()
    assert torch.equal(mapped.tensors["a"], tensors["a"])


def test_an_artefact_that_is_no_safetensors_file_is_damaged(store: AdapterStore, tmp_path: Path) -> None:
    inside = b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    heads = [
        b"",
        b"not json",
        b"[]",
        b'{"a":{"dtype":"F32"}}',
        b'{"a":{"dtype":"Q9","shape":[2],"data_offsets":[0,8]}}',
        b'{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}',
        b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[-8,0]}}',
        b'{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}',
    ]
    files = [len(head).to_bytes(8, "little") + head + bytes(8) for head in heads]
    for data in (*files, b"", b"1234", (1 << 60).to_bytes(8, "little") + inside + bytes(8)):
        name = hashlib.sha256(data).hexdigest()
        (tmp_path / "adapters" / f"{name}.safetensors").write_bytes(data)
        with pytest.raises(Damaged):
            store.map(name)
    data = len(inside).to_bytes(8, "little") + inside + bytes(8)
    store.take_over(hashlib.sha256(data).hexdigest(), data)
    assert torch.equal(store.map(hashlib.sha256(data).hexdigest()).tensors["a"], torch.zeros(2))


def test_a_mark_changes_with_the_file_only(store: AdapterStore, tmp_path: Path) -> None:
    name, _ = store.put(TENSORS)
    path = tmp_path / "adapters" / f"{name}.safetensors"
    first = store.mark(name)
    store.map(name)
    assert store.mark(name) == first
    data = path.read_bytes()
    path.unlink()
    assert store.mark(name) is None
    path.write_bytes(data)
    assert store.mark(name) not in (None, first)
    assert store.mark("no name") is None
