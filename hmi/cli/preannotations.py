"""Answers of a model in the forms that annotation tools read, so that people correct labels instead of giving
them.

Label Studio takes tasks with `predictions`; its offsets count code points, as its own tests of emoji say.
doccano takes rows with `label`; its offsets count UTF-16 units, as browsers do (doccano's issue 2290). Other
versions of either count otherwise.

What people have given stays: a task keeps its annotations beside the prediction, and a row of doccano, which
has one place for labels, stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hmi.errors import InvalidInput
from hmi.training.data.batch_texts import BatchText
from hmi.training.data.label_studio import annotations_of, given_of

FORMS = ("rows", "label-studio", "doccano")
CODE_POINTS, UTF_16 = OFFSETS = ("code-points", "utf-16")
FROM_NAME, TO_NAME = "label", "text"
"""The names of the control and of the text in Label Studio's own templates for entities."""
KEPT = ("id", "meta", "annotations", "completions", "predictions")
"""What a task keeps beside its data: what Label Studio reads again when it imports an export of its own."""
LABELLED = ("label", "labels", "cats", "entities", "annotations")
"""Where doccano's exports have labels: of classes, spans, intents, relations, and those of old versions."""
Answer = Mapping[str, Any]


@dataclass(frozen=True)
class Controls:
    """The names of a control of the labelling configuration and of the text that it is about."""

    from_name: str | None = None
    to_name: str | None = None
    found: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """For each type of results, the controls that have such results in a file, with the text of each."""

    @classmethod
    def of(cls, texts: Iterable[BatchText], from_name: str | None, to_name: str | None) -> Controls:
        """The names that the user gives, or else those of the annotations that tasks have already."""
        found: dict[str, dict[str, str]] = {}
        for text in texts:
            for annotation in annotations_of(text.task) or ():
                results = annotation.get("result")
                for result in results if isinstance(results, list) else ():
                    if isinstance(result, dict) and isinstance(result.get("from_name"), str):
                        named = found.setdefault(str(result.get("type")), {})
                        named[result["from_name"]] = str(result.get("to_name", TO_NAME))
        return cls(from_name, to_name, found)

    def names(self, kind: str) -> dict[str, str]:
        """The names for results of a type. Raises InvalidInput if several controls have such results."""
        found = self.found.get(kind, {})
        if self.from_name is None and len(found) > 1:
            shown = ", ".join(f"`{name}`" for name in sorted(found))
            raise InvalidInput(
                f"the file has annotations of several controls of the type {kind} ({shown}): name the one "
                "that the model answers for with --from-name",
                field="from_name",
            )
        from_name = self.from_name or next(iter(found), FROM_NAME)
        texts = {to_name for named in self.found.values() for to_name in named.values()}
        only = next(iter(texts)) if len(texts) == 1 else TO_NAME
        return {"from_name": from_name, "to_name": self.to_name or found.get(from_name, only)}


def answered_row(text: BatchText, output: Answer) -> dict[str, Any]:
    """The text with its row's id, if it has one, and the fields of its answer that are not null."""
    texts = {"text": text.text} if isinstance(text.text, str) else dict(zip(_PAIR, text.text, strict=True))
    return {**_id(text), **texts, **{name: value for name, value in output.items() if value is not None}}


_PAIR = ("text", "text_pair")


def _id(text: BatchText) -> dict[str, Any]:
    found = (text.task or text.record).get("id")
    return {} if found is None else {"id": found}


def is_annotated(text: BatchText, form: str) -> bool:
    """Return whether a row has what people gave it, in a form that `form` keeps."""
    if form == "label-studio":
        return bool(given_of(text.task))
    return form == "doccano" and _is_labelled(text.record)


def _is_labelled(row: Answer) -> bool:
    """Return whether a row has labels, in any field in which doccano has written them."""
    return any(row.get(name) not in (None, "", [], {}) for name in LABELLED)


