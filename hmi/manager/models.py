"""Tenants' models: jobs create and update them and profile their token adaptation; rollback, deletion and
what a tenant sets for a model take effect at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, cast, get_args

from hmi.core import HEADLESS, Depth, DomainId, JobRecord, ModelId, ModelRecord, ModelVersion, Objective, Task
from hmi.errors import Conflict, InvalidInput, NotFound
from hmi.jobs.checks import checked_files, checked_texts
from hmi.jobs.options import AS_IT_IS, FineTuneOptions, Publish, Reading, reading_options
from hmi.jobs.specs import FineTuneSpec
from hmi.jobs.task_options import settled
from hmi.manager.domains import DomainOperations
from hmi.manager.parts import Parts, checked_options
from hmi.stores.records.registry import Registry

NOUNS = {"embedding": "an embedding", "generation": "a language model"}


def _root_for(registry: Registry, task: str, depth: Depth, branch: DomainId, now: str, field: str) -> str:
    """The root of a training's version: the domain's, or the one of the same source that computes all layers.

    now: that of the weights that it starts from, or else the domain's. Raises InvalidInput, which names
    `field`, if no root has the depth; or `task`, if models of that task do not stand on such a root.
    """
    own = registry.root(branch.root)
    if own.generates != (task == "generation"):
        raise InvalidInput(_other_root(own.name, task, generates=own.generates), field="task")
    if depth == "fast" and not own.split:
        raise InvalidInput(
            f"root {own.name} computes all layers: give full or auto, or name a domain of a root that looks "
            "up its lower layers",
            field=field,
        )
    if depth != "full":
        return now if depth == "auto" else own.name
    if not registry.root(now).split:
        return now
    found = registry.full_root(own.name)
    if found is None:
        source = own.source.get("name")
        raise InvalidInput(
            f"no root computes all layers of {source}: an administrator imports one "
            f"(hmi root import {own.name}-full {source} --split 0)",
            field=field,
        )
    return found.name


def _other_root(name: str, task: str, *, generates: bool) -> str:
    """Why models of the task do not stand on a root, and what to do."""
    if generates:
        return (
            f"root {name} is a language model, whose models write: they have no task {task}: "
            'give --task generation (over HTTP "task": "generation"), or name a domain of an encoder\'s root'
        )
    return f"root {name} is an encoder, which cannot write: name a domain of a language model's root"


def refuse_headless(task: Task, what: str) -> None:
    """Raise InvalidInput if models of the task cannot have `what`, since they have no head."""
    if task in HEADLESS:
        a = "an" if task == "embedding" else "a"
        raise InvalidInput(f"{a} {task} model has no {what}", field="model")


class TokenProfiles:
    """The operations on profiles of token adaptation.

    A job trains prompts and publishes the live version again with a profile.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def profile(
        self,
        model: str,
        files: Mapping[str, Path | bytes],
        *,
        prompts: bool = True,
        skip_bad_rows: int = 0,
        reading: Reading = AS_IT_IS,
        job_limit: int | None = None,
    ) -> JobRecord:
        """Publish the live version again with a profile of what merging does to its answers.

        files: data (labelled rows, required), dev (the rows that are held out), unlabelled (further texts).
        prompts: also train prompts on the rows of data that are not held out. Raises InvalidInput (no data,
        an embedding), InvalidData, NotFound, Conflict (a job is at work on it), QuotaExceeded, StorageFull.
        """
        wanted = ModelId.parse(model)
        live = self._parts.registry.model(wanted).live
        refuse_headless(live.task, "profile of token adaptation: it has no answers to compare")
        if "data" not in files:
            raise InvalidInput(
                "data is missing: a profile is made of labelled rows; send them as a multipart part, as "
                '{"path": …} below <data>/uploads, or name a file',
                field="data",
            )
        checked_files(live.task, files, skip_bad_rows, reading)
        spec = FineTuneSpec(
            model=str(wanted),
            domain=live.domain,
            task=live.task,
            mode="tokens",
            options=reading_options(reading, skip_bad_rows),
            version=live.version,
            prompts=prompts,
        )
        return self._parts.runner.submit(
            "fine_tune", spec.stored(), wanted.tenant, files, tenant_limit=job_limit
        )


def set_objective(
    registry: Registry,
    model: ModelId,
    change: Callable[[Objective], Mapping[str, Any]],
    others: Mapping[str, Any],
) -> ModelRecord:
    """See `Manager.set_objective`."""
    if "depth" in others:
        live = registry.model(model).live
        _root_for(registry, live.task, others["depth"], DomainId.parse(live.domain), live.root, "depth")

    def changed(record: ModelRecord) -> ModelRecord:
        objective = Objective(**change(record.objective))
        for field in ("agreement", "agreement_under_load"):
            if getattr(objective, field) is not None and record.live.task in HEADLESS:
                raise InvalidInput(
                    f"objective.{field}: {model} is {NOUNS[record.live.task]}, which has neither early exits "
                    f"nor a cascade, and whose tokens are not adapted: leave {field} out",
                    field=f"objective.{field}",
                )
        if others.get("known_share") is not None and record.live.task in HEADLESS:
            raise InvalidInput(
                f"known_share: {model} is {NOUNS[record.live.task]}, which knows no texts of its own: leave "
                "known_share out",
                field="known_share",
            )
        return record.model_copy(update={**others, "objective": objective})

    return registry.change_model(model, changed)


