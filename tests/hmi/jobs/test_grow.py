"""Growth driven by misses, end to end: texts miss, the domain grows, the same texts hit."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from hmi.config import Settings
from hmi.errors import Conflict, InvalidInput, NotFound
from hmi.jobs.plot.ngrams import ragged
from hmi.manager import Manager
from hmi.model.sources.root import Root, load_root
from hmi.stores.plot.miss_files import MissFiles
from plot_store import Hits
from tests.hmi.labs.api_world import World, hmi, running
from tests.hmi.labs.build_lab import run, text
from tests.hmi.labs.server_lab import ready, serving

NEWS = "tiny/news"
OFTEN, RARELY = "q z v k x", "j w y f"  # single letters: tokens that occur in no corpus


@pytest.fixture(scope="module")
def made(tiny_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with the root tiny and its branch news."""
    folder = tmp_path_factory.mktemp("grow") / "data"
    manager = Manager(Settings(data=folder, job_workers=0))
    few = {"steps": 2, "upper_steps": 1}
    run(
        manager,
        manager.import_root("tiny", str(tiny_source), texts={"text-0": text(1, 280)}, alpha=5, options=few),
    )
    run(manager, manager.create_domain(NEWS, text(2, 40), alpha=60))
    manager.close()
    return folder


@pytest.fixture
def manager(made: Path, tmp_path: Path) -> Iterator[Manager]:
    opened = Manager(Settings(data=shutil.copytree(made, tmp_path / "data"), job_workers=0))
    opened.misses.start()
    yield opened
    opened.close()


def root_of(manager: Manager) -> Root:
    return load_root(
        manager.settings.data / "roots" / "tiny" / manager.registry.root("tiny").version, with_lower=True
    )


def look(manager: Manager, texts: list[str], version: str = NEWS) -> Hits:
    """Look texts up as the engine does, recording misses."""
    encoded = root_of(manager).tokenizer.encode([*texts], 64)
    tokens, offsets = ragged([e.ids for e in encoded])
    with manager.plots.reader(version) as reader:
        _, hits = reader.lookup(tokens, offsets)
        manager.misses.record(reader.version, tokens, offsets, hits)
    return hits


def test_what_was_missed_often_hits_after_growing(manager: Manager) -> None:
    before = manager.plots.version(NEWS)
    assert manager.set_domain(NEWS, record_misses=True).record_misses
    for _ in range(6):
        assert (look(manager, [OFTEN]).order < 3).all()
    for _ in range(4):
        look(manager, [RARELY])
    result = run(manager, manager.grow_domain(NEWS))
    grown = manager.plots.version(NEWS)
    assert (result["version"], grown.previous, grown.parent) == (grown.id, before.id, before.parent)
    assert result["stored_trigrams"] == grown.entries[3] - before.entries[3] > 0
    assert grown.meta["alpha"] == before.meta["alpha"]
    assert (look(manager, [OFTEN]).order == 3).all()
    assert (look(manager, [RARELY]).order < 3).all(), "four times is less than min_count"
    assert (look(manager, [OFTEN], before.id).order < 3).all(), "who stays on the old version sees no change"
    rows_are_those_of_the_lower_layers(manager)


def rows_are_those_of_the_lower_layers(manager: Manager) -> None:
    root = root_of(manager)
    ids = root.tokenizer.encode([OFTEN], 64)[0].ids
    windows = np.array([[a, b, c] for a, b, c in zip([0, *ids], ids, [*ids[1:], 0], strict=False)], np.uint32)
    assert root.lower is not None
    with manager.plots.reader(NEWS) as reader, torch.inference_mode():
        stored, depth = reader.get(3, windows)
        computed = root.lower.entries(torch.from_numpy(windows.astype(np.int64))).numpy()
    assert (depth == 0).all()
    scale = np.abs(computed).max(-1, keepdims=True) / 127
    assert (np.abs(stored - computed) <= scale * 0.51 + 1e-5).all()


