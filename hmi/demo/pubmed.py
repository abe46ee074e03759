"""Reads the articles of a MEDLINE/PubMed XML file one at a time, without holding the file in memory."""

from __future__ import annotations

import gzip
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, cast

from hmi.demo.clean import squeeze


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
    """Yield the English articles that have an abstract, in file order. `file` is the gzip-compressed XML."""
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
