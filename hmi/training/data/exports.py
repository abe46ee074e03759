"""Rows of classes as annotation tools and libraries export them in JSON or CSV, as plain rows.

| tool | an export's record |
|---|---|
| Label Studio, JSON | `data`, and `annotations` whose `result` holds `choices` |
| Label Studio, JSON-MIN or CSV | data and controls as columns, beside `annotation_id`, `lead_time`, … |
| Prodigy, a choice of options | `text`, `options`, `accept` |
| doccano, and others | `text`, and `label` as a list of labels; of intents `cats` |
| doccano, CSV | `text`, and `label`: labels with `#` between them |
| doccano before 1.1 | `text`, and `annotations` that hold a `label`'s number each |
| spaCy | `text`, and `cats` with a score for each label |
| Hugging Face's dataset viewer | one object with `rows`, and `features` with the classes' names |
| Rasa before 2.0, JSON | one object with `rasa_nlu_data` |
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hmi.training.data.label_studio import (
    ID,
    META,
    TASK,
    Values,
    annotations_of,
    counting,
    data_of,
    decoded,
    given_of,
    is_least,
    results_of,
    unanswered,
)
from hmi.training.data.records import Fits
from hmi.training.data.span_forms import is_spans

Rows = Iterator[tuple[dict[str, Any], str]]
"""Rows with the reason to leave each out, or ""."""
LEAST_SCORE = 0.5
"""A label of spaCy's `cats` counts from this score on."""
LONGEST_CHOICE = 40
"""Characters of a label, in a file that does not tell labels from other texts."""
NO_LABEL = "without a label"


@dataclass(frozen=True)
class Export:
    """A recognised export: what to say of it, and the rows of one record. `rows` raises ValueError."""

    said: str
    rows: Callable[[Values], Rows]
    choices: tuple[str, ...] = ()
    """The names of the choices, by one of which the user may ask for them."""


def export_of(head: Sequence[Values], fits: Fits, *, answers: bool = True) -> Export | None:
    """The export that these first records are of, or None. fits: whether columns are the wanted ones, by
    which an answer becomes a label or a list of labels. answers: False to leave answers as the tool wrote
    them; then only one object that holds all rows is an export."""
    known: tuple[Callable[[Sequence[Values], Fits], Export | None], ...] = (_viewer, _rasa)
    if answers:
        known = (_label_studio, _label_studio_min, _choice, _cats, *known, _old_doccano, _joined, _lists)
    return next((found for of in known if head and (found := of(head, fits)) is not None), None)


def answer_field(others: Sequence[str], fits: Fits, *, several: bool, control: str = "") -> str:
    """The field for answers that may be `several` labels: the one that fits beside the columns `others`.

    control: the tool's name of the answers, by which the user may ask for them.
    """
    likely, other = ("labels", "label") if several else ("label", "labels")
    names = (likely, other, *([control] if control else []))
    return next((name for name in names if fits((*others, name))), likely)


def _answered(
    row: dict[str, Any], field: str, labels: Sequence[Any], *, several: bool = False
) -> tuple[dict[str, Any], str]:
    """The row with its labels; it is left out if it needs one and has none."""
    if field == "labels" or (several and field != "label"):
        return {**row, field: list(labels)}, ""
    return {**row, field: labels[0] if len(labels) == 1 else list(labels) or None}, NO_LABEL * (not labels)


def _others(head: Sequence[Values], *without: str) -> list[str]:
    return [name for name in dict.fromkeys(name for values in head for name in values) if name not in without]