def refuse_existing(parts: Parts, model: ModelId) -> None:
    """Raise NotFound if the model's tenant does not exist, Conflict if the model does."""
    parts.registry.tenant(model.tenant)
    with suppress(NotFound):
        parts.registry.model(model)
        raise Conflict(f"model {model} exists already: update it, or choose another name", field="model")


def submit_fine_tune(
    parts: Parts, spec: FineTuneSpec, files: Mapping[str, Path | bytes], job_limit: int | None
) -> JobRecord:
    """Check the rows among `files` and queue the job. Raises InvalidData, and as `JobRunner.submit`."""
    checked_files(cast(Task, spec.task), files, spec.options.skip_bad_rows, spec.options.reading())
    inputs = {name.replace("_", "-"): file for name, file in files.items()}
    tenant = spec.model_id.tenant
    return parts.runner.submit("fine_tune", spec.stored(), tenant, inputs, tenant_limit=job_limit)


class ModelOperations:
    """The operations on models."""

    def __init__(self, parts: Parts, domains: DomainOperations) -> None:
        self._parts, self._domains = parts, domains

    def create(
        self,
        model: str,
        domain: str,
        task: str,
        files: Mapping[str, Path | bytes],
        options: Mapping[str, Any] | None,
        job_limit: int | None,
        asked: Mapping[str, Any] | None = None,
    ) -> JobRecord:
        wanted, branch = ModelId.parse(model), DomainId.parse(domain)
        if task not in get_args(Task):
            known = ", ".join(get_args(Task))
            raise InvalidInput(f"task {task[:80]!r} is unknown: use one of {known}", field="task")
        _check_data(task, files)
        refuse_existing(self._parts, wanted)
        self._domains.current(branch)
        depth = checked_options(FineTuneOptions, options).depth or "auto"
        begun = self._begun_on(wanted, branch, options)
        root = _root_for(self._parts.registry, task, depth, branch, begun, "options.depth")
        options = self._with_sibling(wanted, root, options)
        options = settled(cast(Task, task), options)
        spec = _spec(wanted, branch, root, cast(Task, task), "create", options, asked)
        return submit_fine_tune(self._parts, spec, files, job_limit)

    def update(
        self,
        model: str,
        files: Mapping[str, Path | bytes],
        options: Mapping[str, Any] | None,
        job_limit: int | None,
        publish: str,
        asked: Mapping[str, Any] | None = None,
    ) -> JobRecord:
        """Fine-tune a model further, on the domain's current version, which may be newer than that of
        the live version. Options that shape answers and are not given stay as in the live version."""
        wanted = ModelId.parse(model)
        record = self._parts.registry.model(wanted)
        live = record.live
        _check_data(live.task, files)
        if (options or {}).get("start") is not None:
            raise InvalidInput(
                "an update starts from its own live version: leave start out", field="options.start"
            )
        options = {**_choices(live), **_overrides(settled(live.task, options, update=True), live)}
        branch = DomainId.parse(live.domain)
        self._domains.current(branch)
        depth = checked_options(FineTuneOptions, options).depth or record.depth
        root = _root_for(self._parts.registry, live.task, depth, branch, live.root, "options.depth")
        if publish not in get_args(Publish):
            known = ", ".join(get_args(Publish))
            raise InvalidInput(f"publish {publish[:80]!r} is unknown: use one of {known}", field="publish")
        spec = _spec(wanted, branch, root, live.task, "update", options, asked)
        spec = spec.model_copy(update={"publish": cast(Publish, publish)})
        return submit_fine_tune(self._parts, spec, files, job_limit)

    def ramps(
        self,
        model: str,
        files: Mapping[str, Path | bytes],
        skip_bad_rows: int,
        reading: Reading,
        job_limit: int | None,
    ) -> JobRecord:
        """Publish the live version again with ramps trained on these texts."""
        wanted = ModelId.parse(model)
        live = self._parts.registry.model(wanted).live
        refuse_headless(live.task, "ramps: it has no answer that a ramp could give")
        if not files:
            raise InvalidInput(
                "there are no texts: give unlabelled (texts without answers), data, or both; send them as "
                'multipart parts, as {"path": …} below <data>/uploads, or name files',
                field="unlabelled",
            )
        paired = live.task == "pair" or live.rules.paired
        checked_texts(live.task, files, paired=paired, skip=skip_bad_rows, reading=reading)
        spec = FineTuneSpec(
            model=str(wanted),
            domain=live.domain,
            task=live.task,
            mode="ramps",
            options=reading_options(reading, skip_bad_rows),
            version=live.version,
        )
        return self._parts.runner.submit(
            "fine_tune", spec.stored(), wanted.tenant, files, tenant_limit=job_limit
        )

    def rollback(self, model: str, version: int) -> ModelRecord:
        record = self._parts.registry.set_current(ModelId.parse(model), version)
        self._tidy_improvement(record)
        return record

    def delete(self, model: str) -> None:
        wanted = ModelId.parse(model)
        self._parts.spare_artefacts([self._parts.registry.model(wanted)])
        record = self._parts.registry.delete_model(wanted)
        self._parts.deleted_models([record])
        self._tidy_improvement(record)

    def _tidy_improvement(self, record: ModelRecord) -> None:
        """Delete the rows of the model's background job if it has ended just now."""
        if record.improvement is not None:
            self._parts.runner.settle(record.improvement.job)

    def _begun_on(self, model: ModelId, branch: DomainId, options: Mapping[str, Any] | None) -> str:
        """The root of the model in `start`, if that is one of the domain's source; else the domain's."""
        registry, start = self._parts.registry, (options or {}).get("start")
        with suppress(InvalidInput, NotFound):  # `_with_sibling` tells these
            sibling = ModelId.parse(str(start or ""), "options.start")
            root = registry.root(registry.model(sibling).live.root)
            same = root.source.get("sha256") == registry.root(branch.root).source.get("sha256")
            if sibling.tenant == model.tenant and same and not root.split:
                return root.name
        return branch.root

    def _with_sibling(
        self, model: ModelId, root: str, options: Mapping[str, Any] | None
    ) -> Mapping[str, Any] | None:
        """The options, completed by the module of the model in `start`, if there is one.
        Raises InvalidInput, NotFound."""
        start = (options or {}).get("start")
        if options is None or start is None:
            return options
        sibling = ModelId.parse(str(start), "options.start")
        if sibling.tenant != model.tenant:
            raise InvalidInput(
                f"start {sibling} belongs to another tenant: name a model of {model.tenant}",
                field="options.start",
            )
        live = self._parts.registry.model(sibling).live
        if live.module is None or live.root != root:
            raise InvalidInput(
                f"{sibling} has no module for root {root}: name a model on that root", field="options.start"
            )
        module = live.module.model_dump(mode="json")
        if (
            options.get("module") is not None
            and checked_options(FineTuneOptions, options).module != live.module
        ):
            raise InvalidInput(
                f"{sibling} has another module: leave module out to take that module over",
                field="options.start",
            )
        return {**options, "module": module}


