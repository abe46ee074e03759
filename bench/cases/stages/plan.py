"""The sections and sizes of a run of `bench stages`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from bench.harness.report import known
from hmi.errors import InvalidInput
from hmi.model.sources.source import DEFAULT_PACKAGE

SECTIONS = ("exits", "cascade", "throughput", "isolation", "tokens", "planner", "overhead", "shards")
"""The modules of this folder that have `measure(plan, home, report) -> Iterator[Row]`."""
TASKS = ("mag_fields", "pubmed_sections", "subj", "sci_cite")
"""Sets of at least 9,000 rows with short texts, none of which the deep root's distillation has read."""


class ProgressReport(Protocol):
    """Receives the progress of a run."""

    def say(self, what: str) -> None:
        """Take the name of the work that begins."""
        ...

    def did(self, texts: int) -> None:
        """Add this many texts to those that have been asked."""
        ...


@dataclass(frozen=True)
class StagesPlan:
    """The sizes of a run. The defaults give figures."""

    sets: Path
    """The folder of the labelled sets."""
    traces: Path | None = None
    """The folder of the arrival trace. None: all arrivals are Poisson's."""
    tasks: tuple[str, ...] = TASKS
    root: str = "minilm"
    """The root whose models have exits, the large level of the cascades."""
    small: str | None = None
    """The root of the small level. None: there is no cascade between two roots."""
    source: str = DEFAULT_PACKAGE
    """The source that the root is imported from if the data folder lacks it."""
    sections: tuple[str, ...] = SECTIONS
    runs: int = 7
    """Interleaved repetitions of each ratio."""
    texts: int = 3_000
    """Texts of each stream."""
    warm: int = 1_500
    """The first texts of each stream, which callers ask as fast as they are answered. The others arrive at
    times of their own."""
    saturated: int = 6_000
    """Texts at full speed before throughput is measured."""
    before: int = 600
    """Texts between the first ones of a stream and its drift."""
    labelled: int = 500
    """Rows that each model is trained on."""
    unlabelled: int = 2_000
    """Further texts that its ramps are trained on."""
    profiled: int = 500
    """Rows that the cascades are profiled on."""
    golds: int = 600
    """Texts of each task that the section `cascade` scores and times."""
    cascade_warm: int = 1_000
    """Texts before them, asked at full speed, by which a cascade's gate may open."""
    replays: int = 2
    """The replays of each trace in the section `planner`."""
    interval_s: float = 1.0
    """The least seconds of an interval of constant rate. In OTAS's synthetic trace it is a second."""
    intervals: int = 10
    """The intervals of a replay, each with a rate of its own."""
    planner_warm: int = 250
    """Texts of each task, asked at full speed, by which exits and cascades may open in section `planner`."""
    answers: int = 10_000
    """Answers that the section `isolation` checks."""
    callers: int = 32
    """Callers that each wait for one text at a time."""
    chunk: int = 100
    """The texts that one arm is asked before it is the other's turn."""
    training: dict[str, Any] = field(default_factory=dict)
    """Options of the models' training."""

    def __post_init__(self) -> None:
        """Raises InvalidInput for an unknown section, and for a stream that is too short for its parts."""
        known(self.sections, SECTIONS)
        least = max(self.drift_at, self.cascade_warm + self.golds)
        if self.texts <= least:
            raise InvalidInput(f"{self.texts} texts are too few: use more than {least}", field="texts")

    @property
    def drift_at(self) -> int:
        """The index of the first drifted text of a stream."""
        return self.warm + self.before


QUICK: dict[str, Any] = {
    "tasks": TASKS[2:3],
    "runs": 2,
    "texts": 50,
    "warm": 20,
    "saturated": 30,
    "before": 10,
    "labelled": 60,
    "unlabelled": 40,
    "profiled": 210,
    "golds": 20,
    "cascade_warm": 20,
    "replays": 1,
    "interval_s": 0.1,
    "intervals": 2,
    "planner_warm": 4,
    "answers": 100,
    "callers": 8,
    "chunk": 10,
    "training": {"epochs": 1},
}
"""The least sizes with which every section runs."""
