"""Answers from the heads' outputs. A text is answered once the last of its windows has run."""

from __future__ import annotations

from dataclasses import replace

from hmi.engine.bundles import TaskPart
from hmi.engine.item import Item
from hmi.engine.knowing import known
from hmi.engine.request import Provenance, TextResult, Versions
from hmi.engine.words import words_of
from hmi.model.tasks import Answer, TaskKind
from hmi.model.tasks.words import Tagging


def answer_of(item: Item, part: TaskPart) -> TextResult:
    """Return the answer of a text whose windows have all run, without its timing."""
    return TextResult(
        **vars(_answer(item, _task(item, part))),
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


def _answer(item: Item, task: TaskKind) -> Answer:
    request, temperature = item.request, item.bundle.version.temperature
    if isinstance(task, Tagging) and item.split is not None:
        task = task.by_pieces(request.aggregation)
    outputs = [item.partial.outputs[i] for i in range(len(item.windows))]
    merged = task.merge(outputs, item.windows, item.words)
    answer = task.answer(
        merged, scores=request.scores, temperature=temperature if request.calibrated else None
    )
    raw = merged.tolist() if request.raw and task.name not in ("tagging", "embedding") else None
    answer = replace(answer, known=known(item), outputs=raw)
    if isinstance(task, Tagging) and item.split is not None:
        assert isinstance(request.text, str)
        return task.entities(answer, request.text, item.split)
    return answer


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
