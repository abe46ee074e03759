"""The memory that a process may use, and the memory that it holds."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hmi.model.memory import usable_memory
from hmi.resident import resident

MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_a_container_s_limit_counts_if_it_is_lower(tmp_path: Path) -> None:
    low, high, none = (tmp_path / name for name in ("low", "high", "none"))
    low.write_text("1048576\n")
    high.write_text(f"{2 * MACHINE}\n")
    none.write_text("max\n")
    assert usable_memory([high, none, tmp_path / "missing"]) == MACHINE
    assert usable_memory([none, low, high]) == 1 << 20


def test_resident_memory_is_the_process_s_own_and_that_of_mapped_files(tmp_path: Path) -> None:
    size = 16 << 20
    (tmp_path / "file").write_bytes(bytes(size))
    before = resident()
    own = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    own.write(bytes(size))
    after = resident()
    assert after.anonymous - before.anonymous > size // 2
    with (
        (tmp_path / "file").open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as pages,
    ):
        read = sum(pages[:: mmap.PAGESIZE])
        mapped = resident(os.getpid())
    assert mapped.files - after.files > size // 2
    assert mapped.all == mapped.anonymous + mapped.files
    assert (read, len(own)) == (0, size)


def test_a_process_that_has_ended_has_no_memory() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    with pytest.raises(OSError, match=str(child.pid)):
        resident(child.pid)
