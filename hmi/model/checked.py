"""Comparison of files with the SHA-256 that was recorded when they were written.

Hashes are cached for the life of the process. A file counts as unchanged while its device, inode, size and
modification and change times are the same.
"""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

from hmi.errors import Damaged, Unavailable

ROOT_CURE = (
    "import the root again with the source, options and texts of its first import ('hmi root import'), "
    "or restore <data>/roots from a copy"
)
"""What to do about a damaged root, for error messages."""
_Identity = tuple[int, int, int, int, int]
_MAX_CACHED = 256
_cache: dict[_Identity, str] = {}
_lock = threading.Lock()


def file_sha256(path: Path) -> str:
    """The SHA-256 of the file's content as lower-case hexadecimal digits. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_file(path: Path, sha256: str | None, whose: str, *, cure: str, again: bool = False) -> None:
    """Raise Damaged unless the file's content has this hash. None means that no hash was
    recorded, which is damage, too.

    `whose` and `cure` go into the message, which names no path because tenants may see it. `again` bypasses
    the cache: a failing disk can change a file's content without changing its times. Raises Unavailable if
    the file cannot be read.
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
            known = None if again else _cache.get(identity)
        if known is not None:
            return known
        found = hashlib.file_digest(file, "sha256").hexdigest()
    with _lock:
        if len(_cache) >= _MAX_CACHED:
            _cache.clear()
        _cache[identity] = found
    return found
