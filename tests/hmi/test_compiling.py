"""Kernels are compiled before the first text: once, and with a word about it."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import threading
from pathlib import Path

import pytest

from hmi.api import server
from hmi.api.app import build_services
from hmi.config import Settings
from hmi.execution import compiling
from tests.waiting import until


def test_what_is_compiled_is_not_compiled_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begun, begin, known = list[str](), compiling._begin, {"encoder"}
    monkeypatch.setattr(compiling, "is_compiled", known.__contains__)
    monkeypatch.setattr(compiling, "_begin", lambda entry: [begun.append(entry), begin(entry)][1])
    monkeypatch.setattr(compiling.sys, "executable", shutil.which("true"))
    with caplog.at_level(logging.INFO, "hmi.execution"):
        compiling.compile_all()
        assert begun == ["lookup"]
        assert "it usually takes half a minute, and happens once for each installation" in caplog.text
        assert caplog.messages[-1] == "compiled"
        caplog.clear()
        known.add("lookup")
        compiling.compile_all()
        assert (begun, caplog.messages) == (["lookup"], [])


def test_a_compilation_that_fails_or_is_given_up_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    slow, ended = tmp_path / "slow", threading.Event()
    slow.write_text("#!/bin/sh\nexec sleep 600\n")
    slow.chmod(0o755)
    monkeypatch.setattr(compiling, "is_compiled", lambda entry: False)
    with caplog.at_level(logging.INFO, "hmi.execution"):
        monkeypatch.setattr(compiling.sys, "executable", shutil.which("false"))
        compiling.compile_all()
        assert "cannot be compiled here (exit status 1" in caplog.text
        monkeypatch.setattr(compiling.sys, "executable", str(slow))
        ended.set()
        compiling.compile_all(ended)
        assert "is given up" in caplog.messages[-1]


async def test_a_server_compiles_before_it_is_ready_and_can_be_stopped_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    phases = list[str]()

    def compile_all(ended: threading.Event) -> None:
        phases.append(services.phase)
        assert ended.wait(60)

    monkeypatch.setattr(server, "compile_all", compile_all)
    services = build_services(Settings(data=tmp_path / "data", job_workers=0))
    with server._listen("127.0.0.1", 0) as listener:
        serving = asyncio.create_task(server._serve(services, listener, "http://127.0.0.1"))
        await until(lambda: phases)
        os.kill(os.getpid(), signal.SIGTERM)
        await serving
    assert (phases, services.phase) == (["starting"], "draining")
