"""The memory that a process may use."""

from __future__ import annotations

import os
from pathlib import Path

from hmi.model.memory import usable_memory

MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_a_container_s_limit_counts_if_it_is_lower(tmp_path: Path) -> None:
    low, high, none = (tmp_path / name for name in ("low", "high", "none"))
    low.write_text("1048576\n")
    high.write_text(f"{2 * MACHINE}\n")
    none.write_text("max\n")
    assert usable_memory([high, none, tmp_path / "missing"]) == MACHINE
    assert usable_memory([none, low, high]) == 1 << 20
