"""Maps a table's column names to the fields of a task's rows, if that is unambiguous."""

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
    "generation": ("prompt", "completion"),
}
"""The fields that a row of each task has. Rows of `regression` may also have `text_pair`. A table's
task is the first one that fits its columns."""
ANSWERS = ("label", "labels", "value", "tags", "completion")
"""The fields that are right answers."""
LISTS = ("tokens", "tags", "labels")
"""The fields that are lists."""
EXAMPLES: Mapping[Task, str] = {
    "classification": '{"text": "…", "label": "…"}',
    "pair": '{"text": "…", "text_pair": "…", "label": "…"}',
    "multilabel": '{"text": "…", "labels": ["…", "…"]}',
    "regression": '{"text": "…", "value": 3.5}',
    "tagging": '{"tokens": ["…"], "tags": ["O"]}',
    "embedding": "",
    "generation": '{"prompt": "…", "completion": "…"}, or '
    '{"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}',
}
"""An example row of each task, for error messages."""

SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "text": ("sentence", "review", "content", "document", "message", "comment", "body", "utterance"),
    "label": ("class", "category", "intent", "sentiment", "target"),
    "labels": ("categories", "classes"),
    "value": ("score", "rating"),
    "tokens": ("words",),
    "tags": ("ner_tags", "pos_tags"),
}
"""Other column names that are understood for a field."""
WRITTEN: Mapping[str, tuple[str, ...]] = {"prompt": ("instruction",), "completion": ("response", "output")}
"""The same for the task generation. No column of another task has such a name, so it tells the task."""
ASKED: Mapping[str, tuple[str, ...]] = {
    "prompt": ("question", "input", "text"),
    "completion": ("answer", "target", "label"),
}
"""Further names that are understood once the task generation is asked for."""
CHAT: Mapping[str, str] = {"text": "prompt", "label": "completion"}
"""The meanings of a chat's parts for the task generation. A classifier's columns have the same names."""
PAIRS = (
    ("text", "text_pair"),
    ("sentence1", "sentence2"),
    ("text1", "text2"),
    ("text_a", "text_b"),
    ("sentence_a", "sentence_b"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
)
"""Column names of the two texts of a pair."""
SHOWN = 12
"""A message lists at most this many columns."""


@dataclass(frozen=True)
class Columns:
    """`names`: column of the table -> field of the task. `problem`: why the columns do not fit, or ""."""

    names: Mapping[str, str]
    problem: str = ""


def read_columns(
    found: Sequence[str], task: Task, *, answers: bool = True, paired: bool | None = None, asked: bool = True
) -> Columns:
    """Map the columns `found` to the fields of `task`. With answers=False, rows have no answer, and
    `paired` says whether they have two texts. asked: whether the task is known; otherwise the columns are to
    tell it."""
    columns, lacks = _matched(found, task, answers=answers, paired=paired, asked=asked)
    return columns if lacks is None else Columns({}, _missing(lacks, found, task))


def _matched(
    found: Sequence[str], task: Task, *, answers: bool = True, paired: bool | None = None, asked: bool = False
) -> tuple[Columns, str | None]:
    """The mapping, and the first required field that no column fits (None if all are found).

    asked: as in `read_columns`.
    """
    wanted = [n for n in NEEDED[task] if answers or n not in ANSWERS]
    if paired and "text_pair" not in wanted:
        wanted.append("text_pair")
    folded: dict[str, list[str]] = {}
    for name in found:
        folded.setdefault(_folded(name), []).append(name)
    maybe = ["text_pair"] if task == "regression" and answers else []
    names: dict[str, str] = {}
    for name in [*wanted, *maybe]:
        taken = _of(name, wanted, folded, maybe_paired=bool(maybe))
        if asked and name not in folded:
            taken = [*taken, *(given for other in ASKED.get(name, ()) for given in folded.get(other, []))]
        if len(taken) > 1:
            if len(set(taken)) == 1:
                return Columns(
                    {}, f"{len(taken)} columns are named {listed(taken[:1])}: keep one of them"
                ), None
            cure = (
                f"rename the right one to `{name}`, and the other to something else{_name_it(name, ', or ')}"
            )
            if name == "prompt":
                cure += ". Given several times, the texts are joined by line breaks"
            return Columns({}, f"{len(taken)} columns could be the `{name}` ({listed(taken)}): {cure}"), None
        if taken:
            names[taken[0]] = name
        elif name in wanted:
            return Columns({}), name
    return Columns(names), None


def second_text(found: Iterable[str]) -> tuple[str, str] | None:
    """The columns of the two texts of a pair, or None."""
    folded = {_folded(name): name for name in found}
    return next(((folded[a], folded[b]) for a, b in PAIRS if a in folded and b in folded), None)


def task_of_columns(found: Sequence[str]) -> Task | None:
    """The task whose rows have these columns; None if there is none."""
    return likeliest([task for task in NEEDED if _fits(found, task)], found)


def likeliest(fitting: Sequence[Task], found: Sequence[str]) -> Task | None:
    """Of tasks that columns fit, in their order, the one that is meant. An answer under its own name counts
    more than a synonym: `text`, `label` and `score` are of classification. So are `text`, `sentiment` and
    `score`, since a score beside a label mostly says how sure somebody was of it."""
    if len(fitting) > 1:
        fitting = [task for task in fitting if task != "generation"]
    folded = set(map(_folded, found))
    own = next((task for task in fitting if NEEDED[task][-1] in folded), None)
    if own is None and fitting[:1] == ["regression"] and "classification" in fitting:
        return "classification"
    return own or next(iter(fitting), None)


def listed(names: Iterable[str]) -> str:
    """Column names as a message shows them, at most SHOWN of them."""
    names = [name if len(name) <= 40 else f"{name[:39]}…" for name in names if name.strip()]
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(f"`{name}`" for name in names[:SHOWN]) + more


def _fits(found: Sequence[str], task: Task) -> bool:
    columns, lacks = _matched(found, task)
    return lacks is None and not columns.problem


def _of(
    name: str, wanted: Sequence[str], folded: Mapping[str, list[str]], *, maybe_paired: bool = False
) -> list[str]:
    """The columns that may be the field `name`: those of this name, else those of a pair of
    texts, else synonyms.

    maybe_paired: rows may have one text or two.
    """
    if name in folded:
        exact = [given for given in folded[name] if given == name]
        return exact or folded[name]
    others = (*SYNONYMS.get(name, ()), *WRITTEN.get(name, ()))
    single = [given for other in others for given in folded.get(other, [])]
    if name not in ("text", "text_pair"):
        return single
    paired = [pair for pair in PAIRS[1:] if pair[0] in folded and pair[1] in folded]
    of_pairs = [folded[pair[name == "text_pair"]][0] for pair in paired]
    if "text_pair" in wanted:
        return of_pairs
    if not maybe_paired:
        return single
    # A pair's second column counts only if its first column is the text.
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
        f"{name}{_name_it(name, ', ')}, or add it"
    )


def _name_it(field: str, before: str) -> str:
    """The option that names the column of a field, as a cure after `before`. No option names `tokens`."""
    if field == "tokens":
        return ""
    field = "text" if field == "prompt" else field
    option = f"{field if field in ('text', 'text_pair') else 'label'}_column"
    return f"{before}name it (--{option.replace('_', '-')}, over HTTP options.{option})"


def _folded(name: str) -> str:
    return name.strip().casefold().replace(" ", "_").replace("-", "_")
