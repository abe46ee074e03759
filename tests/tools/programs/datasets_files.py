"""Writes what Hugging Face's `datasets` exports of features with classes, which it keeps as integers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from datasets import ClassLabel, Dataset, Features, Sequence, Value

truth = json.load(sys.stdin)
classes = ClassLabel(names=["news", "talk"])
tags = ClassLabel(names=["O", "B-PER", "I-PER", "B-LOC", "I-LOC"])
texts = [row["text"] for row in truth]


def tagged(row):
    """Words, split at spaces, with tags; a mark after an entity is left to its word."""
    words, found, at = [], [], 0
    for word in row["text"].split():
        at = row["text"].index(word, at)
        held = next((s for s in row["entities"] if s[0] <= at < s[1]), None)
        words.append(word)
        found.append("O" if held is None else f"{'B' if held[0] == at else 'I'}-{held[2]}")
        at += len(word)
    return words, found


def dataset(column, feature, values):
    return Dataset.from_dict(
        {"text": texts, column: values}, features=Features({"text": Value("string"), column: feature})
    )


one = dataset("label", classes, [row["label"] for row in truth])
one.to_json("one.jsonl")
one.to_json("one.json", lines=False, orient="records")
one.to_json("one-split.json", lines=False, orient="split")
one.to_csv("one.csv")
one.to_csv("one-index.csv", index=True)
one.to_csv("one.tsv", sep="\t")
names = one.features["label"].int2str
one.map(lambda row: {"name": names(row["label"])}, remove_columns="label").to_json("one-named.jsonl")
several = dataset("labels", Sequence(classes), [row["labels"] for row in truth])
several.to_json("several.jsonl")
several.to_csv("several.csv")
words, marks = zip(*map(tagged, truth), strict=True)
ner = Dataset.from_dict(
    {"id": [str(i) for i in range(len(truth))], "tokens": list(words), "ner_tags": list(marks)},
    features=Features(
        {"id": Value("string"), "tokens": Sequence(Value("string")), "ner_tags": Sequence(tags)}
    ),
)
ner.to_json("ner.jsonl")
ner.to_json("ner-columns.json", lines=False, orient="columns")
ner.to_csv("ner.csv")
ner.to_parquet("ner.parquet")
Path("names.json").write_text(json.dumps({"label": classes.names, "tags": tags.names}))
Path("words.json").write_text(json.dumps([words, marks]))
