"""The integers that a batch needs on the device, in one copy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hmi.execution.cuda.device import Device, Stream

Ints = NDArray[np.int64]


class ArrayUpload:
    """Collects arrays, then copies all of them at once."""

    def __init__(self) -> None:
        self._arrays: list[Ints] = []
        self._size = 0
        self._there: Tensor | None = None

    def add(self, array: Ints) -> Callable[[], Tensor]:
        """Return a function that, after `send`, gives the array on the device, in its shape."""
        begin = self._size
        self._arrays.append(array.reshape(-1))
        self._size += array.size
        return lambda: self._at(begin, array.shape)

    @property
    def size(self) -> int:
        """Numbers in all arrays."""
        return self._size

    def send(self, device: Device, stream: Stream, to: Tensor | None = None) -> None:
        """Start the copy. to: memory [size] that all batches of a shape share; None: memory of its own."""
        host = device.pinned((self._size,), torch.int64)
        if self._size:
            np.concatenate(self._arrays, out=host.numpy())
        self._there = device.empty((self._size,), torch.int64) if to is None else to
        stream.copy(host, self._there, "indexes")

    def _at(self, begin: int, shape: tuple[int, ...]) -> Tensor:
        assert self._there is not None, "send first"
        return self._there[begin : begin + int(np.prod(shape))].view(shape)
