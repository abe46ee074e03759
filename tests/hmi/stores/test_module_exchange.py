"""Export of a model's module and import into another: by command and over HTTP, with and without a head."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, load_file, save_file

from hmi.core import ModelId
from hmi.stores.records.registry import Registry
from hmi.stores.tensors.adapter_store import AdapterStore
from tests.hmi.labs.api_world import hmi, rows, running
from tests.tiny import random_texts

SHORT = tuple(
    w
    for o in ("epochs=1", "max_length=32", "lexical=false", "transitions=false", "ramps=false")
    for w in ("--option", o)
)
FILES = {
    "adapter_config": "adapter_config.json",
    "adapter": "adapter.safetensors",
    "head_config": "head_config.json",
    "head": "model_head.safetensors",
}


@pytest.fixture
def data(folder: Path, tmp_path: Path) -> Path:
    """A data folder with a model of the default module; rows and tagged rows lie beside it."""
    (tmp_path / "rows").write_bytes(rows())
    (tmp_path / "tagged").write_bytes(tagged())
    return folder


def tagged(count: int = 30) -> bytes:
    texts = [t.split() for t in random_texts(count, seed=8, high=6)]
    tags = [["B-X" if w in ("market", "stock") else "O" for w in t] for t in texts]
    return "\n".join(json.dumps({"tokens": t, "tags": g}) for t, g in zip(texts, tags, strict=True)).encode()


def state_of(data: Path, model: str) -> tuple[Any, dict[str, Any]]:
    """The live version of a model and its tensors."""
    registry = Registry.open(data / "registry")
    try:
        live = registry.model(ModelId.parse(model)).live
    finally:
        registry.close()
    return live, AdapterStore(data / "adapters").get(live.artefact)


def test_a_model_with_a_twin_for_its_head_comes_back_as_it_went(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at = ("--data", data)
    create = ("model", "create", "acme.tags", tmp_path / "tagged", "--domain", "tiny", "--task", "tagging")
    hmi(capsys, *create, "--option", "module.kind=houlsby", "--option", "module.rank=5", *SHORT, *at)
    hmi(capsys, "model", "export-module", "acme.tags", tmp_path / "out", *at)
    assert {p.name for p in (tmp_path / "out").iterdir()} == {*FILES.values()}
    take = ("model", "import-module", "acme.again", tmp_path / "out", "--domain", "tiny", *at)
    assert "epochs is for training" in hmi(capsys, *take, "--option", "epochs=3", code=1), (
        "there is nothing to train on"
    )
    hmi(capsys, *take)
    one, two = state_of(data, "acme.tags"), state_of(data, "acme.again")
    assert one[0].module == two[0].module
    assert (two[0].task, set(two[0].labels), two[0].metrics) == (
        "tagging",
        {"O", "B-X"},
        {"imported": "adapters"},
    )
    assert one[0].labels == two[0].labels
    assert one[1].keys() == two[1].keys()
    assert all(torch.equal(one[1][name], two[1][name]) for name in one[1])
    asked = ("--json", *at)
    answers = [
        json.loads(hmi(capsys, "infer", m, "the market falls", "--tokens", *asked))
        for m in ("acme.tags", "acme.again")
    ]
    assert answers[0]["outputs"]
    assert answers[0]["outputs"] == answers[1]["outputs"]
    take = ("model", "import-module", "acme.more", tmp_path / "out", "--domain", "tiny", "--task", "tagging")
    hmi(
        capsys, *take, "--rows", tmp_path / "tagged", "--option", "lr=1e-9", "--option", "seed=5", *SHORT, *at
    )
    far = moved(data, "acme.tags", "acme.more")
    assert far["module"] < 1e-4
    assert far["head"] < 8e-3, (
        "the head's rate is 1e-3 at least; a fresh one is drawn with a deviation of 0.02"
    )
    file = AdapterStore(data / "adapters").path(one[0].artefact)
    file.write_bytes(file.read_bytes()[:-9])
    told = hmi(capsys, "model", "export-module", "acme.tags", tmp_path / "never", *at, code=1)
    assert "the artefact of version 1 of model acme.tags fails its checksum: roll the model back" in told
    assert one[0].artefact not in told


def moved(data: Path, one: str, two: str) -> dict[str, float]:
    """The largest difference between the numbers of two models' modules and heads."""
    before, after = state_of(data, one), state_of(data, two)
    assert before[0].module == after[0].module
    out = {"module": 0.0, "head": 0.0}
    for name, value in before[1].items():
        part = name.partition(".")[0]
        if part not in out:
            continue
        out[part] = max(out[part], float((after[1][name].float() - value.float()).abs().max()))
    return out


