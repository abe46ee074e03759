"""The measured agreement of models under shards of each bitwidth, kept beside the shards of their root."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from hmi.model.files import write_json
from hmi.stages.early_exit.evidence import Audits, upper_bound
from hmi.stages.elastic_shards.making import FOLDER, check_of
from hmi.stages.elastic_shards.store import ShardStore
from hmi.stages.elastic_shards.versions import BITS

FILE: Final = "fidelity.json"
FORMAT: Final = 1
ERROR: Final = 0.05
"""The probability with which the bound of a disagreement may be wrong."""


@dataclass(frozen=True)
class Fidelity:
    """For each artefact and bitwidth: the number of texts, and those answered otherwise than in full."""

    models: Mapping[str, Mapping[int, Audits]] = field(default_factory=dict)
    """The audits of each bitwidth, by artefact."""

    def bits(self, artefact: str, agreement: float | None) -> int | None:
        """Return the fewest bits with which a model keeps the agreement; None if there are none, or if it was
        not measured, or if it wants none."""
        if agreement is None:
            return None
        found = self.models.get(artefact, {})
        enough = (b for b in BITS if b in found and upper_bound(found[b], ERROR) <= 1.0 - agreement)
        return next(enough, None)

    def pooled(self, bits: int) -> Audits:
        """Return the counts of all models together."""
        mine = [by_bits[bits] for by_bits in self.models.values() if bits in by_bits]
        return Audits(sum(a.seen for a in mine), sum(a.disagreed for a in mine))


def write_fidelity(folder: Path, store: ShardStore, found: Fidelity) -> None:
    """Keep what was measured for the shards of the root in `folder`. Raises StorageFull."""
    models = {
        artefact: {str(bits): [a.seen, a.disagreed] for bits, a in by_bits.items()}
        for artefact, by_bits in found.models.items()
    }
    about = {"format": FORMAT, "shards": store.made, "models": models}
    write_json(folder / FOLDER / FILE, {**about, "check": check_of(about)})


def read_fidelity(folder: Path, store: ShardStore) -> Fidelity:
    """Return what was measured for these shards. Nothing, if the file is missing, damaged, of other shards
    or of a newer format: no model then runs on shards."""
    try:
        about: Any = json.loads((folder / FOLDER / FILE).read_text(encoding="utf-8"))
        check = about.pop("check")
        if check != check_of(about) or about["format"] > FORMAT or about["shards"] != store.made:
            return Fidelity()
        return Fidelity(
            {
                artefact: {int(bits): Audits(*counts) for bits, counts in by_bits.items()}
                for artefact, by_bits in about["models"].items()
            }
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return Fidelity()
