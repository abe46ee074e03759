"""The data folder that `bench stages` measures: roots, domains and tenants' models, made by real jobs."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from bench.cases.stages.plan import SECTIONS, ProgressReport, StagesPlan
from bench.cases.stages.tasks import StageRows, load
from bench.harness.home import ended
from bench.harness.report import Figure
from hmi.api.process.local import LocalCalls
from hmi.config import Settings
from hmi.core import ModelId, now
from hmi.errors import InvalidInput
from hmi.jobs.model.train_ramps import hold_out_texts
from hmi.manager import Manager
from hmi.model.files import write_json
from hmi.model.sources.root import load_root
from hmi.model.tasks import task_of_version
from hmi.model.tenant.artefact import Artefact
from hmi.stores.layout import Layout
from hmi.training.data.rows import Row
from hmi.training.fit.features import dev_examples
from hmi.training.fit.trainer import reading_trainer
from hmi.training.for_stages.ramps import RampTexts, train_ramps
from hmi.training.tasks.row_keys import joined_keys
from hmi.training.tasks.splits import encoded_split

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
SEED = 1
"""By which answers are shuffled."""
FORMAT = 1


@dataclass(frozen=True)
class TaskHome:
    """A data folder with a tenant for each task. No server runs on it."""

    data: Path
    tasks: tuple[StageRows, ...]

    def model(self, task: StageRows, name: str = LARGE) -> ModelId:
        return ModelId(named(task.name), name)


def named(task: str) -> str:
    """The name of a task's tenant and domain."""
    return task.replace("_", "-")


def measured(plan: StagesPlan, data: Path, report: ProgressReport) -> Iterator[Figure]:
    """Measure the plan's sections, in the order of SECTIONS.

    data: the data folder, which receives what it lacks of roots, domains and models. Raises InvalidInput,
    Conflict if a server runs on it, HmiError if a job fails.
    """
    torch.set_num_threads(1)
    home = build(plan, data, report)
    for section in SECTIONS:
        if section in plan.sections:
            module = importlib.import_module(f"bench.cases.stages.{section}")
            yield from module.measure(plan, home, report)


def build(plan: StagesPlan, data: Path, report: ProgressReport) -> TaskHome:
    """Make what the folder lacks of the plan's roots, domains and models.

    Raises InvalidInput if the folder has models of these names that were trained on other rows, HmiError if
    a job fails.
    """
    home = TaskHome(data, tuple(load(name, plan) for name in plan.tasks))
    with closing(LocalCalls(Settings.from_env(None, data=data))) as calls:
        making = _Making(calls, plan, home, report)
        roots = {LARGE: plan.root} if plan.small is None else {LARGE: plan.root, SMALL: plan.small}
        for name, root in roots.items():
            making.root(root)
            for task in home.tasks:
                making.domain(root, task)
                making.model(name, root, task)
        for task in home.tasks:
            small = None if plan.small is None else home.model(task, SMALL)
            making.ramps(task)
            making.shuffled(task)
            making.cascade(task, INSIDE, None)
            making.tokens(task, ADAPTED, LARGE)
            if small is not None:
                making.cascade(task, TWO, small)
                making.tokens(task, SMALL_ADAPTED, SMALL)
            making.cascade(task, ALL, small, of=ADAPTED)
    return home


