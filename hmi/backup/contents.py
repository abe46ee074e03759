"""The list of what a data folder holds, and how a backup takes each part. This is the only such list.

A part that is not listed is copied, so that nothing new is left out; a test then asks for its entry here.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

SNAPSHOTS: Final = ".snapshots"
"""The folder of snapshots that backups are being made from, below the data folder."""


class How(Enum):
    """The way in which a snapshot takes a part of the data folder."""

    REGISTRY = "a copy of the LMDB environment, in one transaction"
    STORE = "a copy of the PLOT store's catalogue in one transaction, and links to its segments"
    LINKED = "hard links: files are replaced by renaming and never change in place, but for APPENDED ones"
    COPIED = "copies, since the files may change in place"
    LEFT_OUT = "nothing: the part belongs to a running process"


PARTS: Final[dict[str, How]] = {
    "FORMAT": How.COPIED,
    "registry": How.REGISTRY,
    "plots": How.STORE,
    "roots": How.LINKED,
    "adapters": How.LINKED,
    "lowers": How.LINKED,
    "samples": How.LINKED,
    "profiles": How.LINKED,
    "exits": How.LINKED,
    "cascades": How.LINKED,
    "tokens": How.LINKED,
    "jobs": How.LINKED,
    "misses": How.LINKED,
    "uploads": How.LINKED,  # the operator may change files in place, which the sending of a backup notices
    "files": How.LINKED,
    "audit": How.COPIED,
    "demo": How.COPIED,
    "incoming": How.LEFT_OUT,
    "server.lock": How.LEFT_OUT,
    "server.json": How.LEFT_OUT,
    SNAPSHOTS: How.LEFT_OUT,
}
APPENDED: Final = frozenset({"log.txt"})
"""Names of files in linked parts that grow in place: they are copied."""
_OF_PROCESSES: Final = frozenset({"lock", ".lock", "lock.mdb", "write.lock", ".pacing"})


def how(part: str) -> How:
    """The way in which a snapshot takes the file or folder `part` at the top of a data folder."""
    return PARTS.get(part, How.COPIED)


def is_carried(name: str) -> bool:
    """Return whether a backup carries files of this name, in any part. Locks, half-written files and what
    processes tell each other are left out.
    """
    return name not in _OF_PROCESSES and not name.endswith(".tmp")
