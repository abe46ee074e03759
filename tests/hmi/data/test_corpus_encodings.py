"""Corpora in encodings that their bytes do not tell: the option reaches the checks and the jobs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from hmi.errors import InvalidInput
from hmi.jobs.checks import checked_corpus, inspect_file
from hmi.jobs.options import BuildPlotOptions, ImportRootOptions, checked_options
from hmi.training.data.corpus import corpus_as_utf8, read_documents
from hmi.training.data.reading import Reading
from tests.hmi.labs.api_world import hmi, running
from tests.tiny import random_texts

WORDS = "ąćę"
"""Bytes that are letters of several encodings."""
DOCUMENTS = [f"{text} {WORDS}" for text in random_texts(60, seed=9)]
DATA = "".join(f"{text}\r\n" for text in DOCUMENTS).encode("iso-8859-2")
NAMED = "iso-8859-2"


def test_the_check_and_the_copy_read_the_named_encoding(tmp_path: Path) -> None:
    refused = inspect_file(DATA, None, corpus=True)
    assert "for rows and corpora, name its encoding" in str(refused.error)
    assert inspect_file(DATA, None, corpus=True, reading=Reading(encoding=NAMED)).count == len(DOCUMENTS)
    assert "iso-8859-2, as told" in checked_corpus(DATA, encoding=NAMED)
    source = tmp_path / "corpus"
    source.write_bytes(DATA)
    copy = corpus_as_utf8(source, NAMED, tmp_path / "copy")
    assert [*read_documents(copy)] == DOCUMENTS
    assert corpus_as_utf8(source, None, tmp_path / "none") == source


@pytest.mark.parametrize("kind", [BuildPlotOptions, ImportRootOptions])
def test_an_unknown_encoding_is_refused(kind: Any) -> None:
    with pytest.raises(InvalidInput, match=r"options.encoding: 'klingon' is no encoding"):
        checked_options(kind, {"encoding": "klingon"})
    assert checked_options(kind, {"encoding": "cp1250"}).encoding == "cp1250"


async def test_a_domain_is_built_of_it_over_http_and_by_the_command(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "corpus.txt"
    file.write_bytes(DATA)
    async with running(folder) as world:
        spec: dict[str, Any] = {"domain": "tiny/pl", "options": {"encoding": NAMED}}
        status, made, _ = await world.upload("/manage/domains", spec, {"corpus": DATA})
        assert status == 202, made
        job = await world.finish(made["job"])
        assert job["state"] == "succeeded", job
        assert "iso-8859-2, as told" in job["result"]["read"]
        plain = {"domain": "tiny/pl0"}
        status, _, _ = await world.upload("/manage/domains", plain, {"corpus": DATA})
        assert status == 422
        asked = {"corpus": True, "options": {"encoding": NAMED}}
        _, seen, _ = await world.upload("/manage/check", asked, {"data": DATA})
        assert (seen["usable"], seen["count"]) == (True, len(DOCUMENTS))
        asked["options"] = {"header": False}
        status, _, _ = await world.upload("/manage/check", asked, {"data": DATA})
        assert status == 422

    def by_the_command() -> None:
        told = hmi(capsys, "check", file, "--corpus", "--encoding", NAMED)
        assert told.splitlines()[-1].endswith(f"corpus.txt --encoding {NAMED}")
        where = ("--data", folder)
        built = hmi(capsys, "domain", "create", "tiny/pl2", file, "--encoding", NAMED, "--json", *where)
        assert "iso-8859-2, as told" in built
        refused = hmi(capsys, "domain", "create", "tiny/pl3", file, *where, code=1)
        assert "--encoding" in refused

    await asyncio.to_thread(by_the_command)


def test_a_root_learns_from_texts_of_it(
    tiny_source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "texts.txt"
    file.write_bytes("".join(f"{text} {WORDS}\n" for text in random_texts(400, seed=8)).encode(NAMED))
    steps = ("--option", "steps=2", "--option", "upper_steps=0", "--data", tmp_path / "data")
    ask = ("root", "import", "pl", tiny_source, "--text", file, "--alpha", 10, *steps)
    assert "name its encoding" in hmi(capsys, *ask, code=1)
    hmi(capsys, *ask, "--encoding", NAMED)
