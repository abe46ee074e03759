"""The sizes of a run of `bench background`, its loads and its columns."""

from __future__ import annotations

from dataclasses import dataclass

SATURATED = "saturated"
"""The load of callers that each send one call after another, so that the server is never idle."""
NONE = "none"
"""The column without a background job."""


@dataclass(frozen=True)
class Column:
    """A server with a background job: how its figures are named, and its settings."""

    name: str
    about: str
    percent: int
    """The setting `background_percent`; 100: the job is never paused."""


COLUMNS = (
    Column("paced", "nice 19, and paused while texts are answered", 1),
    Column("nice only", "nice 19", 100),
)


@dataclass(frozen=True)
class Plan:
    """The sizes of a run. The defaults give figures."""

    seconds: float = 6.0
    """Duration of each phase."""
    pairs: int = 5
    """Phases with and without the job, of each load and column."""
    shares: tuple[float, ...] = (0.1, 0.4, 0.8)
    """Loads at a fixed rate, as fractions of the capacity."""
    callers: int = 16
    """Callers of the saturated load, by which the capacity is measured."""
    tenants: int = 8
    rows: int = 2_000
    """Rows that the background job trains on."""
    settle_s: float = 1.0
    """Pause before each phase."""
    seed: int = 0

    @property
    def loads(self) -> tuple[str, ...]:
        return (*(f"{share:.0%}" for share in self.shares), SATURATED)
