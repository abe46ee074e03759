"""The cost of each step (importing a root, building a PLOT, training a tenant), as the jobs report it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.cases.quality.setting import Say, Show
from bench.cases.quality.tasks import QualityTask, load, named, unlabelled
from bench.harness.home import ended
from bench.harness.report import Figure
from hmi.api.process.local import LocalCalls
from hmi.config import Settings
from hmi.errors import InvalidInput
from hmi.model.sources.source import DEFAULT_PACKAGE
from hmi.training.data.rows import Row

ROOT, DOMAIN, TENANT = "steps", "steps/cs", "steps"
CORPUS = "cs.txt.gz"
TASKS = ("clinc_work", "sick", "bc5cdr")
"""The sets on which a tenant is trained without and with a teacher."""


@dataclass(frozen=True)
class StepSizes:
    """The texts, sets and sizes of a run.

    `sets` and `corpora` are folders as for `bench quality`. `megabytes` of text make the PLOT. A tenant has
    `rows` rows.
    """

    sets: Path
    corpora: Path
    megabytes: float
    rows: int
    say: Say
    show: Show

    def run(self) -> Iterator[Figure]:
        """Run the steps in a new data folder; yield their CPU seconds and peak memory. Raises HmiError."""
        if not (self.corpora / CORPUS).is_file():
            raise InvalidInput(
                f"{self.corpora / CORPUS} is not there: name the folder of the corpora", field="corpora"
            )
        with TemporaryDirectory(prefix="hmi-steps-") as name:
            folder = Path(name)
            with closing(LocalCalls(Settings.from_env(None, data=folder / "data"))) as calls:
                self.say("importing the default root")
                body = {"root": ROOT, "source": DEFAULT_PACKAGE}
                yield from _figures("root_import", ended(calls, "/manage/roots", body, show=self.show))
                yield from self._plot(calls, folder)
                calls.request("POST", "/manage/tenants", {"tenant": TENANT})
                for task in named(TASKS):
                    for taught in (False, True):
                        yield from self._tenant(calls, task, folder, taught)

    def _plot(self, calls: LocalCalls, folder: Path) -> Iterator[Figure]:
        text = folder / "text.txt"
        with gzip.open(self.corpora / CORPUS, "rb") as corpus:
            text.write_bytes(b"".join(corpus.readlines(int(self.megabytes * 1e6))))
        self.say(f"building a PLOT of {self.megabytes:g} MB of text")
        view = ended(calls, "/manage/domains", {"domain": DOMAIN, "alpha": 50}, {"corpus": text}, self.show)
        yield from _figures(f"plot_build_{self.megabytes:g}mb", view, text.stat().st_size / 1e6)

    def _tenant(self, calls: LocalCalls, task: QualityTask, folder: Path, taught: bool) -> Iterator[Figure]:
        name = f"{task.name}_taught" if taught else task.name
        rows = load(task, self.sets)
        files = {"data": rows.train[: self.rows], "dev": rows.dev[: self.rows // 5]}
        if taught:
            files["unlabelled"] = unlabelled(task, self.sets, self.rows)
        paths = {part: folder / f"{name}-{part}.jsonl" for part in files}
        for part, path in paths.items():
            path.write_text("".join(json.dumps(_as_row(row)) + "\n" for row in files[part]), encoding="utf-8")
        self.say(f"training {name} on {len(files['data'])} rows")
        model, options = f"{TENANT}.{name.replace('_', '-')}", {"max_length": task.length}
        body = {"model": model, "domain": DOMAIN, "task": task.kind, "options": options}
        view = ended(calls, "/manage/models", body, paths, self.show)
        yield from _figures(f"tenant_{name}", view, len(files["data"]) / 1e3)


def _figures(name: str, view: dict[str, Any], size: float | None = None) -> Iterator[Figure]:
    """Yield CPU seconds, CPU seconds for each MB of text or 1,000 rows, and peak memory."""
    seconds, peak = view["cost"]["cpu_ms"] / 1e3, view["cost"]["peak_bytes"]
    yield Figure(f"{name}_cpu", round(seconds, 1), "s", runs=1)
    if size is not None:
        unit = "s/MB" if "plot" in name else "s/1000 rows"
        yield Figure(f"{name}_cpu_each", round(seconds / size, 1), unit, runs=1)
    why = None if peak is not None else "this system does not measure it"
    yield Figure(f"{name}_peak", None if peak is None else round(peak / 1e6), "MB", runs=1, why=why)


def _as_row(row: Row) -> dict[str, Any]:
    """Return the JSON object of a row: a list of words is tagged, a tuple is a pair."""
    if isinstance(row.text, list):
        return {"tokens": row.text, **({"tags": row.label} if row.label else {})}
    texts = row.text if isinstance(row.text, tuple) else (row.text,)
    return {
        **dict(zip(("text", "text_pair"), texts, strict=False)),
        **({"label": row.label} if row.label else {}),
    }
