"""Uploads a level table to a device: the structs that lookup.cu reads, slots and rows, in one allocation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hmi_kernels.lookup import ops
from hmi_kernels.lookup.cuda import Array, DeviceTable, LookupDevice
from hmi_kernels.lookup.layout import MAX_N, Bytes, header_bytes, scales_at, stride
from hmi_kernels.lookup.table import DamagedRow, IndexRun, Ints, LevelTable, RowsView, salt_word

ALIGN: Final = 256  # of arrays in device memory: whole memory transactions, and aligned vector loads
CHUNK_BYTES: Final = 64 << 20  # rows checked and uploaded together
# The sizes of the structs of lookup.cu, in fields of 8 bytes.
TABLE_WORDS, STEP_WORDS, LEVEL_WORDS, SEGMENT_WORDS = 7 + MAX_N, 3, 13, 2


class DeviceFull(MemoryError):
    """The table does not fit into the device's free memory."""

    def __init__(self, needed: int, free: int) -> None:
        super().__init__(
            f"the table needs {needed} bytes of device memory and {free} are free: "
            "close other device readers, use int8 rows, compact the branch, or look up on the CPU"
        )
        self.needed = needed
        self.free = free


@dataclass
class _Plan:
    """The place of each array in the allocation. Segments that several indexes share are placed once."""

    size: int  # bytes so far
    at: dict[tuple[int, int], int]  # (address, bytes) on the host -> offset in the allocation

    def place(self, array: NDArray[Any]) -> None:
        key = _identity(array)
        if key not in self.at:
            self.at[key] = self.size
            self.size += _up(array.nbytes)


def upload(
    table: LevelTable, device: LookupDevice, soon: Callable[[Bytes], None] = lambda rows: None
) -> DeviceTable:
    """Copy a table's indexes and rows to a device, and check every row that has not been checked yet.

    soon: called with rows one chunk before they are read, so that it can prefetch them from disk. Raises
    DeviceFull, and DamagedRow if a row fails its check; nothing stays allocated then.
    """
    with device.active(None):
        plan = _plan(table)
        free = device.free_bytes()
        if plan.size > free:
            raise DeviceFull(plan.size, free)
        try:
            memory = device.reserve(plan.size)
        except MemoryError as error:  # allocated by others in the meantime
            raise DeviceFull(plan.size, device.free_bytes()) from error
        address = device.address(memory)
        head = _structs(table, plan, address)
        _write(device, memory, 0, head)
        _fill(table, plan, device, memory, soon)
        ops.check_places(table)
        device.read(memory[:1])  # waits for the copies, so that any stream may use them
        return DeviceTable(device, table.n, table.dim, plan.size, memory, address)


def _identity(array: NDArray[Any]) -> tuple[int, int]:
    return array.ctypes.data, array.nbytes


def _up(size: int) -> int:
    return -(-size // ALIGN) * ALIGN


def _plan(table: LevelTable) -> _Plan:
    views = [view for run in table.runs for view in run.segments]
    words = (
        TABLE_WORDS
        + STEP_WORDS * len(table.steps)
        + LEVEL_WORDS * len(table.runs)
        + SEGMENT_WORDS * len(views)
    )
    plan = _Plan(_up(8 * words), {})
    for run in table.runs:
        plan.place(run.slots)
    for view in views:
        plan.place(view.rows)
    return plan


def _structs(table: LevelTable, plan: _Plan, base: int) -> Ints:
    """The structs of lookup.cu for an allocation at `base`: Table, Steps, Levels, Segments."""
    levels: list[int] = []
    segments: list[int] = []
    for run in table.runs:
        levels += _level(run, table, base + plan.at[_identity(run.slots)], len(segments) // SEGMENT_WORDS)
        for view in run.segments:
            segments += [base + plan.at[_identity(view.rows)], view.rows.shape[0]]
    steps = base + 8 * TABLE_WORDS
    level_at = steps + 8 * table.steps.size
    kind = [table.n, table.dim, len(table.steps), table.window == "causal"]
    head = [*kind, steps, level_at, level_at + 8 * len(levels)]
    positions = [*table.positions.tolist(), *[0] * (MAX_N - table.n)]
    return np.array([*head, *positions, *table.steps.ravel().tolist(), *levels, *segments], np.int64)


def _level(run: IndexRun, table: LevelTable, slots: int, first: int) -> list[int]:
    return [
        slots,
        run.slots.size,
        first,
        len(run.segments),
        run.shift,
        run.direct,
        run.dtype,
        run.depth,
        stride(table.n, run.order, table.dim, run.dtype, table.window),
        scales_at(run.order),
        header_bytes(table.n, run.order, table.window),
        salt_word(run),
        min(run.reach, run.slots.size),
    ]


def _fill(
    table: LevelTable, plan: _Plan, device: LookupDevice, memory: Array, soon: Callable[[Bytes], None]
) -> None:
    """Upload slots and rows, the rows of shared segments once."""
    done: set[int] = set()
    segment = 0
    for run in table.runs:
        _write(device, memory, plan.at[_identity(run.slots)], run.slots)
        for view in run.segments:
            at = plan.at[_identity(view.rows)]
            if at not in done:
                for start, rows in _checked(view, table, run.order, segment, soon):
                    _write(device, memory, at + start * rows.shape[1], rows)
                done.add(at)
            segment += 1


def _checked(
    view: RowsView, table: LevelTable, order: int, segment: int, soon: Callable[[Bytes], None]
) -> Iterator[tuple[int, Bytes]]:
    """Yield a segment's rows in chunks, each with the index of its first row. Rows not
    checked yet are checked.

    Raises DamagedRow.
    """
    step = max(1, CHUNK_BYTES // view.rows.shape[1] // 64) * 64  # a multiple of 64: whole words of the bitmap
    soon(view.rows[:step])
    for start in range(0, len(view.rows), step):
        soon(view.rows[start + step : start + 2 * step])
        rows = view.rows[start : start + step].copy()  # so that what was checked is what is uploaded
        words = view.verified[start // 64 : (start + step) // 64]
        seen = np.unpackbits(words.view(np.uint8), bitorder="little")[: len(rows)].astype(np.bool_)
        if not seen.all():
            kind = rows, table.n, order, table.window
            bad = ~seen & ~ops.check_rows(*kind) & ~ops.check_rows(*kind, old=True)
            if bad.any():
                raise DamagedRow(segment, start + int(bad.argmax()))
        yield start, rows


def _write(device: LookupDevice, memory: Array, at: int, host: NDArray[Any]) -> None:
    flat = host.reshape(-1).view(np.uint8)
    device.write(flat, memory[at : at + flat.size])
