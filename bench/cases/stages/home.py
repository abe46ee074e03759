"""The data folder that `bench stages` measures: roots, domains and tenants' models, made by real jobs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.cases.quality.setting import ended
from bench.cases.stages.plan import Plan, Report
from bench.cases.stages.shuffled import publish_shuffled
from bench.cases.stages.tasks import TaskRows, load
from hmi.api.local import LocalCalls
from hmi.config import Settings
from hmi.core import ModelId, Progress
from hmi.errors import InvalidInput, NotFound
from hmi.model.files import write_json
from hmi.training.data.rows import Row

LARGE, SMALL = "large", "small"
"""A tenant's models on the measured root and on the small level's."""
SHUFFLED = "shuffled"
"""The large one with ramps that were taught on shuffled answers."""
INSIDE, TWO = "inside", "two"
"""The large one with a cascade: its own ramp answers first, or the small model does."""
ADAPTED, SMALL_ADAPTED = "adapted", "small-adapted"
"""The large and the small one with a profile of token adaptation."""
ALL = "all"
"""The large one with ramps, that profile, and a cascade whose small level is the small one."""
AGREEING = 500
"""The unlabelled texts of a profile of token adaptation."""
FORMAT = 1


@dataclass(frozen=True)
class Home:
    """A data folder with a tenant for each task. No server runs on it."""

    data: Path
    tasks: tuple[TaskRows, ...]

    def model(self, task: TaskRows, name: str = LARGE) -> ModelId:
        return ModelId(named(task.name), name)


def named(task: str) -> str:
    """The name of a task's tenant and domain."""
    return task.replace("_", "-")


def build(plan: Plan, data: Path, report: Report) -> Home:
    """Make what the folder lacks of the plan's roots, domains and models.

    Raises InvalidInput if the folder has models of these names that were trained on other rows, HmiError if
    a job fails.
    """
    home = Home(data, tuple(load(name, plan) for name in plan.tasks))
    calls = LocalCalls(Settings.from_env(None, data=data))
    with closing(calls):
        for root in _roots(plan):
            _ensure_root(calls, root, plan, report)
            for task in home.tasks:
                _ensure_domain(calls, root, task, report)
                _ensure_model(calls, home, root, task, plan, report)
        for task in home.tasks:
            small = None if plan.small is None else home.model(task, SMALL)
            _ensure_ramps(calls, home, task, report)
            _ensure_cascade(calls, home, task, INSIDE, None, report)
            _ensure_tokens(calls, home, task, ADAPTED, LARGE, plan.prompts, report)
            if small is not None:
                _ensure_cascade(calls, home, task, TWO, small, report)
                _ensure_tokens(calls, home, task, SMALL_ADAPTED, SMALL, True, report)
            _ensure_cascade(calls, home, task, ALL, small, report, ADAPTED)
    return home


def _roots(plan: Plan) -> list[str]:
    return [plan.root, *([] if plan.small is None else [plan.small])]


def _ensure_root(calls: LocalCalls, root: str, plan: Plan, report: Report) -> None:
    if root in {known["root"] for known in calls.request("GET", "/manage/roots")["roots"]}:
        return
    if root != plan.root:
        raise InvalidInput(
            f"the folder has no root {root!r}: import it first (hmi root import)", field="small"
        )
    report.say(f"importing {plan.source} as the root {root}")
    _run(calls, "/manage/roots", {"root": root, "source": plan.source}, None)


def _ensure_domain(calls: LocalCalls, root: str, task: TaskRows, report: Report) -> None:
    """Build the PLOT of the texts that the models are trained on. The streams are not among them."""
    domain = f"{root}/{named(task.name)}"
    if domain in {known["domain"] for known in calls.request("GET", "/manage/domains")["domains"]}:
        return
    report.say(f"building the domain {domain}")
    texts = [str(row.text) for row in (*task.labelled, *task.unlabelled)]
    with TemporaryDirectory(prefix="hmi-bench-stages-") as folder:
        corpus = Path(folder) / "corpus.txt"
        corpus.write_text("\n".join(" ".join(text.split()) for text in texts))
        _run(calls, "/manage/domains", {"domain": domain}, {"corpus": corpus})


