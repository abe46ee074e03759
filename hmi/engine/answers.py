"""Answers from the heads' outputs. A text is answered once the last of its windows has run."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from hmi.engine.bundles import TaskPart
from hmi.engine.item import Item
from hmi.engine.request import Provenance, TextRequest, TextResult, Versions
from hmi.model.tasks import TaskKind


def answer_of(item: Item, part: TaskPart) -> TextResult:
    """Return the answer of a text whose windows have all run, without its timing."""
    task, text = _task(item.bundle.task, item.request).with_transitions(part.transitions), item.request.text
    outputs = [item.partial.outputs[i] for i in range(len(item.windows))]
    merged = task.merge(outputs, item.windows, len(text) if isinstance(text, list) else 0)
    temperature = item.bundle.version.temperature if item.request.calibrated else None
    return TextResult(
        **vars(task.answer(merged, scores=item.request.scores, temperature=temperature)),
        model=item.request.model,
        version=item.bundle.version.version,
        truncated=any(window.truncated for window in item.windows),
        tokens=item.tokens,
        outputs=_outputs(merged, task) if item.request.raw else None,
        provenance=_provenance(item) if item.request.provenance else None,
    )


def _task(task: TaskKind, request: TextRequest) -> TaskKind:
    """The task that answers: the model's, unless the request wants an embedding of another length."""
    if request.normalise is None or request.normalise == task.rules.normalise:
        return task
    return replace(task, rules=task.rules.model_copy(update={"normalise": request.normalise}))


def _outputs(merged: Tensor, task: TaskKind) -> list[float] | None:
    """The outputs of a head that reads a whole text; None if the task has none."""
    if task.name in ("tagging", "embedding"):
        return None
    numbers: list[float] = merged.tolist()
    return numbers


def _provenance(item: Item) -> Provenance:
    version, partial = item.bundle.version, item.partial
    return Provenance(
        plot=dict(partial.hits),
        layers=partial.layers,
        exact=item.request.exact,
        versions=Versions(
            model=version.version,
            plot=version.plot_version,
            domain=version.domain,
            root=f"{version.root}/{version.root_version}",
        ),
        stages=dict(partial.stages),
        confidence=partial.confidence,
        planner=partial.planner,
    )
