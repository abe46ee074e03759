"""Files of classes as annotation tools and libraries write them.

Their forms follow each tool's documentation: Label Studio's export formats, doccano's exporter, Prodigy's
annotation
interfaces, spaCy's `cats`, fastText's supervised format, Rasa's training data, the dataset viewer's `/rows`.
"""

from __future__ import annotations

import json
from typing import Any

TEXTS = (
    "Where is my parcel, please?",
    "I want my money back now",
    "How do I reset the password",
    "The parcel has not arrived yet",
    "Please refund my last order",
    "I cannot log in to the site",
)
LABELS = ("parcel", "refund", "login") * 2
ROWS = list(zip(TEXTS, LABELS, strict=True))


def jsonl(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def task_of_label_studio(text: str, *annotations: dict[str, Any]) -> dict[str, Any]:
    return {"id": 7, "data": {"ticket": text}, "annotations": list(annotations), "predictions": []}


def chosen(*labels: str, **more: Any) -> dict[str, Any]:
    value = {"value": {"choices": list(labels)}, "from_name": "topic", "to_name": "text", "type": "choices"}
    return {"id": 1, "completed_by": 1, "result": [value] if labels else [], **more}


RASA = """version: "3.1"
nlu:
- intent: parcel
  examples: |
    - Where is my parcel, please?
    - The [parcel](thing) has not arrived yet
- intent: refund
  examples: |
    - I want my money back now

    - Please refund my [last order]{"entity": "thing", "role": "bought"}
- synonym: back
  examples: |
    - return
- intent: login
  examples:
  - text: |
      How do I reset the password
  - text: I cannot log in to the site
"""
MIN = {"annotator": 1, "annotation_id": 3, "lead_time": 2.5, "created_at": "2026", "updated_at": "2026"}
FEATURES = [
    {"feature_idx": 0, "name": "text", "type": {"dtype": "string", "_type": "Value"}},
    {
        "feature_idx": 1,
        "name": "label",
        "type": {"names": ["login", "parcel", "refund"], "_type": "ClassLabel"},
    },
]
EXPORTS: dict[str, tuple[str, str]] = {
    "Label Studio": (json.dumps([task_of_label_studio(t, chosen(a)) for t, a in ROWS]), "from Label Studio"),
    "Label Studio, JSON-MIN": (
        json.dumps([{"text": t, "id": 1, "topic": a, **MIN} for t, a in ROWS]),
        "the answers in `topic`",
    ),
    "Label Studio, CSV": (
        "annotation_id,annotator,id,lead_time,text,topic\n"
        + "".join(f'1,1,{i},2.5,"{t}",{a}\n' for i, (t, a) in enumerate(ROWS)),
        "the answers in `topic`",
    ),
    "doccano": (jsonl([{"id": 1, "text": t, "label": [a], "Comments": []} for t, a in ROWS]), "from doccano"),
    "Prodigy, choice": (
        jsonl(
            [
                {"text": t, "options": [{"id": a, "text": a}], "accept": [a], "answer": "accept"}
                | {"config": {"choice_style": "single"}}
                for t, a in ROWS
            ]
        ),
        "from Prodigy",
    ),
    "spaCy": (
        jsonl([{"text": t, "cats": {x: float(x == a) for x in LABELS}} for t, a in ROWS]),
        "from spaCy",
    ),
    "fastText": ("".join(f"__label__{a} {t}\n" for t, a in ROWS), "fastText, labels marked"),
    "Rasa": (RASA, "Rasa's training data, entities' marks dropped"),
    "Rasa, Markdown": (
        "".join(f"## intent:{a}\n- {t}\n" for t, a in ROWS) + "## synonym:x\n- y\n",
        "Rasa's training data",
    ),
    "Rasa, JSON": (
        json.dumps(
            {"rasa_nlu_data": {"common_examples": [{"text": t, "intent": a} for t, a in ROWS]}}, indent=1
        ),
        "from Rasa",
    ),
    "dataset viewer": (
        json.dumps(
            {
                "features": FEATURES,
                "rows": [
                    {"row_idx": i, "row": {"text": t, "label": sorted(set(LABELS)).index(a)}}
                    for i, (t, a) in enumerate(ROWS)
                ],
            }
        ),
        "names of `label` from its features",
    ),
}
SEVERAL: dict[str, str] = {
    "Label Studio": json.dumps([task_of_label_studio(t, chosen(a, "x")) for t, a in ROWS]),
    "Label Studio, JSON-MIN": json.dumps(
        [{"text": t, "topic": {"choices": [a, "x"]}, **MIN} for t, a in ROWS]
    ),
    "Label Studio, CSV": "annotation_id,lead_time,text,topic\n"
    + "".join(f'1,2.5,"{t}","{{""choices"":[""{a}"",""x""]}}"\n' for t, a in ROWS),
    "doccano": jsonl([{"text": t, "label": [a, "x"]} for t, a in ROWS]),
    "Prodigy": jsonl([{"text": t, "options": [], "accept": [a, "x"], "answer": "accept"} for t, a in ROWS]),
    "spaCy": jsonl([{"text": t, "cats": {"x": 1, **{x: float(x == a) for x in LABELS}}} for t, a in ROWS]),
    "fastText": "".join(f"__label__{a} __label__x {t}\n" for t, a in ROWS),
}
FLAGS = "id,comment_text,toxic,threat\n" + "".join(
    f'{i},"{t}",{i % 2},{i // 3}\n' for i, t in enumerate(TEXTS)
)
STRANGE = "what,said\n" + "".join(f'{a},"{t}"\n' for t, a in ROWS)
HEADLESS = "".join(f'"{LABELS.index(a) + 1}","{t}","{t} It matters to us."\n' for t, a in ROWS)
