"""Checks that LMDB can work on this machine and file system."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from plot_store.ground.errors import StoreIO

# 9p and virtiofs are absent: virtual machines and sandboxes reach their local disks through them.
_NETWORK: Final = ("nfs", "cifs", "smb", "afs", "ncp", "ceph", "gluster", "lustre", "sshfs", "s3fs", "rclone")
_MOUNTS: Final = Path("/proc/self/mountinfo")


def check_host(folder: Path, what: str) -> None:
    """Raises StoreIO on a big-endian machine, and for a folder on a network file system (Linux only).

    If the folder does not exist yet, its nearest existing parent is checked. `what` names the folder's
    content in the message.
    """
    if sys.byteorder != "little":
        raise StoreIO(
            f"{what} is written in little-endian numbers, which this big-endian machine reads wrongly: use a "
            "machine of another kind (x86-64, ARM)"
        )
    kind = file_system(folder)
    if any(part.startswith(_NETWORK) for part in kind.split(".")):  # "fuse.sshfs"
        raise StoreIO(
            f"{what} lies on a network file system ({kind}), where locks and shared memory do not work "
            "between processes: put it on a local disk (copy the folder while nothing has it open)"
        )


def file_system(folder: Path) -> str:
    """Return the type of the folder's file system, such as "ext4", or "" if it is unknown."""
    try:
        while not folder.exists():
            folder = folder.parent
        number = os.stat(folder).st_dev
        lines = _MOUNTS.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    device = f"{os.major(number)}:{os.minor(number)}"
    for line in lines:  # 36 35 98:0 /root /mount/point options… - type source options
        before, _, after = line.partition(" - ")
        if before.split()[2:3] == [device]:
            return after.split(" ")[0]
    return ""
