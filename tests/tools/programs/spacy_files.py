"""Writes what users of spaCy export: documents as JSON, training tuples, tags in CoNLL, a DocBin."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import spacy
from spacy.tokens import DocBin
from spacy.training import Example, biluo_to_iob, docs_to_json, offsets_to_biluo_tags

truth = json.load(sys.stdin)
nlp = spacy.blank("en")
nlp.add_pipe("sentencizer")


def document(row):
    doc = nlp(row["text"])
    doc.ents = [doc.char_span(start, end, label=name) for start, end, name in row["entities"]]
    doc.cats = {name: float(name == row["label"]) for name in ("news", "talk")}
    return doc


def of_groups(row):
    doc = nlp(row["text"])
    doc.spans["sc"] = [doc.char_span(start, end, label=name) for start, end, name in row["entities"]]
    return doc


def lines(name, rows):
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def conll(name, tags_of, *, blank):
    """Words with their tags. blank: write words of white space too, as nothing keeps one from doing."""
    out = []
    for row, doc in zip(truth, docs, strict=True):
        pairs = zip(doc, tags_of(doc, row["entities"]), strict=True)
        out += [f"{word.text}\t{tag}\n" for word, tag in pairs if blank or not word.is_space]
        out.append("\n")
    Path(name).write_text("".join(out))


docs = [document(row) for row in truth]
lines("docs.jsonl", [doc.to_json() for doc in docs])
lines("groups.jsonl", [of_groups(row).to_json() for row in truth])
lines("cats.jsonl", [{"text": doc.text, "cats": doc.cats} for doc in docs])
Path("tuples.json").write_text(json.dumps([(row["text"], {"entities": row["entities"]}) for row in truth]))
Path("cats.json").write_text(json.dumps([(doc.text, {"cats": doc.cats}) for doc in docs]))
several = [{name: float(name in row["labels"]) for name in ("news", "talk")} for row in truth]
pairs = zip(truth, several, strict=True)
Path("several.json").write_text(json.dumps([(row["text"], {"cats": cats}) for row, cats in pairs]))
both = [
    (row["text"], {"entities": row["entities"], "cats": doc.cats})
    for row, doc in zip(truth, docs, strict=True)
]
Path("both.json").write_text(json.dumps(both))
conll("biluo.conll", offsets_to_biluo_tags, blank=False)
conll("iob.conll", lambda doc, spans: biluo_to_iob(offsets_to_biluo_tags(doc, spans)), blank=False)
conll("blank.conll", offsets_to_biluo_tags, blank=True)
examples = [Example.from_dict(nlp(row["text"]), {"entities": row["entities"]}) for row in truth]
Path("examples.json").write_text(json.dumps([example.to_dict() for example in examples]))
Path("v2.json").write_text(json.dumps([docs_to_json(docs)]))
DocBin(docs=docs).to_disk("train.spacy")
