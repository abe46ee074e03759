"""The sizes of a soak, and what it counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Plan:
    """The sizes of a run. The defaults give figures."""

    minutes: float = 30.0
    """Duration of the watched load."""
    share: float = 0.8
    """The load, as a fraction of the server's capacity beside the same other work."""
    tenants: int = 100
    calibration_s: float = 30.0
    """Seconds in which the capacity is measured."""
    settle_s: float = 180.0
    """Seconds of load before the memory at the beginning is read."""
    change_s: float = 0.5
    """Mean seconds between two changes of which version of a model answers."""
    tenant_s: float = 2.0
    """Mean seconds between two tenants that are created and deleted."""
    flood_s: float = 30.0
    """Seconds between two floods of a tenant, each of a sixth of this."""
    texts: int = 64
    """Different texts that are asked."""
    seed: int = 0


@dataclass
class Seen:
    """The counts and times that the clients saw."""

    answers: int = 0
    """Checked texts."""
    wrong: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    """Calls of patient clients that got no whole answer."""
    refused: Counter[str] = field(default_factory=Counter)
    """Answers other than success to patient clients, by their status and kind."""
    changes: Counter[str] = field(default_factory=Counter)
    """Acknowledged changes, by what was changed."""
    hostile: Counter[str] = field(default_factory=Counter)
    """Calls of clients that are slow, gone or flooding, by how they ended."""
    late: list[tuple[float, float]] = field(default_factory=list)
    """The beginning of each call in `time.monotonic()`, and its milliseconds."""
    memory: list[tuple[float, int]] = field(default_factory=list)
    """The server's own memory in bytes, with the time."""
    connections: list[tuple[float, int]] = field(default_factory=list)
    """The server's open connections, with the time."""
