"""The tensors of a tenant's model by part. In a file each tensor's name stands behind its part's:
`head.out.weight`.

Does not import torch, for code that only hands the tensors on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

Tensors = Mapping[str, "Tensor"]


@dataclass(frozen=True)
class Artefact:
    """A module, a head, lexical features and transitions, each as its own class names its tensors; {} for
    none."""

    module: Tensors = field(default_factory=dict)
    head: Tensors = field(default_factory=dict)
    lexical: Tensors = field(default_factory=dict)
    transitions: Tensors = field(default_factory=dict)

    @classmethod
    def split(cls, tensors: Tensors) -> Artefact:
        """The parts of a file's tensors; those of no part are left out."""
        return cls(**{part: tensors_below(tensors, part) for part in cls._parts()})

    def joined(self) -> dict[str, Tensor]:
        """The tensors under the names that a file gives them."""
        return {
            f"{part}.{name}": value for part in self._parts() for name, value in getattr(self, part).items()
        }

    def map(self, change: Callable[[Tensor], Tensor]) -> Artefact:
        """With each tensor changed."""
        return Artefact(
            **{part: {k: change(v) for k, v in getattr(self, part).items()} for part in self._parts()}
        )

    @classmethod
    def _parts(cls) -> tuple[str, ...]:
        return tuple(part.name for part in fields(cls))


def tensors_below(tensors: Tensors, prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with `prefix` and a dot, without both."""
    start = f"{prefix}."
    return {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}
