"""Erasing texts from a domain. The reference is a domain that was built without them."""

from __future__ import annotations

import asyncio
import json
import shutil
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from hmi_kernels.lookup.layout import pack_keys

from hmi.backup.create import create as backing_up
from hmi.backup.target import open_target
from hmi.config import Settings
from hmi.core import DeletedParts
from hmi.errors import Conflict, InvalidInput, NotFound
from hmi.jobs.plot import erase_text
from hmi.jobs.plot.ngrams import ragged
from hmi.manager import Manager
from hmi.model.sources.root import load_root
from hmi.stores.plot.plot_meta import PlotMeta
from tests.hmi.labs.api_world import hmi, made_folder, rows, running
from tests.hmi.labs.build_lab import attempt, create, folder, text, tiny_manager
from tests.tiny import random_texts

NEWS = "tiny/news"
KEPT = random_texts(40, 2)
SECRET = [f"q z v {a} k x j w the {b} y f" for a in "bcdg" for b in "hilm"]  # letters that KEPT does not have
WHOLE = "\n".join([*KEPT, *SECRET]).encode()


@pytest.fixture(scope="module")
def rooted(tiny_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with the root tiny."""
    data = tmp_path_factory.mktemp("erase") / "data"
    for _ in tiny_manager(tiny_source, data):
        pass
    return data


@pytest.fixture
def manager(rooted: Path, tmp_path: Path) -> Iterator[Manager]:
    opened = Manager(Settings(data=shutil.copytree(rooted, tmp_path / "data"), job_workers=0, teachers=""))
    yield opened
    opened.close()


def erase(manager: Manager, **given: Any) -> dict[str, Any]:
    found = attempt(manager, manager.erase_from_domain(NEWS, **given), erase_text.run)
    assert found is not None
    return found


def looked_up(manager: Manager, texts: list[str], version: str) -> tuple[np.ndarray, np.ndarray]:
    tokenizer = load_root(folder(manager), with_lower=True).tokenizer
    with manager.plots.reader(version) as reader:
        vectors, hits = reader.lookup(*ragged([e.ids for e in tokenizer.encode(texts, 64)]))
    return vectors, hits.order


def in_samples(manager: Manager, words: str) -> bool:
    """Whether any sample in the data folder has these words."""
    folder = manager.settings.data / "samples"
    contents = [zstandard.decompress(path.read_bytes()) for path in folder.glob("*.zst")]
    return any(words.encode() in content for content in contents)


def test_a_domain_without_a_text_equals_one_that_never_had_it(manager: Manager) -> None:
    create(manager, NEWS, WHOLE, alpha=100, options={"sample": True})
    _, without = create(manager, "tiny/never", "\n".join(KEPT).encode(), alpha=100)
    first = manager.plots.version(NEWS)
    manager.plots.append(NEWS, {2: (np.array([[7, 9]], np.uint32), np.ones((1, 4, 32), np.float32))})
    assert (looked_up(manager, SECRET, NEWS)[1] == 3).all()
    assert in_samples(manager, "q z v b k x")

    found = erase(manager, text="\n".join(SECRET).encode(), keep="\n".join(KEPT).encode())
    current = manager.plots.version(NEWS)
    assert found["rows"] > 0
    assert set(found["versions"]) == {first.id, current.previous}
    assert found["version"] == current.id
    assert found["passages"] == len(SECRET)
    assert PlotMeta.of(current).report["erased_passages"] == len(SECRET)
    assert looked_up(manager, KEPT, without.id)[1].max() == 3
    for texts in (SECRET, KEPT):
        expected = looked_up(manager, texts, without.id)
        got = looked_up(manager, texts, first.id)
        np.testing.assert_array_equal(got[0], expected[0])
        np.testing.assert_array_equal(got[1], expected[1])
    assert not in_samples(manager, "q z v b k x")
    sample = manager.samples.get(PlotMeta.of(current).sample)
    assert len(sample) == PlotMeta.of(current).report["sample_passages"] > 0
    assert set(sample) <= set(KEPT)


def contents(folder: Path) -> list[bytes]:
    """What each file below a folder holds, uncompressed."""
    found = []
    for path in sorted(folder.rglob("*")):
        data = path.read_bytes() if path.is_file() else b""
        found.append(zstandard.decompress(data) if data[:4] == zstandard.FRAME_HEADER else data)
    return found


def test_nothing_of_the_text_stays_in_the_data_folder(manager: Manager, tmp_path: Path) -> None:
    """Nor in the next backup: not its words, nor the keys of its n-grams."""
    create(manager, NEWS, WHOLE, alpha=100, options={"sample": True})
    tokenizer = load_root(folder(manager), with_lower=True).tokenizer
    trigrams = {
        tuple(e.ids[i : i + 3]) for e in tokenizer.encode(SECRET, 64) for i in range(1, len(e.ids) - 4)
    }
    keys = {key.astype("<u8").tobytes() for key in pack_keys(np.array(sorted(trigrams), np.uint32))}

    def traces(place: Path) -> set[bytes]:
        whole = b"\0".join(contents(place))
        return {one for one in (b"q z v", *keys) if one in whole}

    def backup(place: Path) -> Path:
        backing_up(manager.settings.data, manager.registry, manager.plots, open_target(str(place)))
        return place

    assert traces(backup(tmp_path / "before")) == traces(manager.settings.data) == {b"q z v", *keys}
    job = manager.erase_from_domain(NEWS, text="\n".join(SECRET).encode(), phrases=["q z v"])
    assert attempt(manager, job, erase_text.run) is not None
    for record in manager.jobs():
        manager.runner.settle(record.job)  # which tidies up after it
    assert traces(manager.settings.data) == traces(backup(tmp_path / "after")) == set()


@pytest.mark.parametrize("calls", [0, 1, 2, 3, 4, 6])
def test_an_erasure_that_was_stopped_is_done_by_the_next_attempt(manager: Manager, calls: int) -> None:
    create(manager, NEWS, WHOLE, alpha=100, options={"sample": True})
    job = manager.erase_from_domain(NEWS, text="\n".join(SECRET).encode(), keep="\n".join(KEPT).encode())
    attempt(manager, job, erase_text.run, calls)
    found = attempt(manager, job, erase_text.run)
    again = attempt(manager, job, erase_text.run)  # killed after it published
    assert found is not None
    assert again == found
    assert found["passages"] == len(SECRET)
    assert looked_up(manager, SECRET, NEWS)[1].max() < 3
    assert not in_samples(manager, "q z v b k x")
    assert len(manager.plots.history(NEWS)) == 2


def test_a_phrase_takes_all_ngrams_that_contain_it(manager: Manager) -> None:
    create(manager, NEWS, WHOLE, alpha=100, options={"sample": True})
    tokenizer = load_root(folder(manager), with_lower=True).tokenizer
    x, j = tokenizer.encode(["x j"], 64)[0].ids[1:-1]
    with manager.plots.reader(NEWS) as reader:
        before = {order: reader.ngrams(order) for order in (2, 3)}
    has = {k: ((n[:, :-1] == x) & (n[:, 1:] == j)).any(axis=1) for k, n in before.items()}
    counted = erase(manager, phrases=["X  j"], dry_run=True)
    assert counted["ngrams"] == {str(k): int(which.sum()) for k, which in has.items()}
    assert counted["passages"] == len(SECRET)
    with manager.plots.reader(NEWS) as reader:
        np.testing.assert_array_equal(reader.ngrams(3), before[3])
    assert in_samples(manager, "x j")
    found = erase(manager, phrases=["X  j"])
    assert {k: v for k, v in found.items() if k not in ("version", "dry_run")} == {
        k: v for k, v in counted.items() if k not in ("version", "dry_run")
    }
    with manager.plots.reader(NEWS) as reader:
        for order, ngrams in before.items():
            np.testing.assert_array_equal(reader.ngrams(order), ngrams[~has[order]])
    assert not in_samples(manager, "x j")


def test_a_phrase_leaves_versions_that_only_a_child_builds_on(manager: Manager) -> None:
    create(manager, NEWS, WHOLE, alpha=100)
    first = manager.plots.version(NEWS)
    create(manager, f"{NEWS}/uk", text(4, 20), alpha=50)
    with manager.plots.writer(NEWS, schema=first.schema, build="b") as writer:
        writer.add(2, np.array([[7, 9]], np.uint32), np.ones((1, 4, 32), np.float32))
        writer.publish(meta=first.meta)
    manager.plots.gc(keep_versions=1)
    assert first.id not in {version.id for version in manager.plots.history(NEWS)}
    assert (looked_up(manager, SECRET, f"{NEWS}/uk")[1] == 3).all()
    assert erase(manager, phrases=["q z v"])["versions"] == [first.id]
    assert (looked_up(manager, SECRET, f"{NEWS}/uk")[1] < 3).any()


def test_a_phrase_in_another_form_takes_its_passages(manager: Manager) -> None:
    composed, apart = "q z\u00eb v x j k w", "q z\u0065\u0308 v x j k w"
    assert unicodedata.normalize("NFC", apart) == composed
    create(manager, NEWS, "\n".join([*KEPT, composed]).encode(), alpha=100, options={"sample": True})
    assert in_samples(manager, composed)
    found = erase(manager, phrases=[apart])
    assert found["rows"] > 0
    assert found["passages"] == 1
    assert not in_samples(manager, composed)


def test_an_erasure_that_failed_leaves_nothing_in_use(manager: Manager) -> None:
    """The engine reads again what it may have changed, and its build keeps no other erasure away."""
    create(manager, NEWS, WHOLE, alpha=100, options={"sample": True})
    version, told = manager.plots.version(NEWS), list[DeletedParts]()
    manager.on_deleted = told.append
    job = manager.erase_from_domain(NEWS, phrases=["q z v"])
    with manager.plots.writer(NEWS, schema=version.schema, build=job.job, extend=True):
        pass
    manager.registry.update_job(job.job, lambda record: record.model_copy(update={"state": "failed"}))
    manager.runner.settle(job.job)
    manager.runner._tell_ended(job.job)
    assert [version.id in parts.plots for parts in told] == [True]
    assert erase(manager, phrases=["q z v"])["rows"] > 0


def test_a_phrase_longer_than_an_ngram_takes_its_own_trigrams(manager: Manager) -> None:
    create(manager, NEWS, WHOLE, alpha=100)
    found = erase(manager, phrases=["q z v b k"])
    assert found["ngrams"] == {"3": 3}
    assert (looked_up(manager, ["q z v b k"], NEWS)[1] < 3).sum() >= 3


def test_misses_are_forgotten(manager: Manager) -> None:
    create(manager, NEWS, text(2, 40), alpha=50)
    manager.misses.start()
    manager.set_domain(NEWS, record_misses=True)
    tokenizer = load_root(folder(manager), with_lower=True).tokenizer
    tokens, offsets = ragged([e.ids for e in tokenizer.encode(SECRET, 64)])
    with manager.plots.reader(NEWS) as reader:
        _, hits = reader.lookup(tokens, offsets)
        manager.misses.record(reader.version, tokens, offsets, hits)
    found = erase(manager, text="\n".join(SECRET).encode())
    assert found["misses"] == (hits.order < 3).sum() > 0
    manager.misses.flush()
    assert manager.misses.files.all(NEWS) is None
    assert manager.domain(NEWS).record_misses


def test_what_cannot_be_erased_is_refused(manager: Manager) -> None:
    create(manager, NEWS, WHOLE, alpha=50)
    with pytest.raises(InvalidInput, match="nothing to erase: give a text, or phrases"):
        manager.erase_from_domain(NEWS)
    with pytest.raises(InvalidInput, match="a phrase is blank"):
        manager.erase_from_domain(NEWS, phrases=["good", "\x1c"])
    with pytest.raises(InvalidInput, match="keep is of no use without a text"):
        manager.erase_from_domain(NEWS, keep=b"a text\n", phrases=["good"])
    with pytest.raises(InvalidInput, match="the text is empty"):
        manager.erase_from_domain(NEWS, text=b"")
    with pytest.raises(NotFound, match="there is no domain 'tiny/other'"):
        manager.erase_from_domain("tiny/other", phrases=["good"])
    job = manager.erase_from_domain(NEWS, phrases=["good"])
    with pytest.raises(Conflict, match=job.job):
        manager.update_domain(NEWS, text(3, 10))
    assert "good" not in json.dumps(job.spec)


def test_a_server_answers_without_what_was_erased(
    tiny_source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = made_folder(tmp_path, tiny_source, capsys)

    async def scenario() -> None:
        async with running(data, job_workers=1) as world:
            spec = {"domain": "tiny/a", "alpha": 100, "options": {"sample": True}}
            status, made, _ = await world.upload("/manage/domains", spec, {"corpus": WHOLE})
            assert status == 202, made
            assert (await world.finish(made["job"]))["state"] == "succeeded"
            model = {"model": "acme.n", "domain": "tiny/a", "task": "classification"}
            few = {"epochs": 1, "module": {"rank": 2}, "max_length": 32, "ramps": False}
            status, made, _ = await world.upload(
                "/manage/models", {**model, "options": few}, {"data": rows()}
            )
            assert status == 202, made
            assert (await world.finish(made["job"]))["state"] == "succeeded"

            async def orders() -> set[str]:
                asked = {"inputs": [SECRET[0]], "parameters": {"return": ["words"]}}
                status, answer, _ = await world.call("POST", "/infer/acme.n", asked)
                assert status == 200, answer
                return {word["order"] for word in answer["outputs"][0]["words"]}

            assert await orders() == {"trigram"}
            spec = {"phrases": ["z v b"]}
            files = {"text": "\n".join(SECRET).encode(), "keep": "\n".join(KEPT).encode()}
            status, made, _ = await world.upload("/manage/domains/tiny.a/erase", spec, files)
            assert status == 202, made
            ended = await world.finish(made["job"])
            assert ended["state"] == "succeeded", ended
            for _ in range(100):  # the runner's thread sees the end of the process a moment later
                if "trigram" not in (found := await orders()):
                    break
                await asyncio.sleep(0.05)
            assert "trigram" not in found

    asyncio.run(scenario())
    out = hmi(capsys, "domain", "erase", "tiny/a", "--phrase", "q z v", "--yes", "--data", data)
    assert "done: erase tiny/a" in out
    assert "n-grams: 0, in 0 versions of no domain" in out


def test_a_phrase_of_unknown_characters_erases_no_other_unknown_words(manager: Manager) -> None:
    create(manager, NEWS, "\n".join([*KEPT, "the \u4e2d\u6587 film rises"]).encode(), alpha=100)
    job = manager.erase_from_domain(NEWS, phrases=["\U0001f600"])
    with pytest.raises(InvalidInput, match="knows no character of a phrase"):
        attempt(manager, job, erase_text.run)
    assert (looked_up(manager, ["the \u4e2d\u6587 film rises"], NEWS)[1] == 3).all()
