"""The choice of an executor: measured, close to fp32, not for exact requests, harmless where it fails."""

from __future__ import annotations

import logging
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hmi.config import Settings
from hmi.errors import InvalidInput
from hmi.execution import BatchKey, Executor, Rows, choose, compiling
from hmi.execution import fused as fused_room
from hmi.execution.choose import check_precision, executor_for
from hmi.execution.fused import FusedExecutor
from hmi.execution.packed import PackedExecutor, pack_upper
from hmi.execution.precision import available
from hmi.metrics import Metrics
from hmi.model.sources.root import Root
from tests.hmi.execution.test_fused import BERT, packed, upper
from tests.waiting import wait_until


@pytest.fixture
def root(tiny_root: Root) -> Root:
    """A root whose sizes fit the compiled kernels; the tiny one's do not."""
    return replace(tiny_root, info=replace(tiny_root.info, shape=BERT), upper=upper(BERT))


def answer(executor: Executor, *, exact: bool = False) -> Tensor:
    x, offsets = packed((9, 30), BERT.dim)
    (left,) = executor.run(BatchKey(("", ""), "cls", exact), Rows.packed(x, offsets), [None, None])
    return left.last


def test_every_able_executor_is_measured_and_the_fastest_runs(root: Root) -> None:
    chosen = executor_for(root, wait=True)
    assert [m.name for m in chosen.measured] == ["packed fp32", *(f"fused {p}" for p in available())]
    assert chosen.name in ["packed fp32", *(f"fused {p}" for p in ("fp32", "bf16", "int16"))]
    assert all(m.us_per_token.keys() == choose.PROBES.keys() for m in chosen.measured)
    assert all(time > 0 for m in chosen.measured for time in m.us_per_token.values())
    assert all(m.cosine > (0.98 if m.name.endswith(" int8") else 0.999) for m in chosen.measured)


@pytest.mark.parametrize("precision", available())
def test_a_precision_asked_for_runs_and_exact_requests_run_in_fp32(root: Root, precision: str) -> None:
    chosen = executor_for(root, precision, wait=True)
    layers = upper(BERT)
    ours = FusedExecutor(layers, BERT, precision)  # type: ignore[arg-type]
    pack_upper(layers)
    reference = PackedExecutor(layers, BERT)
    assert chosen.name == f"fused {precision}" or precision == "fp32"
    if chosen.name == f"fused {precision}":
        assert torch.equal(answer(chosen), answer(ours))
    assert torch.equal(answer(chosen, exact=True), answer(reference, exact=True))


def test_sizes_without_kernels_stay_on_packed_torch(tiny_root: Root) -> None:
    chosen = executor_for(tiny_root, "int8", wait=True)
    assert chosen.name == "packed fp32"
    assert chosen.measured == ()


def test_whatever_fails_the_reference_goes_on(
    root: Root, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(fused_room, "FusedExecutor", broken)
    with caplog.at_level(logging.ERROR, "hmi.execution"):
        chosen = executor_for(root, wait=True)
    assert chosen.name == "packed fp32"
    assert "no such instruction" in caplog.text
    assert torch.isfinite(answer(chosen)).all()


def test_an_inaccurate_executor_is_not_taken(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hmi.execution.fastest.MIN_COSINE", 1.1)
    assert executor_for(root, wait=True).name == "packed fp32"


def test_unknown_and_unavailable_precisions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInput, match="use auto, fp32, bf16, int16 or int8") as caught:
        Settings(precision="fp16")
    assert caught.value.details["field"] == "precision"
    monkeypatch.setattr(choose, "available", lambda: ["fp32"])
    check_precision("auto")
    with pytest.raises(InvalidInput, match="no instructions"):
        check_precision("int8")


def test_metrics_show_the_choice(root: Root) -> None:
    chosen, metrics = executor_for(root, "fp32", wait=True), Metrics()
    metrics.watch_executors(lambda: [("tiny", chosen.name, chosen.measured, chosen.fault)])
    text = metrics.render().decode()
    assert f'hmi_executor{{executor="{chosen.name}",root="tiny"}} 1.0' in text
    assert ("hmi_executor_token_seconds{" in text) == bool(chosen.measured)


def test_a_compiler_that_ends_its_process_leaves_the_server_alone(
    root: Root, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compiling, "is_compiled", lambda entry: False)
    monkeypatch.setattr(compiling.sys, "executable", shutil.which("false"))
    with caplog.at_level(logging.ERROR, "hmi.execution"):
        chosen = executor_for(root, wait=True)
    assert chosen.name == "packed fp32"
    assert "cannot be compiled here (exit status 1" in caplog.text


def test_closing_ends_the_measurement_before_its_next_step(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on, steps = threading.Event(), threading.Event(), []
    measured = choose._measured

    def slow(name: str, *given: Any) -> Any:
        steps.append(name)
        begun.set()
        assert go_on.wait(60)
        return measured(name, *given)

    monkeypatch.setattr(choose, "_measured", slow)
    chosen = executor_for(root)
    assert begun.wait(60)
    closing = threading.Thread(target=chosen.close)
    closing.start()
    assert chosen._ended.wait(60)
    assert closing.is_alive(), "it waits for the step"
    go_on.set()
    closing.join(60)
    assert not any(thread.name == "hmi-choose" for thread in threading.enumerate())
    assert (steps, chosen.name, chosen.measured) == (["packed fp32"], "packed fp32", ())


def test_closing_ends_the_compilation(root: Root, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    slow, pid = tmp_path / "slow", tmp_path / "pid"
    slow.write_text(f"#!/bin/sh\necho $$ > {pid}.new && mv {pid}.new {pid}\nexec sleep 600\n")
    slow.chmod(0o755)
    monkeypatch.setattr(compiling, "is_compiled", lambda entry: False)
    monkeypatch.setattr(compiling.sys, "executable", str(slow))
    chosen = executor_for(root)
    wait_until(pid.exists)
    chosen.close()
    assert not Path(f"/proc/{pid.read_text().strip()}").exists()
    assert chosen.name == "packed fp32"


def test_an_executor_whose_answers_are_no_numbers_is_not_taken(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = FusedExecutor.run

    def broken(self: FusedExecutor, *given: Any, **named: Any) -> Any:
        for left in run(self, *given, **named):
            yield replace(left, last=left.last * torch.nan)

    monkeypatch.setattr(FusedExecutor, "run", broken)
    assert executor_for(root, wait=True).name == "packed fp32"
