"""The interfaces of execution: executors, hooks between layers, and providers of layers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

from torch import Tensor

from hmi.execution.batch import BatchKey, Left, Rows
from hmi.model.network.encoder import EncoderLayer
from hmi.model.tenant.modules import TenantModule

Output = Tensor | Exception
"""One window's output, or the error that it has instead."""


class Hook(Protocol):
    """One stage's work between two layers of one batch, on the executor's device and stream. Never blocks."""

    @property
    def at(self) -> frozenset[int]:
        """The layers before which the hook is called. At 0 it is called right after retrieval."""
        ...

    @property
    def concerns(self) -> Collection[int] | None:
        """The texts of the batch that the stage may treat otherwise than without it; None: all of them. A
        mapping names the setting that each text runs under, if it is not the batch's."""
        return None

    def __call__(self, layer: int, rows: Rows) -> tuple[Rows, Left | None]:
        """Return the rows that continue, and the texts that leave here. Must not change `rows.x` in place."""
        ...

    def ended(self, texts: Sequence[int], outputs: list[Output]) -> list[Output]:
        """Take the outputs of texts that went through all layers, and return those to answer with.

        texts: indexes into the batch, ascending. Called once a batch or more often, on its thread. If it
        raises, the texts are answered with the outputs as they were, and the hook is closed.
        """
        return outputs

    def close(self) -> None:
        """Give back what the hook still holds. Called once, when the batch has ended or failed."""


@runtime_checkable
class Failing(Protocol):
    """A hook that is told when its batch fails."""

    def failed(self) -> None:
        """Take note that the batch has failed before all layers had run. `close` follows."""
        ...


class Layers(Protocol):
    """The upper layers for one batch."""

    def layer(self, index: int, rows: int) -> EncoderLayer:
        """Return a layer that `rows` rows are to run through; may wait for it.

        Called in the order of the layers, right before each runs; the layer before it is not used any more.
        """
        ...


class Weights(Protocol):
    """A provider of the upper layers: all in memory, or one at a time as it is needed."""

    def __len__(self) -> int: ...

    def batch(self) -> AbstractContextManager[Layers]:
        """Return the layers for one batch, which begins when the context is entered.

        A batch may leave it before all layers have run.
        """
        ...


class Executor(Protocol):
    """Runs one root's upper layers. Owns the weights and streams of its device."""

    @property
    def layers(self) -> int:
        """The number of upper layers."""
        ...

    def fits(self, key: BatchKey) -> bool:
        """Return whether the executor can run batches with this key.

        Nothing calls it yet: each root has one executor, which runs every key.
        """
        ...

    def space(self, tokens: int) -> Tensor:
        """Return uninitialised fp32 [tokens, dim] for retrieval to fill, in memory that suits the device."""
        ...

    def prefetch(self, modules: Sequence[TenantModule | None]) -> None:
        """Start copying the modules of a coming batch to the device. Does not wait; a no-op on a CPU."""
        ...

    def prepare(self, module: TenantModule) -> int:
        """Make the executor's own form of a module, ahead of the first batch. Thread-safe.

        Returns the bytes that the form takes as long as the module lives; 0 if the executor needs none. A
        module that was not prepared is prepared by its first batch. Raises ValueError if the module is not of
        the layers' sizes.
        """
        ...

    def run(
        self, key: BatchKey, rows: Rows, modules: Sequence[TenantModule | None], hooks: Sequence[Hook] = ()
    ) -> Iterator[Left]:
        """Run packed rows through the layers. Yields every text as soon as it leaves the layers.

        A text that a hook has answered, but not taken out of the rows, is yielded again when it ends.

        modules: one for each text of the batch; None runs the root without a module. Adjacent texts with the
        same module run together.
        """
        ...
