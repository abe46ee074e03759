"""The jobs of the kill test of remotes: a push and a pull that may die, and what stands afterwards."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import plotlab as lab
import remotelab

from plot_store import Remote, Store
from plot_store.remote.objects import open_objects

REF = "r/a"


def moving(
    *,
    emit: Callable[[Any], None],
    folder: str,
    url: str,
    what: str,
    seed: int,
    at: int,
    how: str,
    environment: dict[str, str],
) -> None:
    """Push a new version of the store "from", or pull one into the store "to" that was just pushed.

    at, how: as in `remotelab.Place`; with at = 0 it lives on.
    """
    os.environ.update(environment)
    place = remotelab.Place(open_objects(url), at, how)
    with (
        Store.open(Path(folder) / "from", create=True) as store,
        Store.open(Path(folder) / "to", create=True) as to,
    ):
        if REF not in store.refs():
            lab.put(store, "r", lab.content(0))
            lab.put(store, REF, lab.content(1))
        lab.put(store, REF, lab.content(seed), extend=seed % 4 > 0, build=f"b{seed}", meta={"seed": seed})
        attached = remotelab.files(Path(folder), 0, seed)
        if what == "pull":
            store.push(REF, url, attached=attached)
        emit("moves")
        if what == "push":
            remotelab.push(store, place, REF, attached)
        else:
            remotelab.pull(to, place, REF, _Kept(Path(folder)))
        emit("moved")


class _Kept(remotelab.Shelf):
    """A shelf on the disk of the store "to"."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "kept"
        self._folder.mkdir(exist_ok=True)
        super().__init__({path.name: path.read_bytes() for path in self._folder.iterdir()})

    def __setitem__(self, name: str, content: bytes) -> None:
        draft = self._folder.parent / "draft"
        draft.write_bytes(content)
        draft.rename(self._folder / name)
        super().__setitem__(name, content)


def moved(*, emit: Callable[[Any], None], folder: str, url: str, environment: dict[str, str]) -> None:
    """Check both stores and the remote, then finish what was begun. Emits the version that the remote had."""
    os.environ.update(environment)
    objects = open_objects(url)
    before = remotelab.whole(objects)
    with Store.open(Path(folder) / "from") as store, Store.open(Path(folder) / "to", create=True) as to:
        known = {version.id for version in store.history(REF)}
        assert set(before.values()) <= known
        at = [version for ref, version in to.refs().items() if ref == REF]
        assert {version.id for version in at} <= known
        kept = _Kept(Path(folder))
        assert kept.sound()
        assert {f"file-{version.meta['seed']}" for version in at} <= kept.keys()  # attachments first
        for one in (store, to):
            one.gc(orphan_age_s=-60)  # what a killed process left half-written
            lab.check(one)
        seed = store.version(REF).meta["seed"]
        new = store.push(REF, url, attached=remotelab.files(Path(folder), 0, seed)).version
        assert remotelab.whole(objects) == {REF: new.id}
        assert to.pull(REF, url, accept=kept).version == new == to.version(REF)
        assert {"file-0", f"file-{seed}"} <= kept.keys()
        assert kept.sound()
        lab.check(to)
        Remote(url).collect(age_s=0)
        assert remotelab.whole(objects) == {REF: new.id}
    emit(before.get(REF) == new.id)
