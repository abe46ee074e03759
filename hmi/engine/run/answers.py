"""Answers from the heads' outputs. A text is answered once the last of its windows has run."""

from __future__ import annotations

from dataclasses import replace

from hmi.engine.admit.bundles import TaskPart
from hmi.engine.run.novelty import known
from hmi.engine.run.words import words_of
from hmi.engine.texts.item import Item
from hmi.engine.texts.request import AnswerProvenance, AnswerVersions, TextResult
from hmi.model.tasks import InputAnswer, TaskKind
from hmi.model.tasks.words import Tagging
from hmi.model.text.splitting import SplitText


def answer_of(item: Item, part: TaskPart) -> TextResult:
    """Return the answer of a text whose windows have all run, without its timing."""
    task = _task(item, part)
    answer = _of_raw(item, task, item.split) if isinstance(task, Tagging) and item.split else _of(item, task)
    return TextResult(
        **{**vars(answer), "known": known(item)},
        model=item.request.model,
        version=item.bundle.version.version,
        truncated=any(window.truncated for window in item.windows),
        tokens=item.tokens,
        provenance=_provenance(item) if item.request.provenance else None,
        words=words_of(item) if item.request.words else None,
    )


def _task(item: Item, part: TaskPart) -> TaskKind:
    """The task that answers: the model's, unless the request wants embeddings of another length."""
    task, wanted = item.bundle.task, item.request.normalise
    if wanted is not None and wanted != task.rules.normalise:
        task = replace(task, rules=task.rules.model_copy(update={"normalise": wanted}))
    return task.with_transitions(part.transitions)


def _of(item: Item, task: TaskKind, *, plain: bool = False) -> InputAnswer:
    """plain: give the probabilities as they are, also if the request wants calibrated ones."""
    request, version = item.request, item.bundle.version
    outputs = [item.partial.outputs[i] for i in range(len(item.windows))]
    merged = task.merge(outputs, item.windows, item.words)
    temperature = version.temperature if request.calibrated and not plain else None
    answer = task.answer(merged, scores=request.scores, temperature=temperature)
    wanted = request.raw and task.name not in ("tagging", "embedding")
    return replace(answer, outputs=merged.tolist()) if wanted else answer


def _of_raw(item: Item, task: Tagging, split: SplitText) -> InputAnswer:
    """The answer to a text that the caller has not split: entities."""
    request, task = item.request, task.by_pieces(item.request.aggregation)
    assert isinstance(request.text, str)
    joins = request.calibrated and request.aggregation != "none"
    fitted = item.bundle.version.entity_calibration if joins else None
    return task.entities(_of(item, task, plain=fitted is not None), request.text, split, fitted)


def _provenance(item: Item) -> AnswerProvenance:
    version, partial = item.bundle.version, item.partial
    return AnswerProvenance(
        plot=dict(partial.hits),
        layers=partial.layers,
        exact=item.request.exact,
        versions=AnswerVersions(
            model=version.version,
            plot=version.plot_version,
            domain=version.domain,
            root=f"{version.root}/{version.root_version}",
        ),
        stages=dict(partial.stages),
        confidence=partial.confidence,
        planner=partial.planner,
    )
