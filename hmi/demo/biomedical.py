"""Tasks of PubMed abstracts: section, species, study design, titles, records, and chemicals in sentences."""

from __future__ import annotations

import gzip
import json
import random
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, cast

from hmi.demo.clean import excerpt, sentences, split_of, squeeze, words_of
from hmi.demo.dataset import Amounts, Row, TenantText, build_rows, by_label
from hmi.demo.wheels import open_member


@dataclass(frozen=True)
class Article:
    """An English article with an abstract. Section labels are NLM's categories, None if unstructured."""

    pmid: str
    title: str
    sections: tuple[tuple[str | None, str], ...]
    chemicals: tuple[str, ...]
    headings: frozenset[str]
    kinds: frozenset[str]

    @property
    def abstract(self) -> str:
        return " ".join(text for _, text in self.sections)


def read_articles(file: IO[bytes]) -> Iterator[Article]:
    """Yield the English articles that have an abstract, in file order. `file` is the gzip-compressed XML.

    One article at a time is in memory.
    """
    with gzip.open(file) as xml:
        events = ET.iterparse(cast(IO[bytes], xml), events=("start", "end"))
        _, root = next(events)
        for event, element in events:
            if event == "end" and element.tag == "PubmedArticle":
                article = _article(element)
                if article is not None:
                    yield article
                root.clear()


def _article(element: ET.Element) -> Article | None:
    sections = tuple(
        (part.get("NlmCategory"), text)
        for part in element.iterfind(".//Article/Abstract/AbstractText")
        if (text := squeeze("".join(part.itertext())))
    )
    pmid, language = element.findtext(".//PMID"), element.findtext(".//Article/Language")
    if not sections or pmid is None or language != "eng":
        return None
    title = element.find(".//ArticleTitle")
    return Article(
        pmid=pmid,
        title=squeeze("".join(title.itertext())) if title is not None else "",
        sections=sections,
        chemicals=_texts(element, ".//Chemical/NameOfSubstance"),
        headings=frozenset(_texts(element, ".//MeshHeading/DescriptorName")),
        kinds=frozenset(_texts(element, ".//PublicationType")),
    )


def _texts(element: ET.Element, path: str) -> tuple[str, ...]:
    return tuple(found.text for found in element.iterfind(path) if found.text)


_SHORTEST_NAME = 3
_TURNS_WITH_MENTION = 4
"""Groups of sentences with a mention, beside one group without. So one sentence in five has none."""


def tagging_tenants(source: list[Article], amounts: Amounts) -> Iterator[TenantText]:
    """Yield the tenant that tags chemicals in PubMed sentences, by distant supervision.

    A record lists the chemicals that its indexers chose. Wherever a listed name occurs in the abstract, its
    words are tagged B-CHEMICAL, I-CHEMICAL. Nobody read the sentences: a chemical that the indexers left
    out, or that is spelled otherwise, is tagged O. The labels are consistent enough to learn from and to
    compare models on. They are not a gold standard.
    """
    candidates: dict[str, list[Row]] = {"train": [], "dev": [], "test": []}
    for article in source:
        if article.chemicals:
            candidates[article_split(article)].extend(_rows(article))
    rng = random.Random(amounts.seed)
    rows = build_rows(candidates, amounts, group=lambda row: _turn(row, rng))
    yield TenantText("pharma", "chemicals", "biomedical", "tagging", "chemical names (distant labels)", rows)


def tag_chemicals(words: Sequence[str], names: Sequence[Sequence[str]]) -> list[str]:
    """Return BIO tags of the longest matches from left to right.

    `names` are in lower case. A final s is ignored.
    """
    lowered = [_stem(w) for w in words]
    wanted = sorted(([_stem(w) for w in name] for name in names), key=len, reverse=True)
    tags = ["O"] * len(words)
    at = 0
    while at < len(words):
        match = next((n for n in wanted if n and lowered[at : at + len(n)] == n), None)
        if match:
            tags[at : at + len(match)] = ["B-CHEMICAL", *["I-CHEMICAL"] * (len(match) - 1)]
        at += len(match) if match else 1
    return tags


def spellings(name: str) -> list[list[str]]:
    """Return the spellings of an index term as words: as listed and, for "Acids, Fatty", reversed."""
    plain = re.sub(r"\s*\(.*?\)", "", name).lower()
    turned = " ".join(reversed(plain.split(", "))) if plain.count(", ") == 1 else plain
    found = {form for form in (plain, turned) if len(form) >= _SHORTEST_NAME}
    return [words_of(form) for form in sorted(found)]


def _rows(article: Article) -> Iterator[Row]:
    """Yield one sentence of the abstract: one that mentions a chemical, if there is any."""
    names = [words for chemical in article.chemicals for words in spellings(chemical)]
    rng = random.Random(article.pmid)
    tagged = []
    for sentence in sentences(article.abstract):
        if usable(sentence):
            words = words_of(sentence)
            tagged.append({"tokens": words, "tags": tag_chemicals(words, names)})
    mentioning = [row for row in tagged if _mentions(row)]
    if mentioning:
        yield rng.choice(mentioning)
    elif tagged:
        yield rng.choice(tagged)


def _mentions(row: Row) -> bool:
    return "B-CHEMICAL" in row["tags"]


def _turn(row: Row, rng: random.Random) -> int:
    """Return a row's group.

    Groups are chosen in turn, so sentences with a mention are spread over several.
    """
    return rng.randrange(_TURNS_WITH_MENTION) if _mentions(row) else _TURNS_WITH_MENTION


def _stem(word: str) -> str:
    lowered = word.lower()
    return lowered[:-1] if len(lowered) > 3 and lowered.endswith("s") else lowered


