"""Answers from the heads' outputs. A text is answered once the last of its windows has run."""

from __future__ import annotations

from hmi.engine.bundles import TaskPart
from hmi.engine.item import Item
from hmi.engine.request import Provenance, TextResult, Versions
from hmi.engine.words import words_of


def answer_of(item: Item, part: TaskPart) -> TextResult:
    """Return the answer of a text whose windows have all run, without its timing."""
    task, text = item.bundle.task.with_transitions(part.transitions), item.request.text
    outputs = [item.partial.outputs[i] for i in range(len(item.windows))]
    merged = task.merge(outputs, item.windows, len(text) if isinstance(text, list) else 0)
    temperature = item.bundle.version.temperature if item.request.calibrated else None
    return TextResult(
        **vars(task.answer(merged, scores=item.request.scores, temperature=temperature)),
        model=item.request.model,
        version=item.bundle.version.version,
        truncated=any(window.truncated for window in item.windows),
        provenance=_provenance(item) if item.request.provenance else None,
        words=words_of(item) if item.request.words else None,
    )


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
