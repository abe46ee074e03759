"""One reference-counted owner of a database per path, since a process must never open LMDB twice."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar


class Owner(Protocol):
    """An object that owns a `Database`."""

    def abandon(self) -> None:
        """See `Database.abandon`."""

    def close(self) -> None:
        """See `Database.close`."""


T = TypeVar("T", bound=Owner)


@dataclass
class _Use(Generic[T]):
    """An owner and the number of its users."""

    owner: T
    pid: int  # of the process that opened it
    users: int = 0


class Shared(Generic[T]):
    """Reference-counted owners by their real path. Thread-safe. A forked child opens its own."""

    def __init__(self) -> None:
        self._uses: dict[str, _Use[T]] = {}
        self._lock = threading.Lock()
        # No fork while a path is opened or closed: the child would inherit an owner in between.
        os.register_at_fork(
            before=lambda: self._lock.acquire(),
            after_in_parent=lambda: self._lock.release(),
            after_in_child=self._renew,
        )

    def acquire(
        self, path: Path, open_one: Callable[[Path], T], accept: Callable[[T], None] = lambda _: None
    ) -> T:
        """Return the owner of this path, calling `open_one` if there is none, and add a use.

        `accept` is called with the owner before the use is counted; it may refuse by raising. Raises Forked,
        and what `open_one` and `accept` raise.
        """
        key = os.path.realpath(path)
        with self._lock:
            use = self._uses.get(key)
            if use is not None and use.pid != os.getpid():
                use.owner.abandon()
                use = None
            if use is None:
                use = self._uses[key] = _Use(open_one(Path(key)), os.getpid())
            accept(use.owner)
            use.users += 1
            return use.owner

    def release(self, owner: T) -> None:
        """Drop one use; the last closes the owner. Does nothing for an owner opened before a fork."""
        with self._lock:
            for key, use in self._uses.items():
                if use.owner is owner and use.pid == os.getpid():
                    use.users -= 1
                    if not use.users:
                        del self._uses[key]
                        owner.close()
                    return

    def _renew(self) -> None:
        self._lock = threading.Lock()
