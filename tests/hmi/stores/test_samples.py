"""Samples of corpora: their store, the builds that keep them, and what deletes them."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard

from hmi.core import JobRecord
from hmi.errors import Damaged
from hmi.jobs.plot.samples import draw_texts
from hmi.jobs.runtime.context import JobContext
from hmi.manager import Manager
from hmi.stores.plot.plot_meta import PlotMeta
from hmi.stores.tensors.samples import MAX_BYTES, MAX_FILE_BYTES, MAX_PASSAGES, Samples
from hmi.training.data.passages import sample_corpus
from hmi.training.data.rows import Row
from plot_store import VersionInfo
from tests.hmi.labs.build_lab import attempt, create, text, tiny_manager

PASSAGES = ['A "quoted" text.', "Zürich – 東京\t\u2028", "\x7f"]


@pytest.fixture
def store(tmp_path: Path) -> Samples:
    return Samples(tmp_path / "samples")


@pytest.fixture(scope="module")
def manager(tiny_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    yield from tiny_manager(tiny_source, tmp_path_factory.mktemp("samples") / "data")


def kept(manager: Manager, domain: str) -> list[str]:
    return Samples(manager.settings.data / "samples").get(PlotMeta.of(manager.plots.version(domain)).sample)


def lines_of(corpus: bytes) -> list[str]:
    return corpus.decode().splitlines()


def test_a_sample_is_read_back(store: Samples) -> None:
    name = store.put(PASSAGES)
    assert store.get(name) == PASSAGES
    assert store.put(PASSAGES) == name
    assert store.bytes() == store.size_of(name) > 0
    assert store.get(None) == store.get("0" * 64) == []
    store.remove([name, "0" * 64])
    assert store.get(name) == []
    assert store.size_of(name) == 0


def test_a_sample_of_the_greatest_size_is_read_back(store: Samples) -> None:
    rng = random.Random(0)
    passages = [f"{rng.randbytes(190).hex()}\x01"[: MAX_BYTES // MAX_PASSAGES] for _ in range(MAX_PASSAGES)]
    assert store.get(store.put(passages)) == passages
    assert store.bytes() < MAX_FILE_BYTES


@pytest.mark.parametrize(
    "content",
    [
        b"no frame",
        zstandard.compress(b'"one"\n["two"]\n'),
        zstandard.compress(b"["),
        zstandard.compress(b"[" * 100_000),
        zstandard.compress(b"\n".join([b'"x"'] * (MAX_PASSAGES + 1))),
        zstandard.compress(b'"%s"' % (b"x" * (MAX_BYTES + 1))),
        zstandard.compress(b" " * (MAX_FILE_BYTES + 1)),
    ],
)
def test_what_is_no_sample_is_damage(store: Samples, content: bytes) -> None:
    name = hashlib.sha256(content).hexdigest()
    store.take_over(name, content)
    with pytest.raises(Damaged, match="cannot be read: update the domain with its corpus"):
        store.get(name)


def test_a_flipped_bit_is_found_and_a_name_is_no_path(store: Samples, tmp_path: Path) -> None:
    path = store.path(store.put(PASSAGES))
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 4
    path.write_bytes(raw)
    with pytest.raises(Damaged, match="fails its checksum"):
        store.get(path.name.removesuffix(Samples.suffix))
    (tmp_path / f"x{Samples.suffix}").write_bytes(b"")
    with pytest.raises(Damaged, match="is not the name of an artefact"):
        store.get("../x")


def test_a_killed_writer_leaves_no_half_sample(store: Samples, tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from hmi.stores.tensors.samples import Samples\n"
        "store = Samples(Path(sys.argv[1]))\n"
        "for i in range(10**9): print(store.put([f'{i} {j} a passage' for j in range(2_000)]), flush=True)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, tmp_path / "samples"], stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        told = [child.stdout.readline().decode().strip() for _ in range(5)]
        os.kill(child.pid, signal.SIGKILL)
    for name in told:
        assert len(store.get(name)) == 2_000
    assert all(len(store.get(name)) == 2_000 for name in store.names())


def test_a_build_keeps_a_sample_and_an_update_adds_to_it(manager: Manager) -> None:
    first, second = text(3, 80), text(4, 80)
    result, version = create(manager, "tiny/own", first, alpha=60)
    assert kept(manager, "tiny/own") == sample_corpus(lines_of(first))
    report = PlotMeta.of(version).report
    assert result["sample_passages"] == report["sample_passages"] == len(kept(manager, "tiny/own"))
    assert report["sample_bytes"] == manager.stats()["bytes"]["samples"] > 0
    assert attempt(manager, manager.update_domain("tiny/own", second, alpha=60)) is not None
    assert kept(manager, "tiny/own") == sample_corpus([*lines_of(first), *lines_of(second)])
    # No text of the sample is in what callers are shown.
    shown = json.dumps([vars(v) for v in manager.domain("tiny/own").versions], default=str)
    assert not any(passage in shown for passage in kept(manager, "tiny/own"))
    assert manager.verify_files() == ()


def test_a_switch_keeps_no_sample(manager: Manager) -> None:
    result, version = create(manager, "tiny/none", text(5), alpha=60, options={"sample": False})
    assert PlotMeta.of(version).sample is None
    assert "sample_passages" not in result
    off = replace(manager.settings, corpus_samples=False)
    for option, names in ((None, False), (True, True)):
        name = f"tiny/off-{names}".lower()
        job = manager.create_domain(name, text(5), alpha=60, options={"sample": option})
        assert built(job, manager, off) is not None
        assert (PlotMeta.of(manager.plots.version(name)).sample is not None) == names


def built(job: JobRecord, manager: Manager, settings: object) -> object:
    before = manager.settings
    manager.settings = settings  # type: ignore[assignment]
    try:
        return attempt(manager, job)
    finally:
        manager.settings = before


def test_an_interrupted_build_has_the_same_sample(manager: Manager) -> None:
    corpus = text(6, 600)
    job = manager.create_domain("tiny/cut", corpus, alpha=60)
    for calls in range(1, 40, 3):
        if attempt(manager, job, calls=calls) is not None:
            break
    assert attempt(manager, job) is not None
    assert kept(manager, "tiny/cut") == sample_corpus(lines_of(corpus))


def test_a_sample_is_deleted_with_its_domain(manager: Manager) -> None:
    corpus = text(7)
    create(manager, "tiny/a", corpus, alpha=60)
    create(manager, "tiny/b", corpus, alpha=60)  # the same content, so the same file
    sample = PlotMeta.of(manager.plots.version("tiny/a")).sample
    manager.delete_domain("tiny/a")
    assert kept(manager, "tiny/b")
    manager.delete_domain("tiny/b")
    assert sample not in manager.samples.names()


def test_collection_removes_what_no_version_names(manager: Manager) -> None:
    create(manager, "tiny/c", text(8), alpha=60)
    lost = manager.samples.put(["A passage of nobody."])
    long_ago = 1_000_000_000
    for name in manager.samples.names():
        os.utime(manager.samples.path(name), (long_ago, long_ago))
    manager.collect_garbage()
    assert lost not in manager.samples.names()
    assert kept(manager, "tiny/c")


def draw(manager: Manager, version: VersionInfo, rows: list[Row], most: int) -> list[str]:
    ctx = JobContext(manager.registry.jobs()[0], manager.settings, manager.registry)
    try:
        return [str(row.text) for row in draw_texts(ctx, version, rows, rows[:1], most, 0)]
    finally:
        ctx.close()


def test_a_child_draws_its_own_texts_first_and_then_its_parents(manager: Manager) -> None:
    def sentences(start: int) -> list[str]:
        return [f"A heron of the number {i} sits here." for i in range(start, start + 20)]

    create(manager, "tiny/birds", "\n".join(sentences(100)).encode(), alpha=60)
    _, child = create(manager, "tiny/birds/marsh", "\n".join(sentences(200)).encode(), alpha=60)
    rows = [Row("A heron of the number 5 sits there.", "a")]
    assert set(draw(manager, child, rows, 20)) == set(sentences(200))
    drawn = draw(manager, child, rows, 30)
    assert set(drawn[:20]) == set(sentences(200))
    assert set(drawn[20:]) < set(sentences(100))
    # Damage and loss leave fewer texts; nothing fails.
    sample = PlotMeta.of(child).sample
    assert sample is not None
    manager.samples.path(sample).write_bytes(b"damaged")
    assert set(draw(manager, child, rows, 30)) == set(sentences(100))
    assert "fails its checksum" in " ".join(manager.verify_files())
    manager.samples.remove([sample])
    assert manager.verify_files() == ()
