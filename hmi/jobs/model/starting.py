"""The weights that a training starts from, and the rows that these were trained on."""

from __future__ import annotations

from hmi.core import ModelId
from hmi.errors import InvalidInput
from hmi.jobs.model import import_module
from hmi.jobs.model.comparing import seen_by
from hmi.jobs.model.training_data import Data
from hmi.jobs.runtime.context import JobContext
from hmi.jobs.specs import FineTuneSpec
from hmi.model.sources.root import Root
from hmi.model.tasks import task_of_version
from hmi.model.tenant.artefact import Artefact
from hmi.stores.tensors.adapter_store import DamagedArtefact
from hmi.training.fit.trainer import Trainer
from hmi.training.tasks.row_keys import RowKeys


def warm_start(ctx: JobContext, spec: FineTuneSpec, root: Root, trainer: Trainer, data: Data) -> str | None:
    """Load the weights that training starts from.

    An update continues from the live version if labels and module are the same; a new model from the
    sibling in options.start; an import from its adapter. If the live version is damaged or stands on
    another root, the update starts without it, and a remark on this is returned. Raises Damaged for a
    damaged sibling.
    """
    mode, task, source = spec.mode, data.task, spec.source
    if mode == "import":
        trainer.start_from(import_module.start_state(ctx, root.info, task.name, task.labels))
        return None
    if source is None:
        return None
    live = ctx.registry.model(ModelId.parse(source, "options.start")).live
    same = live.labels == task.labels and task_of_version(live).reads == task.reads
    if mode == "create" and live.module != data.module:
        raise InvalidInput(
            f"{source} has another module: leave module out to take that module over", field="options.start"
        )
    if live.root != root.info.name:
        return (
            f"the live version stands on root {live.root}: this update on {root.info.name} was trained "
            "afresh, on these rows alone"
        )
    if live.module != data.module or (mode == "update" and not same):
        return None
    try:
        artefact = Artefact.split(ctx.adapters.get(live.artefact))
    except DamagedArtefact as error:
        ctx.log(error.message)
        if mode != "update":
            raise error.of(f"version {live.version} of {source}, which options.start names,") from error
        return (
            f"the live version {live.version} is damaged: this update was trained afresh, on these rows alone"
        )
    # If the labels or the task differ, only the module can be reused, not the head and its companions.
    artefact = artefact if same else Artefact(artefact.module)
    trainer.start_from(artefact.map(lambda value: value.float()))
    return None


def trained_before(ctx: JobContext, spec: FineTuneSpec) -> list[RowKeys]:
    """Row keys of the model that this one may continue from."""
    if spec.source is None:
        return []
    return [seen_by(ctx, ctx.registry.model(ModelId.parse(spec.source, "options.start")).live)]
