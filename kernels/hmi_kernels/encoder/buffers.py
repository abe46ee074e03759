"""One thread's memory for a layer's run, which grows to what the largest batch so far needs."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from hmi_kernels.encoder import room
from hmi_kernels.encoder.pack import Memory, Places
from hmi_kernels.encoder.tile import lower, narrow, tile
from hmi_kernels.jit import address_of


class Buffers(ABC):
    """The memory that a record as `room` describes it points to."""

    def __init__(self) -> None:
        self._record = np.zeros(room.FIELDS, np.int64)
        codes = room.TILE_CODE, room.NARROW_CODE, room.LOWER_CODE
        self._record[list(codes)] = address_of(tile), address_of(narrow), address_of(lower)
        self._memory: Memory | None = None
        self._sizes: tuple[int, ...] = ()

    @abstractmethod
    def bytes_of(self, *sizes: int) -> dict[int, int]:
        """The bytes of each buffer, by its field, for layers and batches of these sizes."""

    def fitted(self, needed: tuple[int, ...]) -> int:
        """The address of the record, once its buffers are large enough for these sizes."""
        sizes = tuple(map(max, needed, self._sizes or needed))
        if sizes != self._sizes:
            self._sizes = ()  # if memory is short, the next batch must not trust half of the buffers
            places = Places()
            for at, size in self.bytes_of(*sizes).items():
                places.point_to_zeros(self._record, at, size + 64)
            self._memory = None  # first, so that both need not exist at once
            self._memory, _ = places.placed()
            self._sizes = sizes
        return int(self._record.ctypes.data)
