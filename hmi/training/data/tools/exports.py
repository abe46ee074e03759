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

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hmi.training.data.records import Fits
from hmi.training.data.tools.export_rows import (
    NO_LABEL,
    Export,
    Rows,
    answer_field,
    column_names,
    row_with_labels,
)
from hmi.training.data.tools.label_studio import Values, object_of
from hmi.training.data.tools.label_studio_rows import least_export, tasks_export

LEAST_SCORE = 0.5
"""A label of spaCy's `cats` counts from this score on."""


def export_of(head: Sequence[Values], fits: Fits, *, answers: bool = True) -> Export | None:
    """The export that these first records are of, or None. fits: whether columns are the wanted ones, by
    which an answer becomes a label or a list of labels. answers: False to leave answers as the tool wrote
    them; then only one object that holds all rows is an export."""
    known: tuple[Callable[[Sequence[Values], Fits], Export | None], ...] = (_viewer, _rasa)
    if answers:
        known = (tasks_export, least_export, _choice, _cats, *known, _old_doccano, _joined, _lists)
    return next((found for of in known if head and (found := of(head, fits)) is not None), None)


def _choice(head: Sequence[Values], fits: Fits) -> Export | None:
    offered = [values for values in head if isinstance(values.get("options"), list)]
    chosen = [values["accept"] for values in offered if isinstance(values.get("accept"), list)]
    if not chosen:
        return None
    styles = {str(object_of(values.get("config")).get("choice_style")) for values in offered}
    several = "multiple" in styles or any(len(labels) > 1 for labels in chosen)
    field = answer_field(column_names(head, "accept"), fits, several=several)

    def rows(values: Values) -> Rows:
        labels = values.get("accept", [])
        if not isinstance(labels, list):
            raise ValueError("`accept` is not a list of options")
        texts = _option_texts(values.get("options"))
        named = [texts.get(str(label), label) for label in labels]
        yield row_with_labels({n: v for n, v in values.items() if n != "accept"}, field, named)

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
    field = answer_field(
        column_names(head, "cats"), fits, several=any(len(_likely_labels(cats)) > 1 for cats in scored)
    )

    def rows(values: Values) -> Rows:
        cats = values.get("cats")
        if not isinstance(cats, dict) or not all(isinstance(score, int | float) for score in cats.values()):
            raise ValueError("`cats` is not an object with a score for each label")
        yield row_with_labels({n: v for n, v in values.items() if n != "cats"}, field, _likely_labels(cats))

    return Export("from spaCy, `cats` holds the labels", rows)


def _likely_labels(cats: Mapping[str, Any]) -> list[str]:
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
        column_names(head, "annotations"), fits, several=any(len(labels or ()) > 1 for labels in each)
    )

    def rows(values: Values) -> Rows:
        labels = numbers(values)
        if labels is None:
            raise ValueError("has no `annotations` with a `label` each")
        yield row_with_labels({n: v for n, v in values.items() if n != "annotations"}, field, labels)

    return Export("from doccano, labels by number", rows)


def _joined(head: Sequence[Values], fits: Fits) -> Export | None:
    columns = column_names(head)
    given = [values["label"] for values in head if values.get("label")]
    if not {"id", "text", "label"} <= set(columns) or not all(isinstance(label, str) for label in given):
        return None
    split = [_split(label) for label in given]
    alone = {labels[0] for labels in split if len(labels) == 1}
    several = [label for labels in split if len(labels) > 1 for label in labels]
    # Before 1.8 there is no column of comments to know the tool by.
    if not several or not ("Comments" in columns or (len(columns) == 3 and set(several) <= alone)):
        return None
    field = answer_field(column_names(head, "label"), fits, several=True)

    def rows(values: Values) -> Rows:
        row = {n: v for n, v in values.items() if n != "label"}
        yield row_with_labels(row, field, _split(str(values.get("label") or "")))

    return Export("from doccano, `#` between labels", rows)


def _split(label: str) -> list[str]:
    """The labels that doccano joined by `#`; a name such as C# stays whole."""
    parts = label.split("#")
    return parts if all(part.strip() for part in parts) else [label] if label else []


def _lists(head: Sequence[Values], fits: Fits) -> Export | None:
    for name in ("label", "cats"):
        given = [values[name] for values in head if values.get(name) is not None]
        plain = all(isinstance(v, list) and all(isinstance(one, str | int) for one in v) for v in given)
        if plain and given and any(v or name == "label" for v in given):
            return _of_lists(name, head, fits, several=any(len(labels) > 1 for labels in given))
    return None


def _of_lists(name: str, head: Sequence[Values], fits: Fits, *, several: bool) -> Export:
    field = answer_field(column_names(head, name), fits, several=several)

    def rows(values: Values) -> Rows:
        labels = values.get(name)
        if not isinstance(labels, list | None):
            raise ValueError(f"`{name}` is not a list, unlike in other rows")
        yield row_with_labels({n: v for n, v in values.items() if n != name}, field, labels or [])

    said = "from doccano" if "Comments" in column_names(head) else "labels in lists"
    return Export(said, rows)