def _label_studio(head: Sequence[Values], fits: Fits) -> Export | None:
    tasks = [each for each in head if data_of(each) is not None and annotations_of(each) is not None]
    found = [_choices(annotation) for task in tasks for annotation in annotations_of(task) or ()]
    controls = tuple(dict.fromkeys(name for choices in found for name in choices))
    if not controls:
        return None
    several = any(len(labels) > 1 for choices in found for labels in choices.values())
    only = controls[0] if len(controls) == 1 else ""
    field = answer_field(list(_data(tasks[0])), fits, several=several, control=only)

    def rows(task: Values) -> Rows:
        if data_of(task) is None:
            raise ValueError("has no `data`, unlike other tasks of Label Studio")
        truth = counting(given_of(task))
        different = {json.dumps(_choices(a), sort_keys=True): _choices(a) for a in truth}
        for choices in different.values():
            if only:
                yield _answered(_data(task), field, choices.get(only, []), several=several)
            else:
                one = {name: labels[0] if len(labels) == 1 else labels for name, labels in choices.items()}
                yield {**_data(task), **one}, ""
        if not different:
            yield _data(task), unanswered(task)

    return Export("from Label Studio", rows, controls)


def _choices(annotation: Values) -> dict[str, list[str]]:
    """The chosen labels of an annotation by its controls."""
    found: dict[str, list[str]] = {}
    for control, value in results_of(annotation):
        if isinstance(value.get("choices"), list) and "start" not in value:
            found.setdefault(control or "choice", []).extend(map(str, value["choices"]))
    return found


def _data(task: Values) -> dict[str, Any]:
    """A task's data. The only text is called `text`."""
    data = dict(task[TASK])
    texts = [name for name, value in data.items() if isinstance(value, str)]
    return {"text" if "text" not in data and [name] == texts else name: value for name, value in data.items()}


def _label_studio_min(head: Sequence[Values], fits: Fits) -> Export | None:
    columns = _others(head)
    if not is_least(columns):
        return None
    spans = [name for name in columns if any(is_spans(decoded(values.get(name))) for values in head)]
    rest = [name for name in columns if name not in META and name not in spans]
    chosen = [name for name in rest if any("choices" in _object_of(values.get(name)) for values in head)]
    answers = chosen or [name for name in rest if name != "text"]
    recurring = tuple(name for name in answers if _recurs([values.get(name) for values in head]))
    different = _Different(spans)
    if len(answers) != 1 or len(rest) < 2:  # several controls: columns like any others
        may_be = recurring if spans or len(recurring) > 1 else ()
        return Export("from Label Studio", lambda row: different.of(row, row), may_be) if may_be else None
    (answer,) = answers
    if spans and not chosen and not recurring:
        return None
    if any(isinstance(values.get(answer), list | dict) and not _is_choice(values[answer]) for values in head):
        return None
    field = answer_field(_others(head, answer, *spans), fits, several=bool(chosen), control=answer)

    def rows(values: Values) -> Rows:
        given, row = values.get(answer), {n: v for n, v in values.items() if n != answer}
        choices = _object_of(given).get("choices")
        one = [] if given in (None, "") else [given]
        labels = choices if isinstance(choices, list) else one
        for kept, _ in different.of(row, values):
            yield _answered(kept, field, labels, several=bool(chosen))

    return Export(f"from Label Studio, the answers in `{answer}`", rows, (answer,))


class _Different:
    """Rows of JSON-MIN without those of annotators who agree about a task, and without its spans."""

    def __init__(self, spans: Sequence[str]) -> None:
        self._spans = frozenset(spans)
        self._seen: set[int] = set()

    def of(self, row: Values, values: Values) -> Rows:
        """The row, if no annotation of its task, `values`, gave the same before."""
        told = {name: value for name, value in values.items() if name not in (META - {ID}) | self._spans}
        key = hash(json.dumps(told, sort_keys=True))
        if values.get(ID) in (None, "") or key not in self._seen:
            self._seen.add(key)
            yield {name: value for name, value in row.items() if name not in self._spans}, ""


def _recurs(values: Sequence[Any]) -> bool:
    """Whether values may be choices: short texts, most of which occur more than once."""
    given = [value for value in values if value not in (None, "")]
    short = all(isinstance(value, str) and len(value) <= LONGEST_CHOICE for value in given)
    return short and 1 < len(set(given)) <= len(given) / 2


