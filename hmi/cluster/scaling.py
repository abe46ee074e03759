"""Decides how many servers a cluster is to have, by how long texts wait and how busy servers are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

UP_WAIT_S: Final = 0.5
"""More servers are wanted while texts wait for longer than this, as the servers predict, on average."""
UP_AFTER_S: Final = 10.0
"""… for this long."""
UP_BY: Final = 1.5
"""The next number of servers divided by this one: a new server takes a while, so one at a time is slow."""
DOWN_BUSY: Final = 0.6
"""A server goes if the others would be no busier than this share of the time."""
DOWN_AFTER_S: Final = 300.0
"""… for this long. A server that goes costs those that stay loads of models."""


@dataclass
class Scaling:
    """The bounds, and since when more or fewer servers would do. Times are seconds of any one clock."""

    least: int
    most: int
    _short_since: float = field(default=math.inf)
    _ample_since: float = field(default=math.inf)

    def decide(self, waits_s: Sequence[float], busy: Sequence[float], at: float) -> int:
        """Return how many servers there are to be.

        waits_s: for each server, the seconds that its waiting texts will take. busy: for each server, the
        share of the last seconds in which it computed.
        """
        servers = len(waits_s)
        short = servers > 0 and sum(waits_s) / servers > UP_WAIT_S
        ample = servers > 1 and not short and sum(busy) / (servers - 1) < DOWN_BUSY
        self._short_since = min(self._short_since, at) if short else math.inf
        self._ample_since = min(self._ample_since, at) if ample else math.inf
        wanted = servers
        if at - self._short_since >= UP_AFTER_S:
            wanted, self._short_since = math.ceil(servers * UP_BY), at
        elif at - self._ample_since >= DOWN_AFTER_S:
            wanted, self._ample_since = servers - 1, at
        return max(self.least, min(self.most, wanted))
