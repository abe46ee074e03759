"""Answers from the heads' outputs. A text is answered once the last of its windows has run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hmi.engine.admit.bundles import TaskPart
from hmi.engine.run.novelty import known
from hmi.engine.texts.item import Item
from hmi.engine.texts.request import AnswerProvenance, AnswerVersions, TextResult, Word
from hmi.model.tasks import InputAnswer, TaskKind
from hmi.model.tasks.words import Tagging
from hmi.model.text.reach import reach
from hmi.model.text.splitting import SplitText
from plot_store import ORDER_NAMES

Place = tuple[int, int]
"""The text of a pair (0 or 1), and the index of a word in it."""


def words_of(item: Item) -> list[Word]:
    """The words of a text whose windows have all run, in their order.

    Of a list of words, all are returned, also those that were cut off. Of a text, those that were read.
    """
    orders, text = _orders(item), item.request.text
    if isinstance(text, list):
        return [Word(word, None, None, orders.get((0, i), ())) for i, word in enumerate(text)]
    found = []
    for part, whole in enumerate((text,) if isinstance(text, str) else text):
        for i, (start, end) in sorted(_spans(item, whole).items()):
            if (part, i) in orders:
                found.append(Word(whole[start:end], start, end, orders[part, i], pair=part == 1))
    return found


def _spans(item: Item, text: str) -> Mapping[int, tuple[int, int]]:
    """Return the place of each word: a tagging model's words, or those of the tokenizer."""
    if item.split is not None:
        return dict(enumerate(item.split.spans))
    return item.bundle.root.tokenizer.word_spans(text, reach(item.bundle.version.max_length))


def _orders(item: Item) -> dict[Place, tuple[str, ...]]:
    """Return the n-gram that answered each token of each word, in the window where the word is farthest from
    both ends.
    """
    best: dict[Place, tuple[int, tuple[str, ...]]] = {}
    for index, window in enumerate(item.windows):
        for place, tokens in _places(window.types, window.words).items():
            inside = min(tokens[0], len(window) - 1 - tokens[0])
            if place not in best or inside > best[place][0]:
                best[place] = inside, tuple(_name(item, index, token) for token in tokens)
    return {place: names for place, (_, names) in best.items()}


def _places(types: Sequence[int], words: Sequence[int | None]) -> dict[Place, list[int]]:
    """The positions of each word's tokens."""
    found: dict[Place, list[int]] = {}
    for position, (part, word) in enumerate(zip(types, words, strict=True)):
        if word is not None:
            found.setdefault((part, word), []).append(position)
    return found


def _name(item: Item, window: int, token: int) -> str:
    """Return the name of the n-gram that answered a token. Without a look-up, its state was computed."""
    orders = item.partial.orders.get(window)
    return "computed" if orders is None else ORDER_NAMES[int(orders[token])]


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