def test_growing_uses_up_what_was_recorded(manager: Manager) -> None:
    manager.set_domain(NEWS, record_misses=True)
    look(manager, [OFTEN] * 5)
    job = manager.grow_domain(NEWS)
    look(manager, ["v x z q"] * 5)
    run(manager, job)
    manager.misses.flush()
    assert manager.misses.files.all(NEWS) is None
    with pytest.raises(Conflict, match=r"no n-gram was missed 5 times or more in tiny/news \(0 misses"):
        manager.grow_domain(NEWS)
    look(manager, [RARELY] * 5)
    # A job that was killed after its publication neither publishes again nor forgets misses recorded since.
    assert run(manager, job)["version"] == manager.plots.version(NEWS).id
    manager.misses.flush()
    assert manager.misses.files.all(NEWS) is not None
    run(manager, manager.grow_domain(NEWS))
    assert len(manager.plots.history(NEWS)) == 3


def test_growing_is_refused_with_a_reason(manager: Manager) -> None:
    with pytest.raises(Conflict, match="not recorded: switch record_misses on"):
        manager.grow_domain(NEWS)
    manager.set_domain(NEWS, record_misses=True)
    look(manager, [OFTEN])
    with pytest.raises(Conflict, match=r"no n-gram was missed 5 times or more .* wait for more texts"):
        manager.grow_domain(NEWS)
    with pytest.raises(InvalidInput, match="1 or more"):
        manager.grow_domain(NEWS, min_count=0)
    for call in (manager.grow_domain, manager.set_domain):
        with pytest.raises(NotFound):
            call("tiny/none")
    job = manager.grow_domain(NEWS, min_count=1)
    with pytest.raises(Conflict, match="queued to make tiny/news"):
        manager.update_domain(NEWS, text(9, 40))
    pinned = manager.plots.version(NEWS).id
    (manager.settings.data / "jobs" / job.job / "plan.json").write_text(json.dumps({"parent": pinned}))
    manager.registry.update_job(job.job, lambda r: r.model_copy(update={"state": "failed"}))
    run(manager, manager.update_domain(NEWS, text(9, 40)))
    with pytest.raises(Conflict, match="has moved from version"):
        run(manager, job)
    assert manager.misses.files.all(NEWS) is not None, "a growth that failed uses up nothing"


def test_what_is_stored_by_now_is_not_stored_again(manager: Manager) -> None:
    manager.set_domain(NEWS, record_misses=True)
    look(manager, [OFTEN] * 5)
    run(manager, manager.update_domain(NEWS, f"{OFTEN}\n{OFTEN}\n".encode(), alpha=100))
    current = manager.plots.version(NEWS).id
    with pytest.raises(Conflict, match="nothing to grow by"):
        run(manager, manager.grow_domain(NEWS))
    assert manager.plots.version(NEWS).id == current


def test_misses_go_with_the_switch_and_with_the_domain(manager: Manager) -> None:
    folder = manager.settings.data / "misses"
    manager.set_domain(NEWS, record_misses=True)
    look(manager, [OFTEN] * 5)
    manager.misses.flush()
    assert len(list(folder.glob("tiny.news/*.safetensors"))) == 1
    assert manager.stats()["bytes"]["misses"] > 100
    manager.collect_garbage()
    assert len(list(folder.glob("tiny.news/*.safetensors"))) == 1
    assert not manager.set_domain(NEWS, record_misses=False).record_misses
    assert [p.name for p in folder.iterdir()] == [".lock"]
    manager.set_domain(NEWS, record_misses=True)
    look(manager, [OFTEN])
    manager.misses.flush()
    manager.delete_domain(NEWS)
    manager.misses.flush()
    assert [p.name for p in folder.iterdir()] == [".lock"]
    assert not manager.misses.on


async def infer(world: World, times: int) -> dict[str, int]:
    sent = {"inputs": [OFTEN] * times, "parameters": {"return": ["provenance"]}}
    status, answer, _ = await world.call("POST", "/infer/acme.m", sent)
    assert status == 200
    return dict(answer["provenance"]["plot"])


