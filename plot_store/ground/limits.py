"""Limits on a store's size, checked before each segment and each import."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from plot_store.ground.arguments import check_number
from plot_store.ground.errors import StoreFull
from plot_store.ground.files import convert_os_errors, folder_bytes, free_bytes


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds on what builds, appends, compactions and imports write. `gc` and `delete` ignore them.

    Each process applies its own limits, so processes that write at once may exceed them by a segment each.
    """

    max_bytes: int | None = None  # size of the whole store on disk; None: unlimited
    min_free_bytes: int = 0  # bytes to leave free on the store's disk

    def __post_init__(self) -> None:
        if self.max_bytes is not None:
            check_number(
                "max_bytes", self.max_bytes, "pass a positive number of bytes, or None for no bound", least=1
            )
        check_number("min_free_bytes", self.min_free_bytes, "pass 0 or more", least=0)


def shortage(store: Path, limits: Limits, need: int) -> int:
    """Return how many bytes must go before `need` further ones fit; 0 if they fit. Raises StoreIO."""
    with convert_os_errors(f"measuring the room in {store}"):
        over = need - (free_bytes(store) - limits.min_free_bytes)
        if limits.max_bytes is not None:
            over = max(over, folder_bytes(store) + need - limits.max_bytes)
    return max(0, over)


def check_room(store: Path, limits: Limits, need: int, doing: str) -> None:
    """Raises StoreFull if `need` further bytes exceed a limit or the disk. Also raises StoreIO."""
    with convert_os_errors(f"measuring the room for {doing}"):
        free = free_bytes(store)
        if need > free - limits.min_free_bytes:
            kept = (
                f", {limits.min_free_bytes} of them to stay so (min_free_bytes)"
                if limits.min_free_bytes
                else ""
            )
            raise StoreFull(
                f"{doing} needs {need} bytes and {free} are free{kept}: free disk space or run gc, then run "
                "it again"
            )
        if limits.max_bytes is None:
            return
        used = folder_bytes(store)
    if used + need > limits.max_bytes:
        raise StoreFull(
            f"{doing} needs {need} bytes and the store holds {used} of at most {limits.max_bytes} "
            "(max_bytes): run gc, delete refs or raise the limit, then run it again"
        )
