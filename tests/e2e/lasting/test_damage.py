"""Damaged files give an error that names the cure and no path of the server, and never another answer."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from hmi.core import ModelId
from hmi.engine import TextRequest
from hmi.errors import Damaged
from hmi.model import checked
from hmi.model.sources.root import load_root
from plot_store import Store
from tests.e2e.conftest import Home
from tests.pieces import piece

MOOD = ModelId("acme", "mood")


def root_folder(home: Home) -> Path:
    return home.settings.data / "roots" / "tiny" / home.manager.registry.root("tiny").version


def every_byte(raw: bytes, step: int) -> bytes:
    changed = bytearray(raw)
    for at in range(len(raw) - 1, len(raw) // 4, -step):
        changed[at] ^= 0x15
    return bytes(changed)


def another_word(raw: bytes) -> bytes:
    return raw.replace(b'"cell"', b'"celt"', 1)


def another_number(raw: bytes) -> bytes:
    about = json.loads(raw)
    return json.dumps({**about, "shape": {**about["shape"], "heads": 2}}).encode()


def infer(home: Home, model: ModelId, text: str) -> list[object]:
    async def answered() -> list[object]:
        engine = home.engine()
        await engine.start()
        try:
            return list(await engine.infer([TextRequest(model, text)]))
        finally:
            await engine.stop()

    return asyncio.run(answered())


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("upper.safetensors", lambda raw: every_byte(raw, 503)),
        ("upper.safetensors", lambda raw: raw[: len(raw) // 2]),
        ("tokenizer.json", another_word),
        ("tokenizer.json", lambda raw: raw[:200]),
        ("root.json", another_number),
        ("root.json", lambda raw: raw[:200]),
        ("upper.safetensors", None),
    ],
)
def test_a_damaged_root_answers_nothing(
    home: Home, name: str, change: Callable[[bytes], bytes] | None
) -> None:
    path = root_folder(home) / name
    intact = path.read_bytes()
    try:
        path.unlink() if change is None else path.write_bytes(change(intact))
        with pytest.raises(Damaged) as caught:
            infer(home, MOOD, home.covered[0])
        (problem,) = home.manager.verify_files()
    finally:
        path.write_bytes(intact)
    for said in (caught.value.message, problem):
        assert name in said
        assert "root tiny" in said
        assert "restore <data>/roots from a copy" in said
        assert str(home.settings.data) not in said
    assert infer(home, MOOD, home.covered[0]), "a restored file must answer again"
    assert home.manager.verify_files() == ()


def test_jobs_read_no_damaged_root(home: Home) -> None:
    path = root_folder(home) / "lower.safetensors"
    intact = path.read_bytes()
    manager = home.manager
    try:
        path.write_bytes(every_byte(intact, 997))
        assert infer(home, MOOD, home.covered[0]), "what only builds read must not stop serving"
        job = manager.create_domain("tiny/never", "\n".join(home.covered).encode(), alpha=50)
        done = manager.runner.run_one(job.job)
        assert any("lower.safetensors" in problem for problem in manager.verify_files())
    finally:
        path.write_bytes(intact)
    assert done.error is not None
    assert done.error["kind"] == "damaged"
    assert "lower.safetensors of root tiny" in done.error["message"]
    assert str(home.settings.data) not in json.dumps(done.error)


def test_an_unchanged_file_is_hashed_once(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    digest = hashlib.file_digest

    def counted(file: object, name: str) -> object:
        read.append(Path(file.name).name)  # type: ignore[attr-defined]
        return digest(file, name)  # type: ignore[arg-type]

    monkeypatch.setattr(checked.hashlib, "file_digest", counted)
    monkeypatch.setattr(checked, "_cache", {})
    folder = root_folder(home)
    for _ in range(3):
        load_root(folder)
    assert sorted(read) == ["tokenizer.json", "upper.safetensors"]
    path = folder / "upper.safetensors"
    path.write_bytes(path.read_bytes())
    load_root(folder)
    assert read[2:] == ["upper.safetensors"], "a file that was written again is another one"


def test_values_that_are_no_numbers_are_no_answer(home: Home) -> None:
    state = {**home.state("acme.mood")}
    state["head.out.weight"] = torch.full_like(state["head.out.weight"], torch.nan)
    registry = home.manager.registry
    live = registry.model(MOOD).live
    artefact, _ = home.manager.adapters.put(state)
    registry.publish_model(MOOD, live.model_copy(update={"version": 0, "artefact": artefact, "job": "nan"}))
    try:
        with pytest.raises(Damaged, match="no numbers: roll it back") as caught:
            infer(home, MOOD, home.covered[0])
    finally:
        registry.set_current(MOOD, live.version)
    assert str(home.settings.data) not in caught.value.message


async def all_at_once(home: Home, models: list[ModelId]) -> list[object]:
    engine = home.engine()
    await engine.start()
    try:
        asked = [engine.infer([TextRequest(model, home.covered[0])]) for model in models for _ in range(2)]
        return list(await asyncio.gather(*asked, return_exceptions=True))
    finally:
        await engine.stop()


def test_a_damaged_module_is_told_by_its_model_and_stops_no_other(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    """Two tenants' models share an artefact: neither tenant reads the other's name or a hash."""
    registry, twin = home.manager.registry, ModelId("globex", "twin")
    live = registry.model(MOOD).live
    registry.publish_model(twin, live.model_copy(update={"version": 0, "job": "twin"}))
    path = home.manager.adapters.path(live.artefact)
    intact = path.read_bytes()
    path.write_bytes(every_byte(intact, 97))
    try:
        *errors, answer, _ = asyncio.run(all_at_once(home, [MOOD, twin, ModelId("globex", "mood")]))
    finally:
        path.write_bytes(intact)
        registry.delete_model(twin)
    assert isinstance(answer, list), answer
    for error, mine, other in zip(errors, [MOOD, MOOD, twin, twin], [twin, twin, MOOD, MOOD], strict=True):
        assert isinstance(error, Damaged), error
        assert (
            f"the artefact of version 1 of model {mine} fails its checksum: roll the model back"
            in error.message
        )
        assert str(other) not in error.message
        assert live.artefact not in error.message
        assert str(home.settings.data) not in error.message
    failed = [record for record in caplog.records if record.name == "hmi.engine"]
    assert failed
    assert all(record.exc_info is None for record in failed), "an expected error needs no traceback"
    assert live.artefact in failed[0].getMessage(), "whoever runs the server must find the file"


def test_a_damaged_row_is_told_by_its_domain(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    version = home.manager.plots.version(home.manager.registry.model(MOOD).live.plot_version)
    with Store.open(home.settings.data / "plots") as store:
        pieces = [piece(store, s.name) for s in version.segments if s.kind == "rows"]
    intact = [each.read_bytes() for each in pieces]
    for each, raw in zip(pieces, intact, strict=True):
        each.write_bytes(raw[:4096] + every_byte(raw, 3)[4096:])
    try:
        error, _ = asyncio.run(all_at_once(home, [MOOD]))
    finally:
        for each, raw in zip(pieces, intact, strict=True):
            each.write_bytes(raw)
    assert isinstance(error, Damaged), error
    domain = version.ref
    assert f"the PLOT of {domain}, which version 1 of model {MOOD} reads, is damaged" in error.message
    logged = [record.getMessage() for record in caplog.records if record.name == "hmi.engine"]
    assert any(each.name in line for each in pieces for line in logged), "the operator finds the file"


def test_an_unexpected_error_keeps_its_traceback(
    home: Home, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("hmi.engine.run.running.outputs_of", broken)
    (error, _) = asyncio.run(all_at_once(home, [MOOD]))
    assert isinstance(error, ZeroDivisionError)
    assert any(record.exc_info for record in caplog.records)


def test_a_checkpoint_of_damaged_bytes_is_not_resumed(home: Home) -> None:
    from hmi.model.files import read_checkpoint, write_checkpoint

    path = home.settings.data / "jobs" / "checkpoint.safetensors"
    write_checkpoint(path, {"a": torch.arange(100.0), "b": torch.ones(3, dtype=torch.bfloat16)}, {"epoch": 2})
    found = read_checkpoint(path)
    assert found is not None
    state, about = found
    assert state["a"].sum() == 4950
    assert about == {"epoch": 2}
    intact = path.read_bytes()
    try:
        for at in (len(intact) - 1, len(intact) - 200):
            path.write_bytes(intact[:at] + bytes([intact[at] ^ 1]) + intact[at + 1 :])
            assert read_checkpoint(path) is None, "the job must begin anew"
    finally:
        path.unlink()
