"""Answers of a model in the forms that annotation tools read, so that people correct labels instead of giving
them.

Label Studio takes tasks with `predictions`; its offsets count code points, as its own tests of emoji say.
doccano takes rows with `label`; its offsets count UTF-16 units, as browsers do (doccano's issue 2290).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hmi.errors import InvalidInput
from hmi.training.data.batch_texts import BatchText

FORMS = ("rows", "label-studio", "doccano")
FROM_NAME, TO_NAME = "label", "text"
"""The names of the control and of the text in Label Studio's own templates for entities."""
Answer = Mapping[str, Any]


def answered_row(text: BatchText, output: Answer) -> dict[str, Any]:
    """The text with the fields of its answer that are not null."""
    texts = {"text": text.text} if isinstance(text.text, str) else dict(zip(_PAIR, text.text, strict=True))
    return {**texts, **{name: value for name, value in output.items() if value is not None}}


_PAIR = ("text", "text_pair")


def label_studio_task(
    text: BatchText, output: Answer, version: str, from_name: str = FROM_NAME, to_name: str = TO_NAME
) -> dict[str, Any]:
    """A task with a prediction: regions for entities, choices for labels, a number for a value.

    version: what the prediction names as its model. Raises InvalidInput for answers without such a form.
    """
    found, score = _results(output)
    names = {"from_name": from_name, "to_name": to_name}
    results = [{"id": f"{at}", **names, **result} for at, result in enumerate(found)]
    prediction: dict[str, Any] = {"model_version": version, "result": results}
    if score is not None:
        prediction["score"] = score
    data = dict(text.record) or {"text": text.text}
    return {"data": data, "predictions": [prediction]}


def _results(output: Answer) -> tuple[list[dict[str, Any]], float | None]:
    """The results of a prediction, and its score: that of the answer, or of the least sure entity."""
    if output.get("entities") is not None:
        regions = [_region(entity) for entity in output["entities"]]
        return regions, min((region["score"] for region in regions), default=None)
    if output.get("value") is not None:
        return [{"type": "number", "value": {"number": output["value"]}}], None
    labels = _labels(output)
    return [{"type": "choices", "value": {"choices": labels}}] if labels else [], output.get("score")


def _region(entity: Answer) -> dict[str, Any]:
    value = {name: entity[name] for name in ("start", "end", "text")} | {"labels": [entity["label"]]}
    return {"type": "labels", "value": value, "score": entity["score"]}


def _units(text: str) -> int:
    """The number of UTF-16 units of a text."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def doccano_row(text: BatchText, output: Answer) -> dict[str, Any]:
    """A row of doccano's JSONL: spans for entities, else a list of labels.

    Raises InvalidInput for a pair of texts and for other answers, which doccano has no form for.
    """
    if not isinstance(text.text, str):
        raise InvalidInput("doccano has no form for pairs of texts: choose --form rows", field="form")
    entities = output.get("entities")
    if entities is not None:
        units = [[*(_units(text.text[: e[at]]) for at in ("start", "end")), e["label"]] for e in entities]
        return {"text": text.text, "label": units}
    return {"text": text.text, "label": _labels(output)}


def _labels(output: Answer) -> list[str]:
    if output.get("labels") is not None:
        return [given["label"] for given in output["labels"]]
    if output.get("label") is not None:
        return [output["label"]]
    raise InvalidInput("the model answers with neither labels nor entities: choose --form rows", field="form")
