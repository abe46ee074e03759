"""Loops that die: readiness goes with them, and they come back."""

from __future__ import annotations

import asyncio

import pytest

from hmi.engine.watch import supervisor
from hmi.engine.watch.supervisor import Supervisor
from hmi.errors import Damaged, copy_of
from hmi.stores.tensors.adapter_store import DamagedArtefact
from tests.waiting import until


@pytest.mark.parametrize("how", [RuntimeError("no thread left"), asyncio.CancelledError(), None])
async def test_a_loop_that_ends_is_told_of_and_started_again(
    how: BaseException | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor, "FIRST_PAUSE_S", 0.02)
    starts, die = [], asyncio.Event()

    async def loop() -> None:
        starts.append(1)
        if len(starts) > 2:
            await asyncio.Event().wait()
        await die.wait()
        if how is not None:
            raise how

    keeper = Supervisor()
    keeper.keep("stream 1", loop)
    await asyncio.sleep(0.05)
    assert keeper.trouble is None
    die.set()
    await until(lambda: keeper.trouble is not None)
    assert "stream 1 failed" in str(keeper.trouble)
    await until(lambda: len(starts) == 3 and keeper.trouble is None)
    assert "started again" in caplog.text
    await keeper.stop()


async def test_a_stop_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    keeper, ended = Supervisor(), []

    async def loop() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(1)

    keeper.keep("x", loop)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await keeper.stop()
    await asyncio.sleep(0)
    assert ended
    assert not caplog.text


def test_a_copied_error_is_ones_own() -> None:
    first = Damaged("broken", field="model", version=3)
    second = copy_of(first)
    second.details["field"] = "inputs[3]"
    assert (type(second), second.message, str(second)) == (Damaged, "broken", "broken")
    assert first.details == {"field": "model", "version": 3}
    odd = UnicodeDecodeError("utf-8", b"x", 0, 1, "why")
    assert copy_of(odd).reason == "why"
    artefact = DamagedArtefact("0123", "fails its checksum", "restore it")
    other = copy_of(artefact)
    assert (type(other), str(other), other.message) == (DamagedArtefact, str(artefact), artefact.message)
    assert "of globex" in str(other.of("globex"))