def test_an_adapter_without_a_head_is_trained_on_rows(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a tiny learning rate, the published module is the imported one."""
    at = ("--data", data)
    module = ("--option", "module.sites=q,fo", "--option", "module.rank=3")
    hmi(capsys, "model", "create", "acme.topic", tmp_path / "rows", "--domain", "tiny", *module, *SHORT, *at)
    hmi(capsys, "model", "export-module", "acme.topic", tmp_path / "out", *at)
    assert {p.name for p in (tmp_path / "out").iterdir()} == {"adapter_config.json", "adapter.safetensors"}
    take = ("model", "import-module", "acme.two", tmp_path / "out", "--domain", "tiny")
    rows = ("--rows", tmp_path / "rows")
    assert "--rows" in hmi(capsys, *take, *at, code=1)
    assert "options.module" in hmi(capsys, *take, *rows, "--option", "module.rank=8", *at, code=1)
    assert "embedding" in hmi(capsys, *take, *rows, "--task", "embedding", *at, code=1)
    hmi(capsys, *take, *rows, "--option", "lr=1e-9", "--option", "seed=5", *SHORT, *at)
    assert moved(data, "acme.topic", "acme.two")["module"] < 1e-4


def test_what_has_no_twin_is_refused_and_named(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at = ("--data", data)
    says = hmi(capsys, "model", "export-module", "acme.m", tmp_path / "out", *at, code=1)
    assert "site 'o'" in says
    assert not (tmp_path / "out").exists()
    folder = tmp_path / "bin"
    folder.mkdir()
    take = ("model", "import-module", "acme.two", folder, "--domain", "tiny", *at)
    assert "adapter_config.json" in hmi(capsys, *take, code=1)
    (folder / "adapter_config.json").write_text("{}")
    (folder / "pytorch_adapter.bin").write_bytes(b"PK")
    assert "use_safetensors=True" in hmi(capsys, *take, code=1)


async def test_over_http(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    create = ("model", "create", "acme.tags", tmp_path / "tagged", "--domain", "tiny", "--task", "tagging")
    sites = ("--option", "module.sites=v", "--option", "module.rank=2")
    await asyncio.to_thread(hmi, capsys, *create, *sites, *SHORT, "--data", data)
    async with running(data) as world:
        _, made, _ = await world.call("POST", "/manage/tenants/acme/keys", {})
        _, other, _ = await world.call("POST", "/manage/tenants", {"tenant": "zeta"})
        path = "/manage/models/acme.tags/module"
        assert (await world.call("GET", path, key=other["key"]))[0] == 404
        status, told, _ = await world.call("GET", path, key=made["key"])
        assert (status, told["model"], told["version"], told["left_out"]) == (200, "acme.tags", 1, [])
        files = {part: base64.b64decode(told["files"][name]) for part, name in FILES.items()}
        assert all(v.isfinite().all() for v in load(files["adapter"]).values())
        spec = {"model": "acme.copy", "domain": "tiny", "options": {"max_length": 24}}
        assert (await world.upload("/manage/models/import", spec, files, key=other["key"]))[0] == 404
        wrong = {
            **files,
            "adapter_config": files["adapter_config"].replace(b'"rank"', b'"x"').replace(b"add", b"scale"),
        }
        status, body, _ = await world.upload("/manage/models/import", spec, wrong, key=made["key"])
        assert (status, body["error"]["details"]["field"]) == (422, "composition_mode")
        status, body, _ = await world.upload("/manage/models/import", spec, files, key=made["key"])
        assert status == 202, body
        ended = await world.finish(body["job"])
        assert (ended["state"], ended["error"], ended["target"]) == ("succeeded", None, "acme.copy")
        _, shown, _ = await world.call("GET", "/manage/models/acme.copy", key=made["key"])
        assert (shown["task"], shown["versions"][0]["max_length"]) == ("tagging", 24)
        status, body, _ = await world.upload("/manage/models/import", spec, files, key=made["key"])
        assert status == 409
        await a_broken_tensor(world, tmp_path, files, made["key"])


async def a_broken_tensor(world: Any, tmp_path: Path, files: dict[str, bytes], key: str) -> None:
    (tmp_path / "a").write_bytes(files["adapter"])
    tensors = load_file(tmp_path / "a")
    first = min(tensors)
    save_file({k: v for k, v in tensors.items() if k != first}, tmp_path / "b")
    spec = {"model": "acme.broken", "domain": "tiny"}
    less = {**files, "adapter": (tmp_path / "b").read_bytes()}
    _, body, _ = await world.upload("/manage/models/import", spec, less, key=key)
    ended = await world.finish(body["job"])
    assert ended["state"] == "failed"
    assert first in ended["error"]["message"]
    assert (await world.call("GET", "/manage/models/acme.broken", key=key))[0] == 404
