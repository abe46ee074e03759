"""A damaged root is repaired by importing its source again, and only by that: the answers are as before."""

from __future__ import annotations

import json
import mmap
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from hmi.cli.framework import endings
from hmi.core import JobRecord
from hmi.errors import Conflict, Damaged
from hmi.jobs.root import repair_root
from hmi.jobs.runtime.context import JobContext, JobStopped
from hmi.model.sources.root import read_root_info
from hmi.model.sources.source import find_source
from tests.e2e.conftest import ROOT_OPTIONS, ROOT_TEXT, Home
from tests.e2e.lasting.test_damage import MOOD, another_word, every_byte, infer, root_folder
from tests.tiny import write_tiny_source


@pytest.fixture
def folder(home: Home, tmp_path: Path) -> Iterator[Path]:
    """The root's folder, restored if a test has left it damaged."""
    path = root_folder(home)
    kept = shutil.copytree(path, tmp_path / "kept")
    yield path
    if home.manager.verify_files():
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(kept, path)


def again(home: Home, source: Path, *, text: bool = True, **options: int) -> JobRecord:
    texts = {"text-0.txt": ROOT_TEXT} if text else {}
    job = home.manager.import_root("tiny", str(source), texts=texts, options={**ROOT_OPTIONS, **options})
    return home.manager.runner.run_one(job.job)


def damage(folder: Path) -> None:
    upper, tokenizer = folder / "upper.safetensors", folder / "tokenizer.json"
    upper.write_bytes(every_byte(upper.read_bytes(), 503))
    tokenizer.write_bytes(another_word(tokenizer.read_bytes()))


def only_version(home: Home, folder: Path) -> bool:
    """Whether the root has one version only, and its own PLOT is still there."""
    return [path.name for path in folder.parent.iterdir()] == [
        folder.name
    ] and "tiny" in home.manager.plots.refs()


def test_an_import_of_the_same_source_repairs_a_damaged_root(
    home: Home, tiny_source: Path, folder: Path
) -> None:
    before = [score(home), score(home)]
    assert before[0] == before[1]
    info = (folder / "root.json").read_bytes()
    damage(folder)
    held = (folder / "upper.safetensors").open("rb")
    with held, mmap.mmap(held.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        bad = mapped[:]
        with pytest.raises(Damaged, match=r"import the root again .*'hmi root import'"):
            score(home)
        done = again(home, tiny_source)
        assert done.state == "succeeded", done.error
        assert mapped[:] == bad, "who has mapped the old file keeps it"
    assert done.result is not None
    assert done.result["repaired"] == ["tokenizer.json", "upper.safetensors"]
    assert done.result["version"] == folder.name
    told = endings.lines({"kind": done.kind, "target": "tiny", "job": done.job, "result": done.result})
    assert "  repaired: tokenizer.json, upper.safetensors" in told
    assert home.manager.verify_files() == ()
    assert score(home) == before[0]
    assert (folder / "root.json").read_bytes() == info
    assert only_version(home, folder)


def test_a_root_whose_folder_is_gone_is_made_again(home: Home, tiny_source: Path, folder: Path) -> None:
    before, info = score(home), read_root_info(folder)
    shutil.rmtree(folder)
    assert any(
        "root tiny has lost its files: import the root again" in told for told in home.manager.verify()
    )
    done = again(home, tiny_source)
    assert done.state == "succeeded", done.error
    assert done.result is not None
    assert len(done.result["repaired"]) == 4
    now = read_root_info(folder)
    assert (now.files, now.version, now.shape, now.source) == (
        info.files,
        info.version,
        info.shape,
        info.source,
    )
    assert home.manager.verify() == home.manager.verify_files() == ()
    assert score(home) == before
    assert only_version(home, folder)


@pytest.mark.parametrize("about", ["cut", "sound"])
def test_what_the_source_holds_needs_no_learning(
    home: Home, tiny_source: Path, folder: Path, about: str
) -> None:
    """The text, from which a root without shipped weights is learnt, is not needed."""
    before = score(home)
    tokenizer, info = folder / "tokenizer.json", folder / "root.json"
    tokenizer.unlink()
    if about == "cut":
        info.write_bytes(info.read_bytes()[:-20])
    done = again(home, tiny_source, text=False)
    assert done.state == "succeeded", done.error
    assert done.result is not None
    assert done.result["repaired"] == [*(["root.json"] if about == "cut" else []), "tokenizer.json"]
    assert score(home) == before
    assert only_version(home, folder)


def test_a_repair_that_was_interrupted_goes_on(
    home: Home, tiny_source: Path, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted between the two files that it replaces; afterwards the files are as
    the import had written them."""
    before = score(home)
    intact = shutil.copytree(folder, tmp_path / "intact")
    damage(folder)
    job = home.manager.import_root(
        "tiny", str(tiny_source), texts={"text-0.txt": ROOT_TEXT}, options=ROOT_OPTIONS
    )
    ctx = JobContext(job, home.settings, home.manager.registry)
    source, about = find_source(str(tiny_source)), read_root_info(folder).source
    made: list[Path] = []

    def make(aside: Path) -> None:
        made.append(shutil.copytree(intact, aside))

    replace, left = Path.replace, 1

    def interrupted(self: Path, target: Path) -> Path:
        nonlocal left
        left -= target.parent == folder
        if left < 0:
            raise JobStopped
        return replace(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", interrupted)
        with pytest.raises(JobStopped):
            repair_root.run(ctx, source, about, make)
    assert len(home.manager.verify_files()) == 1, "one is sound again, and the other is what it was"
    done = repair_root.run(ctx, source, about, make)
    assert done["repaired"] == ["tokenizer.json", "upper.safetensors"]
    assert len(made) == 1, "what was learnt is not learnt again"
    home.manager.registry.update_job(job.job, lambda record: record.model_copy(update={"state": "succeeded"}))
    assert score(home) == before
    assert only_version(home, folder)


def test_no_other_import_takes_a_damaged_roots_place(
    home: Home, tiny_source: Path, tmp_path: Path, folder: Path
) -> None:
    with pytest.raises(Conflict, match="its files are sound: choose another name"):
        again(home, tiny_source)
    damage(folder)
    bad = (folder / "upper.safetensors").read_bytes()
    other = write_tiny_source(tmp_path / "other")
    weights = other / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + bytes(4))
    with pytest.raises(Conflict, match="was made from tiny-bert, which has other weights"):
        again(home, other)
    with pytest.raises(Conflict, match="was made with split 2 and n = 3"):
        again(home, tiny_source, n=4)
    done = again(home, tiny_source, seed=5)
    assert done.error is not None
    assert done.error["kind"] == "conflict"
    assert "the import gives another upper.safetensors than root tiny had" in done.error["message"]
    assert (folder / "upper.safetensors").read_bytes() == bad
    assert only_version(home, folder)
    info = json.loads((folder / "root.json").read_text())
    (folder / "root.json").write_text(json.dumps({**info, "format": 99}))
    done = again(home, tiny_source)
    assert done.error is not None
    assert "written by a newer version of HMI" in done.error["message"], "this release must not write over it"


def score(home: Home) -> object:
    (answer,) = infer(home, MOOD, home.covered[0])
    return answer.label, answer.score  # type: ignore[attr-defined]