def label_studio_task(
    text: BatchText,
    output: Answer | None,
    version: str,
    controls: Controls | None = None,
    offsets: str = CODE_POINTS,
) -> dict[str, Any]:
    """A task with a prediction: regions for entities, choices for labels, a number for a value.

    output: None for a text without an answer. version: what the prediction names as its model; one that the
    task has of this version already is replaced. Raises InvalidInput for answers without such a form.
    """
    kept = {name: text.task[name] for name in KEPT if name in text.task}
    others = kept.pop("predictions", None)
    predictions = [
        one
        for one in (others if isinstance(others, list) else [])
        if isinstance(one, dict) and one.get("model_version") != version
    ]
    task = {**kept, "data": dict(text.record) or {"text": text.text}}
    if output is not None:
        predictions.append(_prediction(text, output, version, controls or Controls(), offsets))
    return {**task, "predictions": predictions}


def _prediction(
    text: BatchText, output: Answer, version: str, controls: Controls, offsets: str
) -> dict[str, Any]:
    if output.get("entities") is not None:
        _check_place(text)
    found, score = _results(output, str(text.text), offsets)
    results = [{"id": f"{at}", **controls.names(one["type"]), **one} for at, one in enumerate(found)]
    return {"model_version": version, "result": results} | ({} if score is None else {"score": score})


def _check_place(text: BatchText) -> None:
    """Raise InvalidInput for a text that the task does not hold as it is: offsets would mean nothing there.
    doccano gets the text itself with them."""
    if text.record and text.text not in text.record.values():
        raise InvalidInput(
            f"{text.place or 'a row'} has entities, but their text is in none of its fields: it is "
            "joined from several (--text-column) or from words, so Label Studio would mark others. Name the "
            "one field that is labelled there, write the whole text into a field, or choose --form rows",
            field="form",
        )


def _results(output: Answer, text: str, offsets: str) -> tuple[list[dict[str, Any]], float | None]:
    """The results of a prediction, and its score: that of the answer, or of the least sure entity."""
    if output.get("entities") is not None:
        regions = [_region(entity, _places(entity, text, offsets)) for entity in output["entities"]]
        return regions, min((region["score"] for region in regions), default=None)
    if output.get("value") is not None:
        return [{"type": "number", "value": {"number": output["value"]}}], None
    labels = _labels(output)
    return [{"type": "choices", "value": {"choices": labels}}] if labels else [], output.get("score")


def _region(entity: Answer, places: tuple[int, int]) -> dict[str, Any]:
    value = {"start": places[0], "end": places[1], "text": entity["text"], "labels": [entity["label"]]}
    return {"type": "labels", "value": value, "score": entity["score"]}


def _places(entity: Answer, text: str, offsets: str) -> tuple[int, int]:
    """Start and end of an entity, counted as `offsets` says."""
    start, end = entity["start"], entity["end"]
    return (start, end) if offsets == CODE_POINTS else (_units(text[:start]), _units(text[:end]))


def _units(text: str) -> int:
    """The number of UTF-16 units of a text."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def doccano_row(text: BatchText, output: Answer, offsets: str = UTF_16) -> dict[str, Any]:
    """A row of doccano's JSONL: spans for entities, else a list of labels. A row with labels stays as it is;
    others keep what else they have, such as comments.

    Raises InvalidInput for a pair of texts and for other answers, which doccano has no form for.
    """
    if not isinstance(text.text, str):
        raise InvalidInput("doccano has no form for pairs of texts: choose --form rows", field="form")
    if _is_labelled(text.record):
        return dict(text.record)
    entities, row = output.get("entities"), {**text.record, **_id(text), "text": text.text}
    if entities is not None:
        spans = [[*_places(entity, text.text, offsets), entity["label"]] for entity in entities]
        return {**row, "label": spans}
    return {**row, "label": _labels(output)}


def _labels(output: Answer) -> list[str]:
    if output.get("labels") is not None:
        return [given["label"] for given in output["labels"]]
    if output.get("label") is not None:
        return [output["label"]]
    raise InvalidInput("the model answers with neither labels nor entities: choose --form rows", field="form")
