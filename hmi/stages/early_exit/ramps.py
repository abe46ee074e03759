"""The costs of layers and ramps, and what an exit avoids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Costs:
    """Measured seconds for a text, of one shape of batch."""

    layer_s: tuple[float, ...]
    """[layers]: of each upper layer."""
    ramp_s: tuple[float, ...]
    """[layers]: of a ramp at each site, with what it takes to drop the texts that leave."""
    fixed_s: float = 0.0
    """The stage's other seconds for every text, whether it leaves or not, in the long run."""
    record_s: float = 0.0
    """The further seconds of a text that is recorded, beside one that is not."""

    def __post_init__(self) -> None:
        if len(self.layer_s) != len(self.ramp_s) or min((*self.layer_s, *self.ramp_s), default=0.0) < 0.0:
            raise ValueError("costs: layer_s and ramp_s need one time for each layer, none of them negative")

    @property
    def full_s(self) -> float:
        """Of all layers, without ramps."""
        return sum(self.layer_s)

    def rest_s(self, site: int) -> float:
        """Of the layers after a site."""
        return sum(self.layer_s[site:])


def saved_s(costs: Costs, active: Sequence[int]) -> list[float]:
    """The seconds that an exit at each active ramp avoids: the later layers, and the later active ramps."""
    return [
        costs.rest_s(site) + sum(costs.ramp_s[later] for later in active[i + 1 :])
        for i, site in enumerate(active)
    ]
