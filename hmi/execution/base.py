"""The interfaces of execution: what runs a batch, what may act between its layers, where the layers come
from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from torch import Tensor

from hmi.execution.batch import BatchKey, Left, Rows
from hmi.model.encoder import EncoderLayer
from hmi.model.modules import TenantModule

Pause = Callable[[], None]
"""Called before each layer: the thread may do something else first, for who waits for it."""


def no_pause() -> None:
    """Of `Pause`: go on at once."""


class Hook(Protocol):
    """One stage's work between two layers of one batch, on the executor's device and stream. It never
    blocks."""

    @property
    def at(self) -> frozenset[int]:
        """Before which layers it is called; 0: after retrieval."""
        ...

    def __call__(self, layer: int, rows: Rows) -> tuple[Rows, Left | None]:
        """The rows that go on, and the texts that leave here. `rows.x` is not changed in place."""
        ...


class Weights(Protocol):
    """Where the upper layers come from: memory, or one layer at a time as it is needed."""

    def __len__(self) -> int: ...

    def layer(self, index: int) -> EncoderLayer:
        """Asked for once a batch, right before the layer runs; may wait for it."""
        ...


class Executor(Protocol):
    """Runs one root's upper layers. Owns its device's weights and streams; knows no tenant, request or
    stage."""

    @property
    def layers(self) -> int:
        """Upper layers."""
        ...

    def fits(self, key: BatchKey) -> bool:
        """Whether it can run such a batch."""
        ...

    def space(self, tokens: int) -> Tensor:
        """Uninitialised fp32 [tokens, dim] that retrieval writes into, in the memory that suits the
        device."""
        ...

    def run(
        self,
        key: BatchKey,
        rows: Rows,
        modules: Sequence[TenantModule | None],
        hooks: Sequence[Hook] = (),
        pause: Pause = no_pause,
    ) -> Iterator[Left]:
        """Take packed rows through the layers; every text comes out once, those that a hook lets leave first.

        modules: one for each text of the batch, None = the root as it is; neighbours that share one run
        together.
        """
        ...
