"""Chemicals in PubMed sentences, tagged by distant supervision.

A record lists the chemicals that its indexers chose. Wherever a listed name occurs in the abstract, its words
are tagged B-CHEMICAL, I-CHEMICAL. Nobody read the sentences: a chemical that the indexers left out, or that
is spelled otherwise, is tagged O. The labels are consistent enough to learn from and to compare models on.
They are not a gold standard.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence

from hmi.demo.biomedical import article_split, usable
from hmi.demo.clean import sentences, words_of
from hmi.demo.dataset import Amounts, Row, TenantText, build_rows
from hmi.demo.pubmed import Article

_SHORTEST_NAME = 3
_TURNS_WITH_MENTION = 4
"""Groups of sentences with a mention, beside one group without. So one sentence in five has none."""


def tagging_tenants(source: list[Article], amounts: Amounts) -> Iterator[TenantText]:
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
