"""Atomic, durable writes: a temporary file is written, synced and renamed, so readers see all or nothing."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hmi.errors import Damaged, StorageFull, Unavailable

if TYPE_CHECKING:
    from torch import Tensor


def write_bytes(path: Path, data: bytes) -> None:
    """Write `path` atomically and durably. Raises StorageFull, OSError; then no temporary file is left."""
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
    from safetensors.torch import (
        save,
    )  # here, because it imports torch, which writers of other files do not need

    write_bytes(path, save({k: v.detach().contiguous() for k, v in tensors.items()}, metadata))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Load a safetensors file. Raises Damaged, and Unavailable if it cannot be read."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except FileNotFoundError as error:  # its text names a path, which tenants may not see
        raise Damaged(f"{path.name} is missing: restore it or make it again") from error
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise Unavailable(
            f"{path.name} could not be read ({why}): try again; if it stays so, check the disk"
        ) from error
    except SafetensorError as error:
        raise Damaged(f"{path.name} cannot be read ({error}): restore it or make it again") from error


def write_checkpoint(
    path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any] | None = None
) -> None:
    """Write a job's checkpoint and its checksum. Raises StorageFull.

    The checksum keeps damage out of the artefacts that are published from a resumed job's tensors.
    """
    plain = {k: tensors[k].detach().contiguous() for k in sorted(tensors)}
    text = json.dumps(about or {}, sort_keys=True)
    write_tensors(path, plain, {"about": json.dumps({"about": text, "check": _check_of(plain, text)})})


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """A checkpoint's tensors and metadata. None if it is missing or damaged: the job must begin anew.

    Raises Unavailable if the file cannot be read.
    """
    from safetensors import safe_open

    if not path.exists():
        return None
    try:
        state = read_tensors(path)
        with safe_open(path, "pt") as file:
            header = json.loads(file.metadata()["about"])
        about: dict[str, Any] = json.loads(header["about"])
        return (state, about) if header["check"] == _check_of(state, header["about"]) else None
    except (Damaged, ValueError, TypeError, KeyError):
        return None  # damaged, or written by a release whose checkpoints had no checksum


def _check_of(tensors: Mapping[str, Tensor], about: str) -> str:
    import torch

    whole = hashlib.sha256(about.encode())
    for name in sorted(tensors):
        value = tensors[name].cpu()
        whole.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        whole.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return whole.hexdigest()


def publish_folder(final: Path, fill: Callable[[Path], None]) -> None:
    """Let `fill` write a temporary folder, then sync it and rename it to `final`. Raises StorageFull."""
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


def replace_folder(made: Path, final: Path) -> None:
    """Put a finished folder in the place of an earlier one, which is removed."""
    old = final.with_name(f".{final.name}.{uuid.uuid4().hex[:8]}.tmp")
    if final.exists():
        final.rename(old)
    made.rename(final)
    sync_folder(final.parent)
    shutil.rmtree(old, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def full_or(error: OSError, path: Path) -> Exception:
    """StorageFull if `error` says that the disk or a quota is full, else `error` itself."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFull(f"no room left to write {path.name}: free some space and try again")
    return error
