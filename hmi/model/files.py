"""Artefacts on disk: written aside, synced, then renamed, so that a reader sees a whole artefact or none."""

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
    """Load a safetensors file; raises Damaged, Unavailable (the disk refused)."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except FileNotFoundError as error:  # whose own words name a path, which tenants may not see
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
    """Write a job's checkpoint with a checksum, since its tensors end in published artefacts. Raises
    StorageFull."""
    plain = {k: tensors[k].detach().contiguous() for k in sorted(tensors)}
    said = json.dumps(about or {}, sort_keys=True)
    write_tensors(path, plain, {"about": json.dumps({"about": said, "check": _check_of(plain, said)})})


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The tensors and their metadata; None if there is no checkpoint or it is damaged: begin anew.

    Raises Unavailable (the disk refused).
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
        return None  # damaged, or of a release whose checkpoints had no checksum


def _check_of(tensors: Mapping[str, Tensor], said: str) -> str:
    import torch

    whole = hashlib.sha256(said.encode())
    for name in sorted(tensors):
        value = tensors[name].cpu()
        whole.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        whole.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return whole.hexdigest()


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