def _object_of(value: Any) -> Mapping[str, Any]:
    """A value that is an object, or text of JSON that is one, as cells of Label Studio's CSV are; else {}."""
    if isinstance(value, str) and value.startswith('{"choices"'):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    return value if isinstance(value, dict) else {}


def _is_choice(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("choices"), list)


def _choice(head: Sequence[Values], fits: Fits) -> Export | None:
    offered = [values for values in head if isinstance(values.get("options"), list)]
    chosen = [values["accept"] for values in offered if isinstance(values.get("accept"), list)]
    if not chosen:
        return None
    styles = {str(_object_of(values.get("config")).get("choice_style")) for values in offered}
    several = "multiple" in styles or any(len(labels) > 1 for labels in chosen)
    field = answer_field(_others(head, "accept"), fits, several=several)

    def rows(values: Values) -> Rows:
        labels = values.get("accept", [])
        if not isinstance(labels, list):
            raise ValueError("`accept` is not a list of options")
        texts = _option_texts(values.get("options"))
        named = [texts.get(str(label), label) for label in labels]
        yield _answered({n: v for n, v in values.items() if n != "accept"}, field, named)

    return Export("from Prodigy, `accept` holds the chosen options", rows)


def _option_texts(options: Any) -> dict[str, str]:
    """The texts of the options whose ids are numbers, by these; other ids are names themselves."""
    each = [one for one in options if isinstance(one, dict)] if isinstance(options, list) else []
    return {
        str(one["id"]): one["text"].strip()
        for one in each
        if str(one.get("id", "")).isdecimal() and isinstance(one.get("text"), str) and one["text"].strip()
    }


def _cats(head: Sequence[Values], fits: Fits) -> Export | None:
    scored = [values["cats"] for values in head if isinstance(values.get("cats"), dict)]
    if not scored or not all(isinstance(score, int | float) for cats in scored for score in cats.values()):
        return None
    field = answer_field(_others(head, "cats"), fits, several=any(len(_given(cats)) > 1 for cats in scored))

    def rows(values: Values) -> Rows:
        cats = values.get("cats")
        if not isinstance(cats, dict) or not all(isinstance(score, int | float) for score in cats.values()):
            raise ValueError("`cats` is not an object with a score for each label")
        yield _answered({n: v for n, v in values.items() if n != "cats"}, field, _given(cats))

    return Export("from spaCy, `cats` holds the labels", rows)


def _given(cats: Mapping[str, Any]) -> list[str]:
    """The labels of `cats` that reach LEAST_SCORE."""
    return [label for label, score in cats.items() if score >= LEAST_SCORE]


def _viewer(head: Sequence[Values], fits: Fits) -> Export | None:
    if len(head) != 1 or not all(isinstance(head[0].get(name), list) for name in ("features", "rows")):
        return None
    features = [
        f for f in head[0]["features"] if isinstance(f, dict) and isinstance(f.get("type"), dict | list)
    ]
    names = {str(f.get("name")): found for f in features if (found := _class_names(f["type"]))}

    def rows(values: Values) -> Rows:
        for one in values["rows"]:
            row = one.get("row") if isinstance(one, dict) else None
            if not isinstance(row, dict):
                raise ValueError("one of `rows` has no `row`")
            yield (
                {name: _by_name(value, names.get(name, ())) for name, value in row.items()},
                (
                    "cut off by the viewer"
                    if one.get("truncated_cells")
                    else NO_LABEL * any(row.get(n) == -1 for n in names)
                ),
            )

    said = "" if not names else f", names of {', '.join(f'`{name}`' for name in names)} from its features"
    return Export(f"from a dataset viewer{said}", rows)


