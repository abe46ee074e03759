"""Kernels are compiled before the first text: once, and with a word about it."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from aiohttp import ClientSession

from hmi.api.process import server
from hmi.api.process.building import build_services
from hmi.config import Settings
from hmi.errors import Unavailable
from hmi.execution import compiling
from tests.hmi.labs.manager_lab import root_record
from tests.waiting import until


def test_what_is_compiled_is_not_compiled_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begun, begin, known = list[str](), compiling._begin, {"encoder", "planning", "rows", "shards", "text"}
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
        compiling.compile_all(generates=True)
        assert begun == ["lookup", "decoder"]


@pytest.mark.parametrize("missing", [{"encoder"}, {"decoder"}, {"lookup"}, {"text", "encoder"}])
def test_a_server_starts_without_compiled_layers_and_not_without_the_rest(
    missing: set[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else the first text would compile them in the server, where a failure ends it."""
    monkeypatch.setattr(compiling, "is_compiled", lambda entry: entry not in missing)
    monkeypatch.setattr(compiling.sys, "executable", shutil.which("false"))
    why = r"cannot be compiled here \(exit status 1"
    if missing <= {"encoder", "decoder"}:
        compiling.compile_all(generates=True)
        assert "cannot be compiled here (exit status 1" in caplog.text
    else:
        with pytest.raises(Unavailable, match=why + ".*HMI cannot serve without them: .*NUMBA_CPU_NAME"):
            compiling.compile_all()


def test_a_compilation_that_is_given_up_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    slow, ended = tmp_path / "slow", threading.Event()
    slow.write_text("#!/bin/sh\nexec sleep 600\n")
    slow.chmod(0o755)
    monkeypatch.setattr(compiling, "is_compiled", lambda entry: False)
    monkeypatch.setattr(compiling.sys, "executable", str(slow))
    ended.set()
    with caplog.at_level(logging.INFO, "hmi.execution"):
        compiling.compile_all(ended)
    assert "is given up" in caplog.messages[-1]


WARM = """
from hmi_kernels import compile, jit

def known():
    return {(place, signature) for made, place in jit._MADE for signature in made.overloads}

compile._lookup()
compile._text()
before = known()
assert before
from hmi.engine.run import warming
warming.compile_answers()
print(len(known() - before))
"""


WRITE = """
import torch
from hmi_kernels import compile, jit

def known():
    return {(place, signature) for made, place in jit._MADE for signature in made.overloads}

compile._decoder()
from tests.hmi.execution.test_decoding_steps import BEGIN, MODULES, tiny  # which loads other kernels
before = known()
assert before
from hmi.execution.decoding.sampling import Sampling
from hmi.execution.decoding.writing import Answer, Writing
from hmi.execution.decoding.compiled import CompiledDecoder
from hmi.execution.precision import available
from hmi.model.network.decoder import Decoder
from hmi.model.sources.generative_root import split_decoder
upper = split_decoder(Decoder(tiny("llama")).requires_grad_(False), 1, BEGIN, 2)[1]
for precision in available():
    executor = CompiledDecoder(upper, 4, precision)
    writing = Writing(executor, lambda wanted: torch.zeros(sum(e - b for _, b, e in wanted), 128))
    for wants in Sampling(), Sampling(temperature=1, logprobs=3):
        writing.add(Answer(0, [BEGIN, 2], 2, module=MODULES[1], sampling=wants))
    while len(writing):
        writing.step()
print(len(known() - before))
"""


@pytest.mark.parametrize("code", [WARM, WRITE])
def test_what_models_need_is_compiled_ahead(code: str) -> None:
    command, clone = [sys.executable, "-c", code], Path(__file__).parents[3]
    done = subprocess.run(command, cwd=clone, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0"]


@pytest.mark.parametrize("generates", [False, True])
async def test_a_server_that_compiles_says_so_and_can_be_stopped(
    generates: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ended = threading.Event(), list[bool]()

    def compile_all(stopping: threading.Event, **needs: bool) -> None:
        assert needs == {"generates": generates}
        begun.set()
        ended.append(stopping.wait(60))

    monkeypatch.setattr(server, "compile_all", compile_all)
    services = build_services(Settings(data=tmp_path / "data", job_workers=0))
    services.manager.registry.put_root(root_record("tiny", generates=generates))
    with server._listen("127.0.0.1", 0) as listener:
        serving = asyncio.create_task(server._serve(services, listener, "http://127.0.0.1", None))
        await until(begun.is_set)
        async with ClientSession(f"http://127.0.0.1:{listener.getsockname()[1]}") as client:
            told = {}
            for path in ("/healthz", "/readyz", "/manage/roots"):
                async with client.get(path) as answer:
                    told[path] = answer.status, "Retry-After" in answer.headers, await answer.text()
        os.kill(os.getpid(), signal.SIGTERM)
        await serving
    assert told["/healthz"][:2] == (200, False)
    for path in ("/readyz", "/manage/roots"):
        assert told[path][:2] == (503, True)
        assert "the server is compiling" in told[path][2]
    assert (ended, services.lifecycle.phase) == ([True], "draining")


async def test_a_server_without_its_kernels_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_all(stopping: threading.Event, **needs: bool) -> None:
        raise Unavailable("no kernels")

    monkeypatch.setattr(server, "compile_all", compile_all)
    services = build_services(Settings(data=tmp_path / "data", job_workers=0))
    with server._listen("127.0.0.1", 0) as listener, pytest.raises(Unavailable, match="no kernels"):
        await server._serve(services, listener, "http://127.0.0.1", None)
