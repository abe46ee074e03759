"""Places where a store cannot lie, and users who cannot open it: each error gives the reason and the cure."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import plotlab as lab
import pytest

from plot_store import Invalid, Store, StoreIO
from plot_store.ground import host

MOUNTED = """22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
41 22 {device} / /srv/a\\040b rw,relatime shared:2 master:1 - {kind} server:/export rw
"""


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "smb3", "fuse.sshfs", "ceph"])
def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    lies_on(kind, tmp_path, monkeypatch)
    with pytest.raises(StoreIO, match=rf"lies on a network file system \({kind}\).*local disk"):
        Store.open(tmp_path / "deep" / "s", create=True)
    assert not (tmp_path / "deep").exists()


@pytest.mark.parametrize("kind", ["ext4", "tmpfs", "9p", "fuse.fuseblk", "overlay"])
def test_a_local_file_system_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    lies_on(kind, tmp_path, monkeypatch)
    assert host.file_system(tmp_path / "not" / "there") == kind
    Store.open(tmp_path / "s", create=True).close()


def lies_on(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the system's list of mounts say that `folder` lies on a file system of this kind."""
    number = folder.stat().st_dev
    mounts = folder / "mountinfo"
    mounts.write_text(MOUNTED.format(device=f"{os.major(number)}:{os.minor(number)}", kind=kind))
    monkeypatch.setattr(host, "_MOUNTS", mounts)


def test_what_this_machine_says_of_its_mounts(tmp_path: Path) -> None:
    if sys.platform.startswith("linux") and tmp_path.is_relative_to("/dev/shm"):
        assert host.file_system(tmp_path) == "tmpfs"


def test_a_big_endian_machine_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "byteorder", "big")
    with pytest.raises(StoreIO, match="big-endian"):
        Store.open(tmp_path / "s", create=True)


AS_NOBODY = """
import os, sys
from plot_store import PlotStoreError, Store
os.setgid(65534)
os.setuid(65534)
try:
    with Store.open(sys.argv[1], read_only=True) as store:
        print(store.version("r").id)
except PlotStoreError as error:
    print(error)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_a_reader_of_another_user_is_told_what_it_needs(store: Store) -> None:
    version = lab.put(store, "r", lab.content(1))
    for folder in (store.path.parent, store.path):
        folder.chmod(0o755)
    lock = store.path / "catalogue" / "lock.mdb"
    lock.chmod(0o600)
    said = lab.child(AS_NOBODY, store.path).stdout
    assert "lock.mdb" in said
    assert "chmod g+rw" in said
    # as the message advises, but for everybody: the user `nobody` is in no group of the store
    lock.chmod(0o666)
    assert lab.child(AS_NOBODY, store.path).stdout == f"{version.id}\n"
    # Permission to read is enough.
    assert stat.S_IMODE((store.path / "catalogue" / "data.mdb").stat().st_mode) & 0o022 == 0


def test_an_invalid_ref_gets_an_error_that_says_why(store: Store) -> None:
    seven = "a/b/c/d/e/f/g"
    with pytest.raises(Invalid, match="has 8 parts: use 1 to 7 parts"):
        store.writer(f"{seven}/h", schema=lab.schema(), build="b")
    with pytest.raises(Invalid, match="because of the part 'B': use"):
        store.writer("a/B", schema=lab.schema(), build="b")
    with pytest.raises(Invalid, match="is not a ref: use 1 to 7 parts") as caught:
        store.writer("x" * 5000, schema=lab.schema(), build="b")
    assert len(str(caught.value)) < 500
    for depth in range(7):
        lab.put(store, seven[: 2 * depth + 1], {})
    assert seven in store.refs()
