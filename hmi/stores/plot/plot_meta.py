"""The metadata that HMI stores with each PLOT version (`VersionInfo.meta` of plot_store)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from plot_store import VersionInfo, VersionMeta


@dataclass(frozen=True)
class PlotMeta:
    """The metadata of a PLOT version. Either `alpha` or `budget_bytes` says how many n-grams were
    selected."""

    root_version: str
    """The version of the root that the rows were computed for; "" if unknown."""
    lower: str | None = None
    """The artefact of the branch's own lower layers; None: the root's."""
    alpha: float | None = None
    budget_bytes: int | None = None
    sample: str | None = None
    """The sample of the corpus (`hmi.stores.tensors.samples`); None if none is kept."""
    report: Mapping[str, Any] = field(default_factory=dict)
    """Counts and sizes from the build."""

    @classmethod
    def of(cls, version: VersionInfo | VersionMeta) -> PlotMeta:
        """The metadata of a stored version. Another program may have published it without any."""
        return cls.from_dict(version.meta)

    @classmethod
    def from_dict(cls, meta: Mapping[str, Any]) -> PlotMeta:
        """Read stored metadata. Missing keys get the defaults, unknown keys are ignored."""
        return cls(
            root_version=meta.get("root_version") or "",
            lower=meta.get("lower"),
            alpha=meta.get("alpha"),
            budget_bytes=meta.get("budget_bytes"),
            sample=meta.get("sample"),
            report=meta.get("report") or {},
        )

    def to_dict(self) -> dict[str, Any]:
        """The JSON object to store."""
        meta = {
            "root_version": self.root_version,
            "lower": self.lower,
            "alpha": self.alpha,
            "report": dict(self.report),
        }
        given = {"budget_bytes": self.budget_bytes, "sample": self.sample}
        return meta | {name: value for name, value in given.items() if value is not None}


def lowers_of(versions: Iterable[VersionInfo | VersionMeta]) -> dict[str, str]:
    """Artefact names of lower layers, each with the ref of a version that they computed."""
    named = ((PlotMeta.of(version).lower, version.ref) for version in versions)
    return {lower: ref for lower, ref in named if lower is not None}


def samples_of(versions: Iterable[VersionInfo | VersionMeta]) -> set[str]:
    """The names of the samples of these versions."""
    named = (PlotMeta.of(version).sample for version in versions)
    return {sample for sample in named if sample is not None}
