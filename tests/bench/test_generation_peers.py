"""Peers of `bench generation`: those that are not there say why."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from bench.cases.generation import peers
from hmi.errors import InvalidInput


def test_an_engine_that_is_missing_says_why(tmp_path: Path) -> None:
    with ExitStack() as stack:
        found = peers.opened({"vllm": sys.executable}, tmp_path, stack, lambda _: None)
    assert found.running == {}
    assert found.why["vllm"] == "vllm int8 does not start: ModuleNotFoundError: No module named 'vllm'"
    assert found.why["openvino"] == "no --peer openvino=PYTHON, one with openvino-genai"


def test_an_unknown_engine_is_refused() -> None:
    with ExitStack() as stack, pytest.raises(InvalidInput, match="there is no 'onnx'"):
        peers.opened({"onnx": sys.executable}, None, stack, print)
