"""cupy, and other libraries' streams in it."""

from __future__ import annotations

from typing import Any


class NoDevice(RuntimeError):
    """There is no CUDA device of this number, or cupy is not installed."""


def import_cupy() -> Any:
    """Import cupy. Raises NoDevice."""
    try:
        import cupy
    except ImportError as error:
        raise NoDevice(f"cupy cannot be imported ({error}): pip install hmi-plot-store[cuda]") from error
    return cupy


def foreign_stream(cuda: Any, handle: int) -> Any:
    """cupy's view of a stream of another library; cuda: the module cupy.cuda."""
    return cuda.Stream.from_external(_Handle(handle))


class _Handle:
    """A raw handle in CUDA's stream protocol."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle
