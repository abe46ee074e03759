"""What must hold on the whole path of a request, with a real store, real jobs and the real engine."""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from hmi.config import Settings
from hmi.core import ModelId
from hmi.engine import TextRequest, TextResult
from hmi.errors import Damaged, DeadlineExceeded, InvalidInput, NotFound, QuotaExceeded
from hmi.manager import Manager
from hmi.model.text.tokenizer import Text
from plot_store import VersionInfo
from tests.e2e.conftest import Home, mood_rows

MOOD, PAIRS = ModelId("acme", "mood"), ModelId("acme", "pairs")
TAGS, OTHER = ModelId("globex", "tags"), ModelId("globex", "mood")


async def ask(home: Home, requests: list[TextRequest]) -> list[TextResult]:
    engine = home.engine()
    await engine.start()
    try:
        return await engine.infer(requests)
    finally:
        await engine.stop()


def figures(result: TextResult) -> list[float]:
    """The numbers of an answer, for comparison."""
    if result.tag_scores is not None:
        return result.tag_scores
    assert result.scores is not None
    return list(result.scores.values())


def mixed_requests(home: Home) -> list[TextRequest]:
    inputs: list[tuple[ModelId, Text]] = []
    for text in home.covered:
        inputs += [(MOOD, text), (OTHER, text), (PAIRS, (text, text[::2])), (TAGS, text.split())]
    random.Random(3).shuffle(inputs)
    return [TextRequest(model, text, scores=True, provenance=True) for model, text in inputs]


async def test_alone_equals_batched(home: Home) -> None:
    requests = mixed_requests(home)
    engine = home.engine()
    await engine.start()
    together = await engine.infer(requests)
    for request, batched in zip(requests, together, strict=True):
        (alone,) = await engine.infer([request])
        assert (alone.label, alone.tags) == (batched.label, batched.tags)
        assert figures(alone) == pytest.approx(figures(batched), abs=1e-5)
    await engine.stop()


async def test_fully_covered_text_needs_no_lower_layers(home: Home, tmp_path: Path) -> None:
    """With all lower weights of the root scrambled no answer changes, so no lower layer is computed."""
    requests = [r for r in mixed_requests(home) if r.model in (MOOD, TAGS)]
    before = await ask(home, requests)
    for result in before:
        assert result.provenance is not None
        hits = result.provenance.plot
        assert hits["trigram"] > 0
        assert hits["bigram"] == hits["unigram"] == hits["miss"] == 0
    (path,) = (home.settings.data / "roots" / "tiny").glob("*/lower.safetensors")
    kept = tmp_path / "kept"
    shutil.copyfile(path, kept)
    try:
        save_file({k: torch.randn_like(v) for k, v in load_file(kept).items()}, path)
        after = await ask(home, requests)
    finally:
        shutil.copyfile(kept, path)
    # Batches are cut by time: texts of the same call may run in other batches, whose sums differ in the
    # last bits.
    for a, b in zip(after, before, strict=True):
        assert figures(a) == pytest.approx(figures(b), abs=1e-5)


async def test_retrieved_equals_computed_to_the_storage_types_precision(home: Home) -> None:
    texts = home.covered
    stored = await ask(home, [TextRequest(MOOD, t, scores=True) for t in texts])
    exact = await ask(home, [TextRequest(MOOD, t, scores=True, exact=True, provenance=True) for t in texts])
    for a, b in zip(stored, exact, strict=True):
        assert b.provenance is not None
        assert list(b.provenance.plot) == ["computed"]
        # int8 rows: an error of 1/127 of a vector's largest value, through two upper layers and a softmax
        assert figures(a) == pytest.approx(figures(b), abs=0.03)
    spread = max(figures(r)[0] for r in exact) - min(figures(r)[0] for r in exact)
    assert spread > 0.1, "the answers do not differ enough for the comparison to mean anything"


async def test_half_covered_text_backs_off(home: Home) -> None:
    results = await ask(home, [TextRequest(OTHER, t, provenance=True) for t in home.covered])
    hits = [r.provenance.plot for r in results if r.provenance]
    trigrams = sum(h["trigram"] for h in hits)
    bigrams = sum(h["bigram"] for h in hits)
    assert 0 < bigrams < trigrams + bigrams
    assert sum(h["miss"] for h in hits) == 0, "the root holds a unigram of every token"


def test_alpha_zero_is_the_parent_alone_and_hits_grow_with_alpha(home: Home) -> None:
    manager = home.manager
    corpus = "\n".join(home.covered * 3).encode()
    stored = {}
    for alpha in (0, 30, 100):
        job = home.run(manager.create_domain(f"tiny/alpha-{alpha}", corpus, alpha=alpha))
        assert job.result is not None
        stored[alpha] = job.result["stored_trigrams"]
        manager.delete_domain(f"tiny/alpha-{alpha}")
    assert stored[0] == 0
    assert 0 < stored[30] < stored[100]


async def test_deleting_a_tenant_leaves_the_other_bit_identical(home: Home) -> None:
    manager = home.manager
    manager.create_tenant("passing")
    home.run(
        manager.create_model(
            "passing.mood",
            domain="tiny/full",
            task="classification",
            data=mood_rows(11),
            options={"epochs": 1},
        )
    )
    requests = [r for r in mixed_requests(home) if r.model == MOOD][:8]
    extra = [TextRequest(ModelId("passing", "mood"), t) for t in home.covered[:8]]
    before = await ask(home, requests)
    together = await ask(home, [*requests, *extra])
    assert [r.label for r in together[:8]] == [r.label for r in before]
    manager.delete_tenant("passing")
    after = await ask(home, requests)
    # Batches are cut by time: the same call may run in others, whose sums differ in their last bits.
    for a, b in zip(after, before, strict=True):
        assert figures(a) == pytest.approx(figures(b), abs=1e-5)
    with pytest.raises(NotFound):
        await ask(home, extra)


async def test_a_rollback_brings_back_the_old_answers(home: Home) -> None:
    manager = home.manager
    requests = [TextRequest(OTHER, t, scores=True) for t in home.covered[:5]]
    before = await ask(home, requests)
    home.run(
        manager.update_model(
            "globex.mood", data=mood_rows(21), options={"epochs": 2, "lr": 0.05}, publish="always"
        )
    )
    changed = await ask(home, requests)
    assert [r.version for r in changed] == [2] * 5
    assert [figures(r) for r in changed] != [figures(r) for r in before]
    manager.rollback_model("globex.mood", 1)
    for a, b in zip(await ask(home, requests), before, strict=True):
        assert figures(a) == pytest.approx(figures(b), abs=1e-5)


@pytest.mark.parametrize(
    ("model", "text", "message"),
    [
        (MOOD, ["a", "b"], "is a classification model: give a text"),
        (MOOD, ("a", "b"), "is a classification model"),
        (PAIRS, "a", "is a pair model"),
        (TAGS, ("a", "b"), "is a tagging model"),
    ],
)
async def test_bad_inputs_name_the_field(home: Home, model: ModelId, text: Text, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        await ask(home, [TextRequest(model, text)])


async def test_words_without_pieces_and_cut_words_get_a_tag(home: Home) -> None:
    words = ["cell", "\u200b", "gene", *["the"] * 700]
    (result,) = await ask(home, [TextRequest(TAGS, words)])
    assert result.truncated
    assert result.tags is not None
    assert len(result.tags) == len(words)
    assert result.tag_scores is not None
    assert result.tag_scores[1] == 0.0
    assert result.tag_scores[-1] == 0.0


async def test_a_passed_deadline_and_a_full_queue_are_refused(home: Home) -> None:
    with pytest.raises(DeadlineExceeded):
        await ask(home, [TextRequest(MOOD, "the cell", deadline=time.monotonic() - 1)])
    tight = Home(home.manager, Settings(data=home.settings.data, queue_tokens=16), home.covered)
    engine = tight.engine()
    await engine.start()
    calls = [engine.infer([TextRequest(MOOD, t) for t in home.covered]) for _ in range(8)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    await engine.stop()
    assert any(isinstance(r, QuotaExceeded) for r in results)
    assert any(isinstance(r, list) for r in results), "some must still be answered"


async def test_a_cancelled_call_is_dropped_and_others_go_on(home: Home) -> None:
    engine = home.engine()
    await engine.start()
    gone = asyncio.create_task(engine.infer([TextRequest(MOOD, t) for t in home.covered]))
    stays = asyncio.create_task(engine.infer([TextRequest(TAGS, home.covered[0].split())]))
    await asyncio.sleep(0)
    gone.cancel()
    (result,) = await stays
    assert result.tags
    with pytest.raises(asyncio.CancelledError):
        await gone
    await engine.stop()


def test_further_pretraining_gives_a_branch_its_own_lower_layers(home: Home, tmp_path: Path) -> None:
    manager: Manager = home.manager
    corpus = "\n".join(home.covered).encode()
    job = home.run(
        manager.create_domain("tiny/own", corpus, alpha=100, pretrain=True, options={"pretrain_steps": 12})
    )
    assert job.result is not None
    assert job.result["pretrained"]
    version = manager.plots.version("tiny/own")
    assert manager.lowers.get(version.meta["lower"])
    trigram = home.settings and manager.plots.reader("tiny/own")
    assert trigram.version.parent == manager.plots.version("tiny").id
    trigram.close()
    _travels(manager, version, tmp_path)
    manager.delete_domain("tiny/own")


def _travels_by_a_remote(manager: Manager, version: VersionInfo, place: str) -> None:
    """A push holds them, too, also if the version was pushed without them before."""
    lower, file = version.meta["lower"], manager.lowers.path(version.meta["lower"])

    def pulled(again: bool = False) -> tuple[tuple[str, ...], list[str]]:
        done, lacking = manager.pull_domain("tiny/own", place, lambda *_: None, again=again)
        assert done.version == version
        return done.attachments, lacking

    manager.plots.push("tiny/own", place)
    manager.delete_domain("tiny/own")
    file.unlink()
    assert pulled() == ((), ["tiny/own"])
    with pytest.raises(Damaged, match="lower layers"):
        manager.push_domain("tiny/own", place, lambda *_: None)
    manager.import_domain(Path(place).parent / "own.plot", None, lambda *_: None)
    assert manager.push_domain("tiny/own", place, lambda *_: None).attachments == (lower,)
    assert pulled() == ((), [])
    file.write_bytes(b"damaged")
    assert pulled(again=True) == ((lower,), [])
    manager.delete_domain("tiny/own")
    file.unlink()
    assert pulled() == ((lower,), [])
    assert manager.verify_files() == ()


def _travels(manager: Manager, version: VersionInfo, tmp_path: Path) -> None:
    """An export holds the branch's lower layers. One of an earlier release does
    not, and the import says so."""
    lower = version.meta["lower"]
    file = manager.lowers.path(lower)
    content = file.read_bytes()
    manager.export_domain("tiny/own", tmp_path / "own.plot", lambda done, total: None)
    manager.plots.export("tiny/own", tmp_path / "before.plot")
    for archive, lacking in (("before.plot", ["tiny/own"]), ("own.plot", [])):
        manager.delete_domain("tiny/own")
        file.unlink(missing_ok=True)
        assert manager.import_domain(tmp_path / archive, None, lambda done, total: None) == (version, lacking)
        assert bool(manager.verify()) == bool(lacking)
    assert file.read_bytes() == content
    _travels_by_a_remote(manager, version, str(tmp_path / "remote"))
    assert file.read_bytes() == content
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    (problem,) = manager.verify_files()
    assert (
        "domain tiny/own's lower layers fails its checksum: restore <data>/lowers from a copy, or import"
        in problem
    )
    with pytest.raises(Damaged):
        manager.export_domain("tiny/own", tmp_path / "never.plot", lambda done, total: None)
    manager.import_domain(tmp_path / "own.plot", None, lambda done, total: None)
    assert manager.verify_files() == ()
