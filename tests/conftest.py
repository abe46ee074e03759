"""Shared fixtures: everything runs on one thread, offline, on a tiny real model."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
# Most tests are about something else than the background job that follows a training: commands and servers
# leave it out, but for those of test_improve… and those that pass their own settings.
os.environ.setdefault("HMI_IMPROVE", "false")
# A machine may have a large source, from which a test would tune a teacher for minutes.
os.environ.setdefault("HMI_TEACHERS", "")

from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

from hmi.model.network.encoder import Encoder
from hmi.model.sources.root import Root, RootInfo, split_encoder
from hmi.model.sources.source import load_encoder
from hmi.model.text.tokenizer import Tokenizer
from tests.forks import one_template as one_template
from tests.skipped import pytest_terminal_summary as pytest_terminal_summary
from tests.tiny import write_tiny_source

torch.set_num_threads(1)
# Times say nothing on a busy machine. Each run takes the same examples: one that fails by chance would refuse
# work that has nothing to do with it. `--hypothesis-profile searching` looks for new ones, as `make stress`.
BUSY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("searching", BUSY)
settings.register_profile("same", BUSY, derandomize=True)
settings.load_profile("same")


@pytest.fixture(scope="session")
def tiny_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in Hugging Face's format with a random 4-layer BERT of 32 dimensions."""
    return write_tiny_source(tmp_path_factory.mktemp("source") / "tiny-bert")


@pytest.fixture(scope="session")
def teacher(tiny_source: Path) -> Encoder:
    return load_encoder(tiny_source)


@pytest.fixture
def tiny_root(tiny_source: Path, teacher: Encoder) -> Root:
    """An untrained root split 2+2, in memory, with random slots, bias and folded matrices."""
    tokenizer = Tokenizer(tiny_source / "tokenizer.json")
    lower, upper, bias = split_encoder(teacher, 2, tokenizer.cls_id)
    g = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in (lower.slot_keys, lower.slot_values, bias.position, bias.token_type):
            p.copy_(torch.randn(p.shape, generator=g) * 0.3)
        lower.fold += torch.randn(lower.fold.shape, generator=g) * 0.05
    for module in (lower, upper, bias):
        module.eval().requires_grad_(False)
    source = {"kind": "folder", "name": "tiny", "sha256": ""}
    info = RootInfo(name="tiny", version="v1", source=source, shape=teacher.shape, split=2, created="")
    return Root(info, upper, bias, tokenizer, lower)


@pytest.fixture
def folder(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    tiny_source: Path,
    capsys: pytest.CaptureFixture[str],
) -> Path:
    """A copy of `made_folder`: the root `tiny`, the tenant acme and its model acme.m."""
    from tests.hmi.labs.api_world import made_folder  # which loads aiohttp; most tests need no folder

    made = made_folder(tmp_path_factory.getbasetemp(), tiny_source, capsys)
    return Path(shutil.copytree(made, tmp_path / "d"))


@pytest.fixture(scope="session")
def written_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with models that write, acme.one, acme.two and beta.one. To be copied, or only read."""
    from tests.hmi.labs.writing_lab import write_models  # see `folder`

    return write_models(tmp_path_factory.mktemp("writing"))


@pytest.fixture(scope="session")
def bucket() -> Iterator[str]:
    """The address of a server of S3's protocol with a bucket "plots"."""
    pytest.importorskip("s3fs", reason="s3fs is not installed (pip install 'hmi-plot-store[remote]')")
    pytest.importorskip("moto", reason="moto is not installed (pip install 'moto[server]')")
    code = Path(__file__).parent / "bucket.py"
    with subprocess.Popen(
        [sys.executable, str(code)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        assert server.stdin is not None
        server.stdin.close()
