"""The states of a disk after a power cut, reconstructed from the log of iolog.c.

The model is as strict as POSIX. A file's bytes are durable when its fsync returns; before that any part of
any write may be there, torn at 512 or 4,096 bytes. A folder's entries are durable when the folder's fsync
returns; before that a prefix of the changes, in their order, may be. Syncing a file says nothing of its name,
and sync_file_range nothing at all. After a failed fsync the kernel takes the pages for clean: what they held
is lost for good, whatever later fsyncs say.
"""

from __future__ import annotations

import posixpath
import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

MARK: Final = "a"
SIZES: Final = (512, 4096)
_HEAD: Final = struct.Struct("<cBHQQ")
Tree = dict[str, bytes | None]  # path -> content; None for a folder


@dataclass(frozen=True)
class Op:
    """A record of the log; see iolog.c."""

    kind: str
    synced: bool
    path: str
    offset: int
    data: bytes


def read_log(path: Path) -> Iterator[Op]:
    """The records in order, without a last one that is cut off because its process was killed."""
    raw, at = path.read_bytes(), 0
    while at + _HEAD.size <= len(raw):
        kind, synced, name, offset, size = _HEAD.unpack_from(raw, at)
        at += _HEAD.size
        end = at + name + size
        if end > len(raw):
            return
        yield Op(kind.decode(), bool(synced), raw[at : at + name].decode(), offset, raw[at + name : end])
        at = end


@dataclass
class _File:
    """A file: its durable bytes, and the changes since its last fsync."""

    durable: bytearray = field(default_factory=bytearray)
    waiting: list[Op] = field(default_factory=list)


@dataclass
class _Folder:
    """A folder: its entries as the running process sees them, the durable ones, and the
    changes since its last fsync."""

    seen: dict[str, _File | _Folder] = field(default_factory=dict)
    durable: dict[str, _File | _Folder] = field(default_factory=dict)
    waiting: list[_Change] = field(default_factory=list)

    def change(self, change: _Change) -> None:
        _move(self.seen, change)
        self.waiting.append(change)


@dataclass(frozen=True)
class _Change:
    """A change of a folder's entries: the name `gone` disappears, the name `came` appears."""

    gone: str | None = None
    came: str | None = None
    node: _File | _Folder | None = None


class Disk:
    """Applies the records of a log one by one, and tells at any point what a power cut would leave."""

    def __init__(self, root: str, start: Tree | None = None) -> None:
        """`start`: the durable files at the beginning, by absolute path below `root`."""
        self.root = root
        self._top = _Folder()
        for path in sorted(start or {}):
            content = (start or {})[path]
            above, name = self._place(path)
            assert above is not None
            above.seen[name] = above.durable[name] = (
                _Folder() if content is None else _File(bytearray(content))
            )

    def apply(self, op: Op) -> None:
        """Apply a record. Raises NotImplementedError for a call that the model does not know."""
        if op.kind == MARK:
            return
        if op.kind == "?":
            raise NotImplementedError(f"{op.data.decode()} on {op.path}: teach powercut.py what that does")
        {
            "c": self._create,
            "m": self._create,
            "w": self._change,
            "t": self._change,
            "f": self._sync,
            "e": self._lose,
            "r": self._rename,
            "u": self._remove,
            "d": self._remove,
        }[op.kind](op)

    def _find(self, path: str) -> _File | _Folder | None:
        """The file or folder that the running process sees at a path; None if it is unlinked."""
        node: _File | _Folder | None = self._top
        for name in [] if path == self.root else posixpath.relpath(path, self.root).split("/"):
            node = node.seen.get(name) if isinstance(node, _Folder) else None
        return node

    def _place(self, path: str) -> tuple[_Folder | None, str]:
        above = self._find(posixpath.dirname(path))
        return above if isinstance(above, _Folder) else None, posixpath.basename(path)

    def _create(self, op: Op) -> None:
        known, (above, name) = self._find(op.path), self._place(op.path)
        if known is None and above is not None:
            above.change(_Change(None, name, _File() if op.kind == "c" else _Folder()))
        elif op.offset and isinstance(known, _File):
            known.waiting.append(Op("t", False, op.path, 0, b""))

    def _change(self, op: Op) -> None:
        node = self._find(op.path)
        if isinstance(node, _File) and op.synced:
            _into(node.durable, op)
        elif isinstance(node, _File):
            node.waiting.append(op)

    def _sync(self, op: Op) -> None:
        node = self._find(op.path)
        if isinstance(node, _File):
            for waiting in node.waiting:
                _into(node.durable, waiting)
        elif isinstance(node, _Folder):
            for change in node.waiting:
                _move(node.durable, change)
        if node is not None:
            node.waiting.clear()

    def _lose(self, op: Op) -> None:
        """A failed fsync. It is unknown which pages were written; here none, and
        the file keeps its length."""
        node = self._find(op.path)
        if isinstance(node, _File):
            node.waiting.clear()

    def _rename(self, op: Op) -> None:
        target = op.data.decode()
        node, (above, name) = self._find(op.path), self._place(op.path)
        if posixpath.dirname(op.path) != posixpath.dirname(target) or node is None or above is None:
            raise NotImplementedError(
                f"{op.path} became {target}: only renames inside one folder are modelled"
            )
        above.change(_Change(name, posixpath.basename(target), node))

    def _remove(self, op: Op) -> None:
        above, name = self._place(op.path)
        if above is not None:
            above.change(_Change(gone=name))

    def cut(self, rng: random.Random, mode: str) -> Tree:
        """The files after a cut now. `mode`: "none" of the pending changes is written,
        "all" are, or a "random" part."""
        found: Tree = {}
        _cut(self._top, self.root, found, rng, mode)
        return found


