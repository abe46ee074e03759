"""The cost of each step (importing a root, building a PLOT, training a tenant), as the jobs report it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.cases.quality.setting import Say, Show, ended
from bench.cases.quality.tasks import QualityTask, load, named, unlabelled
from bench.harness.report import Row as Figure
from hmi.api.process.local import LocalCalls
from hmi.config import Settings
from hmi.errors import InvalidInput
from hmi.model.sources.source import DEFAULT_PACKAGE
from hmi.training.data.rows import Row

ROOT, DOMAIN, TENANT = "steps", "steps/cs", "steps"
CORPUS = "cs.txt.gz"


@dataclass(frozen=True)
class Steps:
    """The texts, sets and sizes of a run.

    `sets` and `corpora` are folders as for `bench quality`. `megabytes` of text make the PLOT. One tenant
    with `rows` rows is trained for each of `tasks`.
    """

    sets: Path
    corpora: Path
    megabytes: float = 2.0
    rows: int = 1_000
    tasks: tuple[str, ...] = ("clinc_work", "sick", "bc5cdr")
    teachers: bool = True


def run(plan: Steps, say: Say, show: Show) -> Iterator[Figure]:
    """Run the steps in a new data folder; yield their CPU seconds and peak memory. Raises HmiError."""
    if not (plan.corpora / CORPUS).is_file():
        raise InvalidInput(
            f"{plan.corpora / CORPUS} is not there: name the folder of the corpora", field="corpora"
        )
    with TemporaryDirectory(prefix="hmi-steps-") as folder:
        calls = LocalCalls(Settings.from_env(None, data=Path(folder) / "data"))
        try:
            yield from _root(calls, say, show)
            yield from _plot(calls, plan, Path(folder), say, show)
            calls.request("POST", "/manage/tenants", {"tenant": TENANT})
            for task in named(plan.tasks):
                for taught in (False, True) if plan.teachers else (False,):
                    yield from _tenant(calls, plan, task, Path(folder), taught, say, show)
        finally:
            calls.close()


def _root(calls: LocalCalls, say: Say, show: Show) -> Iterator[Figure]:
    say("importing the default root")
    job = calls.request("POST", "/manage/roots", {"root": ROOT, "source": DEFAULT_PACKAGE})["job"]
    yield from _figures("root_import", ended(calls, job, show))


def _plot(calls: LocalCalls, plan: Steps, folder: Path, say: Say, show: Show) -> Iterator[Figure]:
    text, wanted = folder / "text.txt", plan.megabytes * 1e6
    with gzip.open(plan.corpora / CORPUS, "rb") as corpus:
        text.write_bytes(b"".join(_first(corpus, wanted)))
    say(f"building a PLOT of {plan.megabytes:g} MB of text")
    job = calls.request("POST", "/manage/domains", {"domain": DOMAIN, "alpha": 50}, {"corpus": text})["job"]
    yield from _figures(
        f"plot_build_{plan.megabytes:g}mb", ended(calls, job, show), text.stat().st_size / 1e6
    )


def _tenant(
    calls: LocalCalls, plan: Steps, task: QualityTask, folder: Path, taught: bool, say: Say, show: Show
) -> Iterator[Figure]:
    name = f"{task.name}_taught" if taught else task.name
    rows = load(task, plan.sets)
    files = {"data": rows.train[: plan.rows], "dev": rows.dev[: plan.rows // 5]}
    if taught:
        files["unlabelled"] = unlabelled(task, plan.sets, plan.rows)
    paths = {part: folder / f"{name}-{part}.jsonl" for part in files}
    for part, path in paths.items():
        path.write_text(
            "".join(json.dumps(_as_row(row, task)) + "\n" for row in files[part]), encoding="utf-8"
        )
    say(f"training {name} on {len(files['data'])} rows")
    model, options = f"{TENANT}.{name.replace('_', '-')}", {"max_length": task.length}
    body = {"model": model, "domain": DOMAIN, "task": task.kind, "options": options}
    view = ended(calls, calls.request("POST", "/manage/models", body, paths)["job"], show)
    yield from _figures(f"tenant_{name}", view, len(files["data"]) / 1e3)


def _figures(name: str, view: dict[str, Any], size: float | None = None) -> Iterator[Figure]:
    """Yield CPU seconds, CPU seconds for each MB of text or 1,000 rows, and peak memory."""
    seconds, peak = view["cost"]["cpu_ms"] / 1e3, view["cost"]["peak_bytes"]
    yield Figure(f"{name}_cpu", round(seconds, 1), "s", runs=1)
    if size is not None:
        yield Figure(
            f"{name}_cpu_each", round(seconds / size, 1), "s/MB" if "plot" in name else "s/1000 rows", runs=1
        )
    why = None if peak is not None else "this system does not measure it"
    yield Figure(f"{name}_peak", None if peak is None else round(peak / 1e6), "MB", runs=1, why=why)


def _as_row(row: Row, task: QualityTask) -> dict[str, Any]:
    if task.kind == "tagging":
        return {"tokens": row.text, "tags": row.label} if row.label else {"tokens": row.text}
    answer = {"label": row.label} if row.label else {}
    if isinstance(row.text, tuple):
        return {"text": row.text[0], "text_pair": row.text[1], **answer}
    return {"text": row.text, **answer}


def _first(lines: Iterable[bytes], wanted: float) -> Iterator[bytes]:
    """Yield whole lines of at most this many bytes together."""
    taken = 0
    for line in lines:
        if taken >= wanted:
            return
        taken += len(line)
        yield line
