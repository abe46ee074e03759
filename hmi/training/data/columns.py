"""Mapping a table's column names to the fields of a task's rows, where that is unambiguous."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hmi.core import Task

NEEDED: Mapping[Task, tuple[str, ...]] = {
    "tagging": ("tokens", "tags"),
    "pair": ("text", "text_pair", "label"),
    "multilabel": ("text", "labels"),
    "regression": ("text", "value"),
    "classification": ("text", "label"),
}
"""What a row of each task has; `regression` may have `text_pair`, too. The first that fits tells
a table's task."""
LISTS = ("tokens", "tags", "labels")
EXAMPLES: Mapping[Task, str] = {
    "classification": '{"text": "…", "label": "…"}',
    "pair": '{"text": "…", "text_pair": "…", "label": "…"}',
    "multilabel": '{"text": "…", "labels": ["…", "…"]}',
    "regression": '{"text": "…", "value": 3.5}',
    "tagging": '{"tokens": ["…"], "tags": ["O"]}',
    "embedding": "",
}
"""A row, as errors show it."""

SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "text": ("sentence", "review", "content", "document", "message", "comment", "body", "utterance"),
    "label": ("class", "category", "intent", "sentiment", "target"),
    "labels": ("categories", "classes"),
    "value": ("score", "rating"),
    "tokens": ("words",),
    "tags": ("ner_tags", "pos_tags"),
}
PAIRS = (
    ("text", "text_pair"),
    ("sentence1", "sentence2"),
    ("text1", "text2"),
    ("text_a", "text_b"),
    ("sentence_a", "sentence_b"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
)
SHOWN = 12


@dataclass(frozen=True)
class Columns:
    """`names`: the task's names by the table's. `problem`: why there are none."""

    names: Mapping[str, str]
    problem: str = ""


def read_columns(
    found: Sequence[str], task: Task, *, answers: bool = True, paired: bool | None = None
) -> Columns:
    """What the columns `found` are to `task`. answers=False: of unlabelled rows; `paired`: these
    have two texts."""
    columns, lacks = _matched(found, task, answers=answers, paired=paired)
    return columns if lacks is None else Columns({}, _missing(lacks, found, task))


def _matched(
    found: Sequence[str], task: Task, *, answers: bool = True, paired: bool | None = None
) -> tuple[Columns, str | None]:
    """The columns, and the first name that none of them can be."""
    wanted = [n for n in NEEDED[task] if answers or n not in ("label", "labels", "value", "tags")]
    if paired and "text_pair" not in wanted:
        wanted.append("text_pair")
    folded: dict[str, list[str]] = {}
    for name in found:
        folded.setdefault(_folded(name), []).append(name)
    maybe = ["text_pair"] if task == "regression" and answers else []
    names: dict[str, str] = {}
    for name in [*wanted, *maybe]:
        taken = _of(name, wanted, folded, maybe_paired=bool(maybe))
        if len(taken) > 1:
            if len(set(taken)) == 1:
                return Columns(
                    {}, f"{len(taken)} columns are named {listed(taken[:1])}: keep one of them"
                ), None
            cure = f"name the one that is meant `{name}`, and the other otherwise"
            return Columns({}, f"{len(taken)} columns could be the `{name}` ({listed(taken)}): {cure}"), None
        if taken:
            names[taken[0]] = name
        elif name in wanted:
            return Columns({}), name
    return Columns(names), None


def second_text(found: Iterable[str]) -> tuple[str, str] | None:
    """The columns of two texts, where a table has such."""
    folded = {_folded(name): name for name in found}
    return next(((folded[a], folded[b]) for a, b in PAIRS if a in folded and b in folded), None)


def task_of_columns(found: Sequence[str]) -> Task | None:
    """The task whose rows have these columns; None for no task's."""
    return next((task for task in NEEDED if _fits(found, task)), None)


def listed(names: Iterable[str]) -> str:
    """The column names for a message; only the first of many."""
    names = [name if len(name) <= 40 else f"{name[:39]}…" for name in names if name.strip()]
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(f"`{name}`" for name in names[:SHOWN]) + more


def _fits(found: Sequence[str], task: Task) -> bool:
    columns, lacks = _matched(found, task)
    return lacks is None and not columns.problem


def _of(
    name: str, wanted: Sequence[str], folded: Mapping[str, list[str]], *, maybe_paired: bool = False
) -> list[str]:
    """The columns that `name` may be: those called so, else those of a pair of texts, else its synonyms.

    maybe_paired: rows have one text or two, so that a pair of texts and single ones are both possible.
    """
    if name in folded:
        exact = [given for given in folded[name] if given == name]
        return exact or folded[name]
    single = [given for other in SYNONYMS.get(name, ()) for given in folded.get(other, [])]
    if name not in ("text", "text_pair"):
        return single
    paired = [pair for pair in PAIRS[1:] if pair[0] in folded and pair[1] in folded]
    of_pairs = [folded[pair[name == "text_pair"]][0] for pair in paired]
    if "text_pair" in wanted:
        return of_pairs
    if not maybe_paired:
        return single
    # A second text goes with a first one of the same pair, and with no other.
    return [*of_pairs, *single] if name == "text" else [] if "text" in folded else of_pairs


def _missing(name: str, found: Sequence[str], task: Task) -> str:
    other = next((t for t in NEEDED if t != task and _fits(found, t)), None)
    if other is not None:
        return (
            f"`{name}` is missing: the columns {listed(found)} are of the task {other}, not {task}. "
            f'Give --task {other} (over HTTP "task": "{other}")'
        )
    return (
        f"`{name}` is missing: the columns are {listed(found) or 'none'}. Rename the one that is the "
        f"{name}, or add it"
    )


def _folded(name: str) -> str:
    return name.strip().casefold().replace(" ", "_").replace("-", "_")
