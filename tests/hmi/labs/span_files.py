"""Rows with spans as annotation tools and libraries write them.

Their forms follow each tool's documentation: doccano's exporter, Prodigy's annotation interfaces, Label
Studio's export formats, spaCy's training data and `Doc.to_json`, GLiNER's training data.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

TEXT = "Anna left New York."
SPANS = [(0, 4, "PER"), (10, 18, "LOC")]
TOKENS = ["Anna", "left", "New", "York", "."]
TAGS = ("B-PER", "O", "B-LOC", "I-LOC", "O")
Span = tuple[int, int, str]


def objects(spans: Sequence[Span], start: str = "start", end: str = "end") -> list[dict[str, Any]]:
    return [{start: a, end: b, "label": label} for a, b, label in spans]


def lines(*rows: Any) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def task(text: str, spans: Sequence[Span], **more: Any) -> dict[str, Any]:
    """A task of Label Studio's JSON export. The spans are in code points, the export's offsets are not."""
    units = [
        (len(text[:a].encode("utf-16-le")) // 2, len(text[:b].encode("utf-16-le")) // 2) for a, b, _ in spans
    ]
    result = [
        {
            "type": "labels",
            "from_name": "label",
            "to_name": "text",
            "value": {"start": a, "end": b, "text": text[s[0] : s[1]], "labels": [s[2]]},
        }
        for (a, b), s in zip(units, spans, strict=True)
    ]
    note = {"type": "choices", "from_name": "c", "to_name": "text", "value": {"choices": ["sure"]}}
    return {
        "id": 1,
        "data": {"text": text},
        "annotations": [{"result": [*result, note], "was_cancelled": False}],
        **more,
    }


def least(text: str, spans: Sequence[Span]) -> dict[str, Any]:
    """A row of Label Studio's JSON-MIN export."""
    found = [{"start": a, "end": b, "text": text[a:b], "labels": [label]} for a, b, label in spans]
    return {"id": 1, "text": text, "label": found, "annotator": 1, "created_at": "2026-01-01"}


LISTS = [list(span) for span in SPANS]
FORMS: dict[str, tuple[Any, str]] = {
    "doccano label": ({"id": 1, "text": TEXT, "label": LISTS, "Comments": []}, "as doccano writes them"),
    "doccano labels": ({"id": 1, "text": TEXT, "labels": LISTS}, "as doccano writes them"),
    "doccano entities": (
        {"text": TEXT, "entities": objects(SPANS, "start_offset", "end_offset"), "relations": []},
        "as doccano writes them",
    ),
    "prodigy": (
        {
            "text": TEXT,
            "spans": objects(SPANS),
            "tokens": [{"text": "Anna", "start": 0, "end": 4, "id": 0}],
            "answer": "accept",
        },
        "spans in `spans`, as Prodigy writes them",
    ),
    "label studio": (task(TEXT, SPANS), "spans in Label Studio's JSON"),
    "label studio, least": (least(TEXT, SPANS), "as Label Studio's JSON-MIN has them"),
    "spacy": ({"text": TEXT, "entities": LISTS}, "spans in `entities`, as spaCy writes them"),
    "spacy, a document": (
        {"text": TEXT, "ents": objects(SPANS), "tokens": [{"id": 0, "start": 0, "end": 4, "tag": "NNP"}]},
        "spans in `ents`, as spaCy writes them",
    ),
    "gliner": (
        {"tokenized_text": TOKENS, "ner": [[0, 0, "PER"], [2, 3, "LOC"]]},
        "words with spans, as GLiNER reads them",
    ),
    "of another name": ({"content": TEXT, "marks": objects(SPANS)}, "spans in `marks`"),
    "hmi's own answers": (
        {
            "text": TEXT,
            "entities": [{**o, "text": TEXT[o["start"] : o["end"]], "score": 0.9} for o in objects(SPANS)],
        },
        "spans in `entities`",
    ),
}
