"""Repairs a root whose files are damaged, by importing its source again.

Each bad file is replaced by a rename, so a process that has mapped the old file keeps it. The
root's PLOTs and models stay, so each file must have its old content again. Hashes prove this where
they are known.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hmi.core import RootRecord
from hmi.errors import Conflict, Damaged
from hmi.jobs.runtime.context import JobContext
from hmi.jobs.specs import ImportRootSpec
from hmi.model.checked import file_sha256
from hmi.model.files import sync_folder, write_json
from hmi.model.network.shape import read_shape
from hmi.model.sources.root import (
    FILES,
    AnyRootInfo,
    NewerRoot,
    RootInfo,
    read_any_info,
    verify_root,
    write_root_info,
)
from hmi.model.sources.source import Source, read_pooling
from hmi.stores.layout import read_json

TOKENIZER = "tokenizer.json"
"""An encoder's is a copy of the source's, so its repair needs no training."""


@dataclass(frozen=True)
class Before:
    """The state of a root's files before the repair."""

    info: AnyRootInfo | None
    """From root.json; None if that is damaged."""
    raw: bytes
    """The bytes of a damaged root.json."""
    found: Mapping[str, str | None]
    """File name -> its SHA-256 now; None if it is missing."""

    def had(self, name: str, sha256: str | None) -> bool | None:
        """Return whether the file once had the content with this hash; None if that is unknown."""
        if self.info is not None and name in self.info.files:
            return sha256 == self.info.files[name]
        # A damaged root.json may still show the hash.
        return True if sha256 is not None and sha256.encode() in self.raw else None

    @property
    def bad(self) -> list[str]:
        """The files that are not known to be sound."""
        return [name for name in FILES if not self.had(name, self.found[name])]


def run(
    ctx: JobContext, source: Source, about: dict[str, str], make: Callable[[Path], None]
) -> dict[str, Any]:
    """Repair the root that the job's spec names.

    `make` imports `source` into a folder. `about` is what a root records about its source. Raises
    Conflict if the import gives another root, Damaged if the files are bad again once written.
    """
    spec = ImportRootSpec.of(ctx.job)
    record = ctx.registry.root(spec.name)
    if (record.version, record.source.get("sha256")) != (spec.repairs, source.sha256):
        raise Conflict(f"root {record.name} is not the one that this import was to repair", field="source")
    folder = ctx.roots.folder(record.name, record.version)
    before = _inspect(folder)
    list_path, made = ctx.folder / "repaired.json", folder.parent / ctx.job.job
    if before.bad or before.info is None:
        replacements = _replacements(record, before, source, made, make)
        names = [*replacements, *([] if before.info is not None else ["root.json"])]
        # The list is kept, since a resumed job finds fewer bad files.
        write_json(list_path, {"repaired": sorted({*_repaired(list_path), *names})})
        folder.mkdir(exist_ok=True)
        for name, replacement in replacements.items():
            replacement.replace(folder / name)
        sync_folder(folder)
        _write_info(folder, record, before.info, source, about, made)
    problems = verify_root(folder)
    if problems:
        raise Damaged(f"root {record.name} was repaired and is damaged again: check the disk ({problems[0]})")
    ctx.roots.put(record.name, record.version)
    shutil.rmtree(made, ignore_errors=True)
    fidelity = read_any_info(folder).fidelity
    return {
        "root": record.name,
        "version": record.version,
        "fidelity": fidelity,
        "repaired": _repaired(list_path),
    }


def _inspect(folder: Path) -> Before:
    info, raw = None, b""
    try:
        info = read_any_info(folder)
    except NewerRoot:
        raise
    except Damaged:
        if (folder / "root.json").exists():
            raw = (folder / "root.json").read_bytes()
    return Before(info, raw, {name: _sha256(folder / name) for name in FILES})


def _replacements(
    record: RootRecord, before: Before, source: Source, made: Path, make: Callable[[Path], None]
) -> dict[str, Path]:
    """Make the files that replace the bad ones, in the folder `made`. Raises Conflict."""
    bad = before.bad
    copied = not source.generates and set(bad) <= {TOKENIZER}
    if copied and (not bad or before.had(TOKENIZER, file_sha256(source.folder / TOKENIZER))):
        made.mkdir(exist_ok=True)
        for name in bad:
            shutil.copyfile(source.folder / name, made / name)
    else:
        # An earlier attempt at the job may have made them.
        if not all((made / name).exists() for name in (*bad, "root.json")):
            shutil.rmtree(made, ignore_errors=True)
            make(made)
        _check_same(record, before, made)
    return {name: made / name for name in bad}


def _check_same(record: RootRecord, before: Before, made: Path) -> None:
    """Raise Conflict if the files in `made` are not those that the root had."""
    new = {**before.found, **{name: file_sha256(made / name) for name in FILES if (made / name).exists()}}
    sound = [name for name in FILES if name not in before.bad]
    # Without a hash of a file, the other files and the root's fidelity must be the same.
    alike = all(new[name] == before.found[name] for name in sound) and (
        read_any_info(made).fidelity == record.fidelity
    )
    for name in before.bad:
        had = before.had(name, new[name])
        if not (alike if had is None else had):
            raise Conflict(
                f"the import gives another {name} than root {record.name} had: give the source, "
                "options and texts of its first import, or restore <data>/roots from a copy",
                field="source",
            )


def _write_info(
    folder: Path,
    record: RootRecord,
    info: AnyRootInfo | None,
    source: Source,
    about: dict[str, str],
    made: Path,
) -> None:
    """Write root.json again if it is damaged or lacks a hash (earlier releases wrote none)."""
    files = {name: file_sha256(folder / name) for name in FILES}
    if info is not None:
        if info.files != files:
            write_root_info(folder, replace(info, files=files))
        return
    if source.generates:
        new = read_any_info(made)
        write_root_info(folder, replace(new, version=record.version, created=record.created, files=files))
        return
    pooling, normalise = read_pooling(source.folder)
    info = RootInfo(
        name=record.name,
        version=record.version,
        source=about,
        shape=read_shape(source.folder),
        split=record.split,
        created=record.created,
        n=record.n,
        fidelity=record.fidelity,
        fidelity_by_kind=record.fidelity_by_kind,
        pooling=pooling,
        normalise=normalise,
        files=files,
    )
    write_root_info(folder, info)


def _repaired(path: Path) -> list[str]:
    found = read_json(path)
    return list(found["repaired"]) if isinstance(found, dict) else []


def _sha256(path: Path) -> str | None:
    return file_sha256(path) if path.exists() else None