_FILES = {"old": "data/pubmed20n0014.xml.gz", "new": "data/pubmed21n1298.xml.gz"}
_SECTIONS = ("BACKGROUND", "OBJECTIVE", "METHODS", "RESULTS", "CONCLUSIONS")
_DESIGNS = {
    "Case Reports": "case-report",
    "Review": "review",
    "Clinical Trial": "trial",
    "Randomized Controlled Trial": "trial",
    "Controlled Clinical Trial": "trial",
}
_ABSTRACT_WORDS = 40
_PAIR_WORDS = 14
_SENTENCE_WORDS = range(6, 46)

Candidates = dict[str, list[Row]]


def articles(wheel: Path, which: str) -> list[Article]:
    """Return all usable articles of the wheel's `old` (1970s, indexed) or `new` (2021, structured) file."""
    with open_member(wheel, _FILES[which]) as file:
        return list(read_articles(file))


def article_split(article: Article) -> str:
    """Return an article's split, the same for every task, so that no test abstract is in a corpus."""
    return split_of(article.pmid)


def biomedical_tenants(old: list[Article], new: list[Article], amounts: Amounts) -> Iterator[TenantText]:
    makers: tuple[tuple[str, str, str, list[Article], Callable[[Article], Iterator[Row]]], ...] = (
        ("library", "section", "the section of an abstract that a sentence comes from", new, _sections),
        ("vetmed", "species", "whether a study was of humans or of animals", old, _species),
        ("evidence", "design", "the design of a study", old, _design),
    )
    for tenant, model, about, source, rows_of in makers:
        rows = build_rows(_candidates(source, rows_of), amounts, group=by_label)
        yield TenantText(tenant, model, "biomedical", "classification", about, rows)
    pairs = build_rows(_pairs(old), amounts, group=by_label)
    about = "whether a sentence is from the abstract under a title, against another article's"
    yield TenantText("editor", "match", "biomedical", "pair", about, pairs)


def usable(sentence: str) -> bool:
    return len(sentence.split()) in _SENTENCE_WORDS


def _says_much(sentence: str) -> bool:
    """Return whether a sentence is long enough to point to its title. ("They all recovered." is not.)"""
    return len(sentence.split()) >= _PAIR_WORDS


def _candidates(source: list[Article], rows_of: Callable[[Article], Iterator[Row]]) -> Candidates:
    out: Candidates = {"train": [], "dev": [], "test": []}
    for article in source:
        out[article_split(article)].extend(rows_of(article))
    return out


def _sections(article: Article) -> Iterator[Row]:
    """Yield one sentence of each section."""
    rng = random.Random(article.pmid)
    for label, text in article.sections:
        found = [s for s in sentences(text) if usable(s)]
        if label in _SECTIONS and found:
            yield {"text": rng.choice(found), "label": label.lower()}


def _species(article: Article) -> Iterator[Row]:
    human, animal = "Humans" in article.headings, "Animals" in article.headings
    if human != animal:
        yield {"text": excerpt(article.abstract, _ABSTRACT_WORDS), "label": "humans" if human else "animals"}


def _design(article: Article) -> Iterator[Row]:
    labels = {_DESIGNS[kind] for kind in article.kinds if kind in _DESIGNS}
    if len(labels) == 1:
        yield {"text": excerpt(article.abstract, _ABSTRACT_WORDS), "label": labels.pop()}


def _pairs(source: list[Article]) -> Candidates:
    """Return half of the titles with a sentence of their own abstract, half with one of another article."""
    out: Candidates = {"train": [], "dev": [], "test": []}
    for split, candidates in out.items():
        members = [a for a in source if article_split(a) == split and len(a.title.split()) >= 4]
        for i, article in enumerate(members):
            rng = random.Random(article.pmid)
            other = article if i % 2 else rng.choice(members)
            found = [s for s in sentences(other.abstract) if usable(s) and _says_much(s)]
            if found:
                label = "same" if other is article else "other"
                title = article.title.strip("[]. ")
                candidates.append({"text": title, "text_pair": rng.choice(found), "label": label})
    return out


_RECORD_WORDS = 32
_RECORD = {
    "type": "object",
    "properties": {
        "species": {"enum": ["humans", "animals"]},
        "design": {"enum": list(dict.fromkeys(_DESIGNS.values()))},
    },
    "required": ["species", "design"],
    "additionalProperties": False,
}
_RECORD_SHARES = {"train": 2, "dev": 4, "test": 3}
"""A model that writes learns and answers more slowly than one that labels, so it has a half, a quarter and a
third of the other tenants' rows."""


def writing_tenants(source: list[Article], amounts: Amounts) -> Iterator[TenantText]:
    """Yield the tenant that writes a record of a study, as JSON: its species and its design."""
    fewer = {split: amounts.rows(split) // share for split, share in _RECORD_SHARES.items()}
    rows = build_rows(_candidates(source, _records), replace(amounts, **fewer), group=_completion)
    about = "a study's record as JSON: species, design"
    options = {"epochs": 3}
    yield TenantText(
        "registry", "study", "root", "generation", about, rows, options, {"json_schema": _RECORD}
    )


def _records(article: Article) -> Iterator[Row]:
    """Yield the start of the abstract as a prompt, and its record as the completion."""
    text = excerpt(article.abstract, _RECORD_WORDS)
    for species, design in zip(_species(article), _design(article), strict=False):
        record = {"species": species["label"], "design": design["label"]}
        yield {"prompt": f"Abstract: {text}\nRecord:\n", "completion": json.dumps(record)}


def _completion(row: Row) -> object:
    return row["completion"]