def _spec(
    model: ModelId,
    domain: DomainId,
    root: str,
    task: Task,
    mode: Literal["create", "update"],
    options: Mapping[str, Any] | None,
    asked: Mapping[str, Any] | None,
) -> FineTuneSpec:
    """The spec of a job that trains a model. Raises InvalidInput for a wrong option."""
    checked = checked_options(FineTuneOptions, options)
    spec = FineTuneSpec(model=str(model), domain=str(domain), task=task, mode=mode, options=checked)
    more = {} if root == domain.root else {"root": root}
    return spec.model_copy(update=more if asked is None else {**more, "asked": dict(asked)})


def _choices(live: ModelVersion) -> dict[str, Any]:
    """The options of a version that shape its answers."""
    if live.module is None:
        return {}
    module, length = live.module.model_dump(mode="json"), max(8, live.max_length)
    made: dict[str, Any] = {"module": module, "max_length": length}
    if live.rest != "fp16":
        made["rest"] = live.rest
    if live.task in HEADLESS:
        return made
    made["lexical"] = live.lexical
    if live.ramps:
        made["ramps"] = True  # never the old ones, which read other rows
    if live.transitions is not None:
        made["transitions"] = live.transitions
    if live.task != "pair" and not live.rules.paired:
        made["long_texts"] = "windows" if live.rules.windows else "cut"
    return made


def _overrides(options: Mapping[str, Any] | None, live: ModelVersion) -> dict[str, Any]:
    """The options of an update that override the live version's.

    Without `module` the live module's settings stay. A `module` without `kind` takes the live module's kind.
    """
    given = dict(options or {})
    module = given.get("module")
    if module is None:
        given.pop("module", None)
    elif isinstance(module, Mapping) and live.module is not None:
        given["module"] = {"kind": live.module.kind, **module}
    return given


def _check_data(task: str, files: Mapping[str, Path | bytes]) -> None:
    if task == "embedding" and files:
        given = next(iter(files))
        raise InvalidInput(f"an embedding model is not trained: leave {given} out", field=given)
    if task == "generation" and "unlabelled" in files:
        raise InvalidInput(
            "a generation model has no teacher that could complete prompts: leave unlabelled out",
            field="unlabelled",
        )
    if task != "embedding" and "data" not in files:
        raise InvalidInput(
            f"data is missing: a {task} model is trained on rows; send them as a multipart part, as "
            '{"path": …} below <data>/uploads, or name a file',
            field="data",
        )
