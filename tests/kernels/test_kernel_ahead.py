"""Which lines of modules are fetched ahead: each once, of all runs in turn, and no faster than they are
needed."""

from __future__ import annotations

import numpy as np
import pytest
from hmi_kernels.encoder import ahead, room
from hmi_kernels.encoder.product import share, tiles_of
from hmi_kernels.encoder.tile import VECTORS, passes_of

WORDS = 4
CHUNK = ahead.LINE * WORDS


def test_each_part_of_a_module_is_fetched_once_and_runs_take_turns() -> None:
    record = np.zeros(room.FIELDS, np.int64)
    modules = np.zeros((3, ahead.AHEAD_FIELDS), np.int64)
    runs = np.zeros((4, ahead.RUN_FIELDS), np.int64)
    begins = [0x1000, 0x8000, 0xF000]
    sizes = [(640, 3000), (64, 64), (0, 5120)]
    """Bytes of a module's beginning, and of all."""
    for i, (module, begin, size) in enumerate(zip(modules, begins, sizes, strict=True)):
        module[:] = np.array(size) + begin
        run = runs[i + (i > 0)]  # the second run has no module
        run[ahead.MODULE], run[ahead.FETCHED] = module.ctypes.data, begin
    at = record.ctypes.data
    for begin in (True, False):
        panels, told = 5, []
        ahead.fetch(at, runs.ctypes.data, len(runs), begin, panels)
        for _ in range(40):
            t = 0
            while found := ahead.fetched(at, WORDS, t):
                told.append((found, t))
                t += 1
        wanted = [
            (first, first + rest) if begin else (first + rest, first + end)
            for first, (rest, end) in zip(begins, sizes, strict=True)
        ]
        asked = [address for first, last in wanted for address in range(first, last, CHUNK)]
        assert sorted(address for address, _ in told) == asked
        total = sum(last - first for first, last in wanted)
        assert max(t for _, t in told) <= total // panels // CHUNK + 1
        owners = [sum(address >= begin for begin in begins) for address, _ in told[:4]]
        assert owners == ([1, 2, 1, 1] if begin else [1, 3, 1, 3])


@pytest.mark.parametrize("rows", [2, 6, 7, 12, 16, 17, 40, 128])
def test_the_tiles_of_a_panel_fetch_the_panel_behind_it_in_parts(rows: int) -> None:
    record = np.zeros(room.FIELDS, np.int64)  # there is no module to fetch
    at, panel, words, tiles = record.ctypes.data, 0x10000, 12, tiles_of(rows)
    size, lines, left, passes = VECTORS * ahead.LINE * words, list[int](), rows, set[int]()
    for t in range(tiles):
        n = share(left, tiles - t)
        passes.add(passes_of(n))
        left -= n
        ahead.set_fetches(at, panel, words, n, t, tiles)
        for begin, apart in record[room.FETCHES :].reshape(-1, 2).tolist():
            if apart:
                assert apart == ahead.LINE
                lines += [begin + ahead.LINE * i for i in range(passes_of(n) * words)]
            else:
                assert begin == at, "a line that is there"
    behind = range(panel + size, panel + 2 * size, ahead.LINE)
    assert set(lines) <= {*range(panel + size, panel + 2 * size + size // 2, ahead.LINE)}
    if len(passes) == 1:  # with AVX2, tiles of 3 and 4 rows make parts of different sizes, which overlap
        assert len(set(lines)) == len(lines)
    if tiles > 1:
        assert set(behind) <= set(lines)
