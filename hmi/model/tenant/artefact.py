"""The tensors of a tenant's model, grouped by part.

In a file, a tensor's name is prefixed with its part: `head.out.weight`. Does not import torch, so that code
which only passes the tensors on starts quickly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from hmi.errors import Damaged
from hmi.model.tenant.stored_dtype import fp16_of

if TYPE_CHECKING:
    from torch import Tensor

Tensors = Mapping[str, "Tensor"]


@dataclass(frozen=True)
class Artefact:
    """The tensors of a module, a head, lexical features, transitions, ramps, prompts and known texts.

    Each part names its tensors as the `state_dict` of its class does. A part that the model lacks is empty.
    """

    module: Tensors = field(default_factory=dict)
    head: Tensors = field(default_factory=dict)
    lexical: Tensors = field(default_factory=dict)
    transitions: Tensors = field(default_factory=dict)
    ramps: Tensors = field(default_factory=dict)
    """`<site>.<name>`: the head of the ramp before that upper layer."""
    prompts: Tensors = field(default_factory=dict)
    """`<count>`: a set of so many prompts before each upper layer, [layers, count, dim]."""
    known: Tensors = field(default_factory=dict)
    """`OwnTexts.tensors`: what the model's own texts are like (`hmi.model.tenant.novelty`)."""

    @classmethod
    def split(cls, tensors: Tensors) -> Artefact:
        """Group a file's tensors by part. Tensors of no part are dropped.

        The tensors are not copied, except a module that rests in int8 (`hmi.model.tenant.stored_dtype`),
        which becomes fp16. Raises Damaged if its scales do not fit.
        """
        parts = {part: tensors_below(tensors, part) for part in cls._parts()}
        try:
            return cls(**{**parts, "module": fp16_of(parts["module"])})
        except (ValueError, RuntimeError) as error:
            raise Damaged(
                f"a tenant module's tensors are not a module ({error}): roll back or fine-tune again"
            ) from error

    def joined(self) -> dict[str, Tensor]:
        """The inverse of `split`, but for a module in int8: all tensors under their names in a file."""
        return {
            f"{part}.{name}": value for part in self._parts() for name, value in getattr(self, part).items()
        }

    def map(self, change: Callable[[Tensor], Tensor]) -> Artefact:
        """A copy in which `change` has been applied to each tensor."""
        return Artefact(
            **{part: {k: change(v) for k, v in getattr(self, part).items()} for part in self._parts()}
        )

    @classmethod
    def _parts(cls) -> tuple[str, ...]:
        return tuple(part.name for part in fields(cls))


def tensors_below(tensors: Tensors, prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with `prefix.`, under the rest of their names."""
    start = f"{prefix}."
    return {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}
