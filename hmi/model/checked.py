"""Files compared with the SHA-256 that was recorded when they were written.

A process reads an unchanged file only once; inode, size and change times tell whether it is unchanged.
"""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

from hmi.errors import Damaged, Unavailable

ROOT_CURE = (
    "import the root again with the source, options and texts of its first import ('hmi root "
    "import'), or restore "
    "<data>/roots from a copy"
)
Identity = tuple[int, int, int, int, int]
_found: dict[Identity, str] = {}
_lock = threading.Lock()
_KEPT = 256


def file_sha256(path: Path) -> str:
    """The SHA-256 of the file's content, in hexadecimal. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_file(path: Path, sha256: str | None, whose: str, *, cure: str, again: bool = False) -> None:
    """Raise Damaged unless the file's content has this hash; None: none was recorded, which is damage, too.

    whose, cure: for the message, which names no path, for tenants may see it. again: read it however often
    this process has done so, for damage that the disk did by itself changes no time. Raises Unavailable (the
    disk refused).
    """
    try:
        found = _sha256(path, again)
    except FileNotFoundError as error:
        raise Damaged(f"{path.name} of {whose} is missing: {cure}") from error
    except OSError as error:
        raise Unavailable(
            f"{path.name} of {whose} could not be read ({error.strerror}): try again; if it stays so, "
            "check the disk"
        ) from error
    if found != sha256:
        raise Damaged(f"{path.name} of {whose} fails its checksum: {cure}")


def _sha256(path: Path, again: bool) -> str:
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        with _lock:
            known = None if again else _found.get(identity)
        if known is not None:
            return known
        found = hashlib.file_digest(file, "sha256").hexdigest()
    with _lock:
        if len(_found) >= _KEPT:
            _found.clear()
        _found[identity] = found
    return found
