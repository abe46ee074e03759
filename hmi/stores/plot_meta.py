"""What HMI records with each PLOT version that it publishes (`VersionInfo.meta` of plot_store)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from plot_store import VersionInfo


@dataclass(frozen=True)
class PlotMeta:
    """The meta of a PLOT version. One of alpha and budget_bytes says how much was selected."""

    root_version: str  # the version of its root that its rows were computed for; "" where nothing is recorded
    lower: str | None = None  # the artefact of the branch's own lower layers; None: the root's
    alpha: float | None = None
    budget_bytes: int | None = None
    report: Mapping[str, Any] = field(default_factory=dict)  # what the build counted and stored

    @classmethod
    def of(cls, version: VersionInfo) -> PlotMeta:
        """The meta of a stored version, also of one that another program published without it."""
        return cls.from_dict(version.meta)

    @classmethod
    def from_dict(cls, meta: Mapping[str, Any]) -> PlotMeta:
        """Read a stored version's meta; keys that it lacks get the defaults, and others are left out."""
        return cls(
            root_version=meta.get("root_version") or "",
            lower=meta.get("lower"),
            alpha=meta.get("alpha"),
            budget_bytes=meta.get("budget_bytes"),
            report=meta.get("report") or {},
        )

    def to_dict(self) -> dict[str, Any]:
        """The JSON object to store."""
        told = {
            "root_version": self.root_version,
            "lower": self.lower,
            "alpha": self.alpha,
            "report": dict(self.report),
        }
        return told if self.budget_bytes is None else {**told, "budget_bytes": self.budget_bytes}


def lowers_of(versions: Iterable[VersionInfo]) -> dict[str, str]:
    """Names of lower layers, each with the ref of a version that was computed by them."""
    named = ((PlotMeta.of(version).lower, version.ref) for version in versions)
    return {lower: ref for lower, ref in named if lower is not None}