def _cut(folder: _Folder, path: str, found: Tree, rng: random.Random, mode: str) -> None:
    entries = dict(folder.durable)
    kept = {"none": 0, "all": len(folder.waiting)}.get(mode)
    for change in folder.waiting[: rng.randint(0, len(folder.waiting)) if kept is None else kept]:
        _move(entries, change)
    for name, node in entries.items():
        if isinstance(node, _Folder):
            found[f"{path}/{name}"] = None
            _cut(node, f"{path}/{name}", found, rng, mode)
        else:
            found[f"{path}/{name}"] = _content(node, rng, mode)


def _content(node: _File, rng: random.Random, mode: str) -> bytes:
    content = bytearray(node.durable)
    for op in node.waiting if mode != "none" else []:
        if mode == "all":
            _into(content, op)
        elif op.kind == "t":
            if rng.random() < 0.5:
                _into(content, op)
        else:
            _torn(content, op, rng)
    return bytes(content)


def _torn(content: bytearray, op: Op, rng: random.Random) -> None:
    """Some aligned pieces of a write: none, all, or each with probability one half."""
    share = rng.choice((0.0, 0.5, 0.5, 1.0))
    size, at, end = rng.choice(SIZES), op.offset, op.offset + len(op.data)
    while at < end:
        stop = min(end, (at // size + 1) * size)
        if rng.random() < share:
            _into(content, Op("w", False, op.path, at, op.data[at - op.offset : stop - op.offset]))
        at = stop


def _into(content: bytearray, op: Op) -> None:
    """Apply a write or a change of length to the bytes."""
    end = op.offset + len(op.data)
    if len(content) < end:
        content.extend(bytes(end - len(content)))
    if op.kind == "w":
        content[op.offset : end] = op.data
    else:
        del content[op.offset :]


def _move(entries: dict[str, _File | _Folder], change: _Change) -> None:
    if change.gone is not None:
        entries.pop(change.gone, None)
    if change.came is not None and change.node is not None:
        entries[change.came] = change.node


def read_tree(folder: Path) -> Tree:
    """The files below a folder, by absolute path."""
    found: Tree = {}
    for path in sorted(folder.rglob("*")):
        if path.name not in ("lock.mdb", "reserve"):
            found[str(path)] = None if path.is_dir() else path.read_bytes()
    return found


def write_tree(tree: Tree, root: str, folder: Path) -> None:
    """Write a state into `folder`, which stands for `root`."""
    for path in sorted(tree):  # a folder before its files
        target, content = folder / posixpath.relpath(path, root), tree[path]
        if content is None:
            target.mkdir(exist_ok=True)
        else:
            target.write_bytes(content)
