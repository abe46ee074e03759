"""Writes a model's answers as the annotation tools Label Studio and doccano read them, as suggestions that
people correct.

Label Studio reads tasks with `predictions`. Its offsets count code points, as its own tests of emoji show.
doccano reads rows with `label`. Its offsets count UTF-16 units, as browsers do (doccano's issue 2290). Some
versions of both tools count the other way, so the user can choose (`OFFSETS`).

Labels that people have given are never replaced. A task of Label Studio keeps its annotations, and the
prediction stands beside them. A row of doccano has one place for labels, so a row that has labels stays as it
is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hmi.errors import InvalidInput
from hmi.training.data.batch_texts import BatchText
from hmi.training.data.tools.label_studio import annotations_of, given_of

FORMS = ("rows", "label-studio", "doccano")
CODE_POINTS, UTF_16 = OFFSETS = ("code-points", "utf-16")
FROM_NAME, TO_NAME = "label", "text"
"""The names of the control and of the text in Label Studio's own templates for entities."""
KEPT = ("id", "meta", "annotations", "completions", "predictions")
"""The members of an exported task that are written again beside its data, since Label Studio imports them."""
LABELLED = ("label", "labels", "cats", "entities", "annotations")
"""The fields in which some version of doccano exports labels: of classes, spans, intents or relations."""
Answer = Mapping[str, Any]


@dataclass(frozen=True)
class Controls:
    """The names that Label Studio's labelling configuration gives a control (`from_name`) and the text that
    the control labels (`to_name`). None: the user gave no name."""

    from_name: str | None = None
    to_name: str | None = None
    found: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By type of result, such as "labels": the controls that have such results in a file, each with its text.
    """

    @classmethod
    def of(cls, texts: Iterable[BatchText], from_name: str | None, to_name: str | None) -> Controls:
        """Return the names that the user gives, and those in the annotations of `texts`, which are used where
        the user gives none."""
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
        """Return `from_name` and `to_name` for results of the type `kind`, such as "labels".

        Raises InvalidInput if several controls of the file have such results and the user has named none.
        """
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
    """Return a row of the form `rows`: the text, its row's id if it has one, and the fields of `output` that
    are not None."""
    texts = {"text": text.text} if isinstance(text.text, str) else dict(zip(_PAIR, text.text, strict=True))
    return {**_id(text), **texts, **{name: value for name, value in output.items() if value is not None}}


_PAIR = ("text", "text_pair")


def _id(text: BatchText) -> dict[str, Any]:
    found = (text.task or text.record).get("id")
    return {} if found is None else {"id": found}


def is_annotated(text: BatchText, form: str) -> bool:
    """Return whether people have labelled a row already, so that the file in the form `form` keeps their
    labels."""
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
    """Return a task of Label Studio with a prediction: regions for entities, choices for labels, a number for
    a value.

    output: the model's answer; None if the text has none, and the task then gets no prediction. version: the
    model that the prediction names; a prediction of the task that names the same one is replaced. offsets:
    one of OFFSETS. Raises InvalidInput for an answer that has none of these forms, such as an embedding.
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
    """Raise InvalidInput if no field of the task is the text that was answered: the entities' offsets would
    point to other words there. doccano's rows need no such check, since they get the text itself."""
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
    """Return a row of doccano's JSONL: its `label` is a list of spans for entities, else a list of labels.

    A row that has labels is returned as it is. Other rows keep their other fields, such as comments. offsets:
    one of OFFSETS. Raises InvalidInput for a pair of texts, and for answers with neither labels nor entities:
    doccano has no form for them.
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
