"""Artefacts on disk: written aside, synced, then renamed, so that a reader sees all of one or none of it."""

from __future__ import annotations

import errno
import json
import os
import shutil
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hmi.errors import Damaged, StorageFull

if TYPE_CHECKING:
    from torch import Tensor


def write_bytes(path: Path, data: bytes) -> None:
    """Write `path` atomically and durably. Raises StorageFull; nothing half-written stays."""
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with aside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise full_or(error, path) from error


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    write_bytes(path, json.dumps(value, indent=1, ensure_ascii=False).encode() + b"\n")


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    from safetensors.torch import save  # torch, which those who write other files need not wait for

    write_bytes(path, save({k: v.detach().contiguous() for k, v in tensors.items()}, metadata))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Load a safetensors file; raises Damaged."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise Damaged(f"{path.name} cannot be read ({error}): restore it or import it again") from error


def publish_folder(final: Path, fill: Callable[[Path], None]) -> None:
    """Let `fill` write a folder aside, sync it, and rename it to `final`. Raises StorageFull."""
    final.parent.mkdir(parents=True, exist_ok=True)
    aside = final.with_name(f".{final.name}.{uuid.uuid4().hex[:8]}.tmp")
    aside.mkdir()
    try:
        fill(aside)
        sync_folder(aside)
        aside.replace(final)
        sync_folder(final.parent)
    except OSError as error:
        raise full_or(error, final) from error
    finally:
        if aside.exists():
            shutil.rmtree(aside, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def full_or(error: OSError, path: Path) -> Exception:
    """StorageFull where the disk (or a quota) is full, else the error itself."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFull(f"no room left to write {path.name}: free some space and try again")
    return error