def _class_names(kind: Any) -> list[str]:
    """The names of the classes of a feature, or of the items of one that is a list; else []."""
    while isinstance(kind, dict) and isinstance(kind.get("feature"), dict):
        kind = kind["feature"]
    kind = kind[0] if isinstance(kind, list) and kind else kind
    names = kind.get("names") if isinstance(kind, dict) and kind.get("_type") == "ClassLabel" else None
    return [str(name) for name in names] if isinstance(names, list) else []


def _by_name(value: Any, names: Sequence[str]) -> Any:
    if isinstance(value, list):
        return [_by_name(one, names) for one in value]
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return names[value] if names and is_number and 0 <= value < len(names) else value


def _rasa(head: Sequence[Values], fits: Fits) -> Export | None:
    if len(head) != 1 or not isinstance(head[0].get("rasa_nlu_data"), dict):
        return None

    def rows(values: Values) -> Rows:
        examples = values["rasa_nlu_data"].get("common_examples")
        for example in examples if isinstance(examples, list) else []:
            if not isinstance(example, dict):
                raise ValueError("one of `common_examples` is not an object")
            yield {"text": example.get("text"), "label": example.get("intent")}, ""

    return Export("from Rasa, the labels are intents", rows)


def _old_doccano(head: Sequence[Values], fits: Fits) -> Export | None:
    def numbers(values: Values) -> list[Any] | None:
        found = values.get("annotations")
        if "text" not in values or not isinstance(found, list):
            return None
        plain = all(isinstance(a, dict) and "label" in a and "start_offset" not in a for a in found)
        return [a["label"] for a in found] if plain else None

    each = [numbers(values) for values in head]
    if not any(each) or None in each:
        return None
    field = answer_field(
        _others(head, "annotations"), fits, several=any(len(labels or ()) > 1 for labels in each)
    )

    def rows(values: Values) -> Rows:
        labels = numbers(values)
        if labels is None:
            raise ValueError("has no `annotations` with a `label` each")
        yield _answered({n: v for n, v in values.items() if n != "annotations"}, field, labels)

    return Export("from doccano, labels by number", rows)


def _joined(head: Sequence[Values], fits: Fits) -> Export | None:
    columns = _others(head)
    given = [values["label"] for values in head if values.get("label")]
    if not {"id", "text", "label"} <= set(columns) or not all(isinstance(label, str) for label in given):
        return None
    split = [_split(label) for label in given]
    alone = {labels[0] for labels in split if len(labels) == 1}
    several = [label for labels in split if len(labels) > 1 for label in labels]
    # Before 1.8 there is no column of comments to know the tool by.
    if not several or not ("Comments" in columns or (len(columns) == 3 and set(several) <= alone)):
        return None
    field = answer_field(_others(head, "label"), fits, several=True)

    def rows(values: Values) -> Rows:
        row = {n: v for n, v in values.items() if n != "label"}
        yield _answered(row, field, _split(str(values.get("label") or "")))

    return Export("from doccano, `#` between labels", rows)


def _split(label: str) -> list[str]:
    """The labels that doccano joined by `#`; a name such as C# stays whole."""
    parts = label.split("#")
    return parts if all(part.strip() for part in parts) else [label] if label else []


def _lists(head: Sequence[Values], fits: Fits) -> Export | None:
    for name in ("label", "cats"):
        given = [values[name] for values in head if values.get(name) is not None]
        plain = all(isinstance(v, list) and all(isinstance(one, str | int) for one in v) for v in given)
        if plain and any(given):
            return _of_lists(name, head, fits, several=any(len(labels) > 1 for labels in given))
    return None


def _of_lists(name: str, head: Sequence[Values], fits: Fits, *, several: bool) -> Export:
    field = answer_field(_others(head, name), fits, several=several)

    def rows(values: Values) -> Rows:
        labels = values.get(name)
        if not isinstance(labels, list | None):
            raise ValueError(f"`{name}` is not a list, unlike in other rows")
        yield _answered({n: v for n, v in values.items() if n != name}, field, labels or [])

    said = "from doccano" if "Comments" in _others(head) else "labels in lists"
    return Export(said, rows)