@dataclass(frozen=True)
class _Making:
    """Makes the parts of a home that it lacks. Each method makes one."""

    calls: LocalCalls
    plan: StagesPlan
    home: TaskHome
    report: ProgressReport

    @property
    def manager(self) -> Manager:
        return self.calls.services.manager

    def root(self, root: str) -> None:
        if root in {known.name for known in self.manager.registry.roots()}:
            return
        if root != self.plan.root:
            raise InvalidInput(
                f"the folder has no root {root!r}: import it first (hmi root import)", field="small"
            )
        self.report.say(f"importing {self.plan.source} as the root {root}")
        run_job(self.calls, "/manage/roots", {"root": root, "source": self.plan.source})

    def domain(self, root: str, task: StageRows) -> None:
        """Build the PLOT of the texts that the models are trained on. The streams are not among them."""
        domain = f"{root}/{named(task.name)}"
        known = self.calls.request("GET", "/manage/domains")["domains"]
        if domain in {each["domain"] for each in known}:
            return
        self.report.say(f"building the domain {domain}")
        texts = [" ".join(str(row.text).split()) for row in (*task.labelled, *task.unlabelled)]
        run_job(self.calls, "/manage/domains", {"domain": domain}, corpus="\n".join(texts))

    def model(self, name: str, root: str, task: StageRows) -> None:
        model, labelled, unlabelled = self.home.model(task, name), len(task.labelled), len(task.unlabelled)
        about = {"format": FORMAT, "root": root, "labelled": labelled, "unlabelled": unlabelled}
        kept = self.home.data / f"bench-stages-{model}.json"
        if kept.exists() and json.loads(kept.read_text()) != about:
            raise InvalidInput(f"{model} was trained on other rows: use another --data folder", field="data")
        if self._has(model):
            return
        write_json(kept, about)  # first, so that a run that is killed leaves no model without it
        tenants = {tenant["tenant"] for tenant in self.calls.request("GET", "/manage/tenants")["tenants"]}
        if model.tenant not in tenants:
            self.calls.request("POST", "/manage/tenants", {"tenant": model.tenant})
        self.report.say(f"training {model}")
        body = {
            "model": str(model),
            "domain": f"{root}/{named(task.name)}",
            "task": "classification",
            "options": {**self.plan.training, "ramps": False, "improve": False},
        }
        run_job(self.calls, "/manage/models", body, data=_lines(task.labelled))

    def ramps(self, task: StageRows) -> None:
        """Train the ramps of the task's large model on texts that it was not trained on."""
        model = self.home.model(task)
        if not self.manager.registry.model(model).live.ramps:
            self.report.say(f"training the ramps of {model}")
            run_job(self.calls, f"/manage/models/{model}/ramps", {}, unlabelled=_lines(task.unlabelled))

    def shuffled(self, task: StageRows) -> None:
        """Publish the large model with ramps that are trained as the job trains them, but with the answers
        shuffled among the texts. A control: almost no text may leave by them."""
        name, manager = self.home.model(task, SHUFFLED), self.manager
        if self._has(name):
            return
        self.report.say(f"training ramps on shuffled answers: {name}")
        version = manager.registry.model(self.home.model(task)).live
        assert version.module is not None, "all models are trained"
        root = load_root(Layout(self.home.data).root(version.root, version.root_version))
        stored, reads = manager.adapters.get(version.artefact), task_of_version(version)
        parts = hold_out_texts(list(task.unlabelled), joined_keys([]))
        with manager.plots.reader(version.plot_version) as reader:
            trainer = reading_trainer(root, version.module, reads, Artefact.split(stored))
            windows, most = version.rules.windows, version.max_length
            fit, held = (
                RampTexts(split, dev_examples(root, reader, split, trainer.plan.lexical))
                for some in (parts.fit, parts.held)
                for split in [encoded_split(some, root.tokenizer, most, windows=windows)]
            )
            ramps = train_ramps(trainer, trainer.reading(reads), fit, held, shuffled=SEED)
        others = {key: value for key, value in stored.items() if not key.startswith("ramps.")}
        tensors = {**others, **Artefact(ramps=ramps.tensors).joined()}
        artefact, size = manager.adapters.put(tensors, manager.adapters.about(version.artefact))
        changed = {"artefact": artefact, "ramps": ramps.sites, "bytes": size, "created": now()}
        changed |= {"version": 0, "job": f"{SHUFFLED}-{version.job}"}
        manager.registry.publish_model(name, version.model_copy(update=changed))

    def tokens(self, task: StageRows, name: str, of: str) -> None:
        """Publish a model under another name, and profile its token adaptation.

        Prompts are trained for the small root only, since they take most of the time on a deep one.
        """
        model = self._copy(task, name, of)
        if self.manager.registry.model(model).live.tokens:
            return
        self.report.say(f"profiling the token adaptation of {model}")
        files = {"data": _lines([*task.labelled, *task.profiled])}
        if task.unlabelled:
            files["unlabelled"] = _lines(task.unlabelled[:AGREEING])
        run_job(self.calls, f"/manage/models/{model}/tokens", {"prompts": of == SMALL}, **files)

    def cascade(self, task: StageRows, name: str, small: ModelId | None, of: str = LARGE) -> None:
        """Publish a model under another name, and profile a cascade for it."""
        model = self._copy(task, name, of)
        if self.manager.registry.model(model).cascade is None:
            self.report.say(f"profiling the cascade of {model}")
            body = {} if small is None else {"small": str(small)}
            run_job(self.calls, f"/manage/models/{model}/cascade", body, data=_lines(task.profiled))

    def _has(self, model: ModelId) -> bool:
        return model in {ModelId(one.tenant, one.name) for one in self.manager.registry.models()}

    def _copy(self, task: StageRows, name: str, of: str) -> ModelId:
        """Publish the live version of one of a task's models under another name."""
        model, registry = self.home.model(task, name), self.manager.registry
        if not self._has(model):
            live = registry.model(self.home.model(task, of)).live
            registry.publish_model(model, live.model_copy(update={"version": 0, "job": f"{name}-{live.job}"}))
        return model


def run_job(calls: LocalCalls, path: str, body: dict[str, Any], **contents: str) -> None:
    """Run a job with files of these contents. Raises HmiError if it does not succeed."""
    with TemporaryDirectory(prefix="hmi-bench-stages-") as folder:
        files = {}
        for name, content in contents.items():
            files[name] = Path(folder) / (f"{name}.txt" if name in ("corpus", "text") else f"{name}.jsonl")
            files[name].write_text(content)
        ended(calls, path, body, files)


def _lines(rows: Sequence[Row]) -> str:
    return "".join(json.dumps({"text": row.text, "label": row.label}) + "\n" for row in rows)