async def test_over_http_and_a_restart(folder: Path) -> None:
    async with running(folder) as world:
        _, shown, _ = await world.call("GET", "/manage/domains/tiny")
        assert shown["record_misses"] is False
        await infer(world, 5)
        status, body, _ = await world.call("POST", "/manage/domains/tiny/grow", {})
        assert (status, body["error"]["kind"]) == (409, "conflict")
        status, shown, _ = await world.call("PATCH", "/manage/domains/tiny", {"record_misses": True})
        assert (status, shown["record_misses"]) == (200, True)
        status, body, _ = await world.call("PATCH", "/manage/domains/tiny", {"record_misses": 1})
        assert (status, body["error"]["kind"]) == (422, "invalid_input")
        status, body, _ = await world.call("PATCH", "/manage/domains/tiny", {})
        assert status == 422
        assert "changes nothing: give one or more of record_misses" in body["error"]["message"]
        assert (await infer(world, 3)).get("trigram", 0) == 0
    async with running(folder) as world:
        await infer(world, 2)
        exact = {"inputs": [RARELY] * 9, "parameters": {"exact": True}}
        assert (await world.call("POST", "/infer/acme.m", exact))[0] == 200
        status, body, _ = await world.call("POST", "/manage/domains/tiny/grow", {"min_count": 5})
        assert status == 202
        ended = await world.finish(body["job"])
        assert (ended["state"], ended["error"]) == ("succeeded", None)
        assert ended["result"]["stored_trigrams"] == ended["result"]["counted_trigrams"] // 5
        _, shown, _ = await world.call("GET", "/manage/domains/tiny")
        assert (len(shown["versions"]), shown["current"]) == (2, ended["result"]["version"])
        reader = world.services.manager.plots.reader(shown["current"])
        encoded = load_root(next((folder / "roots" / "tiny").iterdir())).tokenizer.encode([OFTEN, RARELY], 64)
        with reader:
            for ids, full in zip((e.ids for e in encoded), (True, False), strict=True):
                hits = reader.lookup(*ragged([ids]))[1]
                assert (hits.order == 3).all() == full, (
                    "what was computed in full was not looked up, so not recorded"
                )


def test_a_server_that_is_stopped_keeps_what_it_recorded(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """SIGTERM comes long before the misses would be written next."""
    files = MissFiles(folder / "misses")
    with serving(folder) as (url, server):
        ready(url)
        hmi(capsys, "domain", "set", "tiny", "--record-misses", "on", "--url", url)
        for _ in range(3):
            hmi(capsys, "infer", "acme.m", OFTEN, "--url", url)
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
    sketch = files.all("tiny")
    assert sketch is not None
    assert sketch.top(min_count=3)[1].tolist().count(3) >= len(OFTEN.split()), (
        "each trigram of three equal texts"
    )


async def test_a_tenant_may_not_switch_or_grow(folder: Path) -> None:
    async with running(folder) as world:
        _, made, _ = await world.call("POST", "/manage/tenants/acme/keys", {})
        for method, path, body in (
            ("PATCH", "/manage/domains/tiny", {"record_misses": True}),
            ("POST", "/manage/domains/tiny/grow", {}),
        ):
            status, answer, _ = await world.call(method, path, body, key=made["key"])
            assert (status, answer["error"]["kind"]) == (403, "forbidden")


async def test_from_the_command_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def call(*arguments: object, code: int = 0) -> str:
        return hmi(capsys, *arguments, "--data", folder, code=code)

    def all_of_it() -> None:
        assert "switch record_misses on" in call("domain", "grow", "tiny", code=1)
        call("domain", "set", "tiny", "--record-misses", "on")
        assert "record_misses" in call("domain", "show", "tiny")
        for _ in range(2):
            call("infer", "acme.m", OFTEN)
        told = json.loads(call("domain", "grow", "tiny", "--min-count", "2", "--json"))
        assert (told["state"], told["target"]) == ("succeeded", "tiny")
        call("domain", "set", "tiny", "--record-misses", "off")
        assert not (folder / "misses" / "tiny").exists()

    await asyncio.to_thread(all_of_it)