def _ensure_model(
    calls: LocalCalls, home: Home, root: str, task: TaskRows, plan: Plan, report: Report
) -> None:
    model = home.model(task, LARGE if root == plan.root else SMALL)
    about = {
        "format": FORMAT, "root": root, "labelled": len(task.labelled), "unlabelled": len(task.unlabelled)
    }  # fmt: skip
    kept = home.data / f"bench-stages-{model}.json"
    if kept.exists() and json.loads(kept.read_text()) != about:
        raise InvalidInput(f"{model} was trained on other rows: use another --data folder", field="data")
    with suppress(NotFound):
        calls.request("GET", f"/manage/models/{model}")
        return
    write_json(kept, about)  # first, so that a run that is killed leaves no model without it
    tenants = {tenant["tenant"] for tenant in calls.request("GET", "/manage/tenants")["tenants"]}
    if model.tenant not in tenants:
        calls.request("POST", "/manage/tenants", {"tenant": model.tenant})
    report.say(f"training {model}")
    body = {
        "model": str(model),
        "domain": f"{root}/{named(task.name)}",
        "task": "classification",
        "options": {**plan.training, "ramps": False, "improve": False},
    }
    with TemporaryDirectory(prefix="hmi-bench-stages-") as folder:
        data = _written(Path(folder) / "data.jsonl", task.labelled)
        _run(calls, "/manage/models", body, {"data": data})


def _ensure_ramps(calls: LocalCalls, home: Home, task: TaskRows, report: Report) -> None:
    """Train the ramps of the task's large model on texts that it was not trained on; and shuffled ones."""
    model, shuffled = home.model(task), home.model(task, SHUFFLED)
    manager = calls.services.manager
    if not manager.registry.model(model).live.ramps:
        report.say(f"training the ramps of {model}")
        with TemporaryDirectory(prefix="hmi-bench-stages-") as folder:
            texts = _written(Path(folder) / "texts.jsonl", task.unlabelled)
            _run(calls, f"/manage/models/{model}/ramps", {}, {"unlabelled": texts})
    with suppress(NotFound):
        manager.registry.model(shuffled)
        return
    report.say(f"training ramps of {model} on shuffled answers")
    publish_shuffled(manager, model, task.unlabelled, shuffled)


def _ensure_copy(calls: LocalCalls, home: Home, task: TaskRows, name: str, of: str) -> ModelId:
    """Publish the live version of one of a task's models under another name."""
    model, registry = home.model(task, name), calls.services.manager.registry
    if model not in {ModelId(record.tenant, record.name) for record in registry.models(model.tenant)}:
        live = registry.model(home.model(task, of)).live
        registry.publish_model(model, live.model_copy(update={"version": 0, "job": f"{name}-{live.job}"}))
    return model


def _ensure_tokens(
    calls: LocalCalls, home: Home, task: TaskRows, name: str, of: str, prompts: bool, report: Report
) -> None:
    """Publish a model under another name, and profile its token adaptation."""
    model = _ensure_copy(calls, home, task, name, of)
    if calls.services.manager.registry.model(model).live.tokens:
        return
    report.say(f"profiling the token adaptation of {model}")
    with TemporaryDirectory(prefix="hmi-bench-stages-") as folder:
        data = _written(Path(folder) / "data.jsonl", [*task.labelled, *task.profiled])
        texts = _written(Path(folder) / "texts.jsonl", task.unlabelled[:AGREEING])
        files = {"data": data, "unlabelled": texts} if task.unlabelled else {"data": data}
        _run(calls, f"/manage/models/{model}/tokens", {"prompts": prompts}, files)


def _ensure_cascade(
    calls: LocalCalls,
    home: Home,
    task: TaskRows,
    name: str,
    small: ModelId | None,
    report: Report,
    of: str = LARGE,
) -> None:
    """Publish a model under another name, and profile a cascade for it."""
    model = _ensure_copy(calls, home, task, name, of)
    if calls.services.manager.registry.model(model).cascade is not None:
        return
    report.say(f"profiling the cascade of {model}")
    body = {} if small is None else {"small": str(small)}
    with TemporaryDirectory(prefix="hmi-bench-stages-") as folder:
        data = _written(Path(folder) / "data.jsonl", task.profiled)
        _run(calls, f"/manage/models/{model}/cascade", body, {"data": data})


def _written(path: Path, rows: Sequence[Row]) -> Path:
    path.write_text("".join(json.dumps({"text": row.text, "label": row.label}) + "\n" for row in rows))
    return path


def _run(calls: LocalCalls, path: str, body: dict[str, Any], files: dict[str, Path] | None) -> None:
    def quiet(progress: Progress) -> None:
        pass

    ended(calls, calls.request("POST", path, body, files)["job"], quiet)
