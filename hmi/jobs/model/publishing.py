"""Stores what a training made, and describes it as a version that is ready to be published."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hmi.core import ModelVersion, now
from hmi.jobs.model.tenant_training import TrainedModel
from hmi.jobs.model.training_data import Data
from hmi.jobs.runtime.context import JobContext
from hmi.jobs.specs import FineTuneSpec
from hmi.model.sources.generative_root import GenerativeRoot
from hmi.model.sources.root import Root
from hmi.training.tasks.row_keys import RowKeys, joined_keys, keys_as_text


def stored_version(
    ctx: JobContext,
    spec: FineTuneSpec,
    root: Root | GenerativeRoot,
    plot: str,
    data: Data | None,
    made: TrainedModel,
    before: Sequence[RowKeys],
    **fields: Any,
) -> ModelVersion:
    """Store the model's tensors, and return its version without a number.

    plot: the PLOT version. data: None for an embedding. before: the keys of rows that the weights it started
    from were trained on. fields: further fields of the version. The PLOT version is in the bucket afterwards.
    Raises StorageFull, Unavailable.
    """
    about: dict[str, str] = {"task": made.task.name}
    if data is not None:
        about["rows"] = keys_as_text(joined_keys(data.train, *before))
    ctx.share(plot)
    artefact, size = ctx.adapters.put(made.artefact.joined(), about)
    described: dict[str, Any] = {
        "version": 0,
        "artefact": artefact,
        "domain": spec.domain,
        "plot_version": plot,
        "root": root.info.name,
        "root_version": root.info.version,
        "task": made.task.name,
        "labels": made.task.labels,
        "rules": made.task.rules,
        "module": None if data is None else data.module,
        "max_length": made.max_length,
        "metrics": made.metrics,
        "lexical": bool(made.artefact.lexical),
        "transitions": spec.options.transitions,
        "ramps": made.ramps,
        "temperature": made.temperature,
        "known": made.known,
        "entity_calibration": made.entities,
        "rest": spec.options.rest or "fp16",
        "bytes": size,
        "created": now(),
        "job": ctx.job.job,
    }
    return ModelVersion(**{**described, **fields})
