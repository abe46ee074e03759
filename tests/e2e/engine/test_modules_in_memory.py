"""The memory of tenants' modules: what an executor keeps of one, and what stays after many."""

from __future__ import annotations

import copy
import gc
import json
import os
from pathlib import Path

import pytest
import torch

from hmi.core import ModelId
from hmi.engine import TextRequest
from hmi.errors import Damaged, TooLarge
from hmi.execution.packed import PackedExecutor, run_rows
from hmi.model.sources.root import load_root
from hmi.model.tenant.modules import module_from
from hmi.stores.tensors.adapter_pool import AdapterPool
from tests.e2e.conftest import QUICK, Home, mood_rows

MOOD, OTHER = ModelId("acme", "mood"), ModelId("globex", "mood")


def packed(home: Home) -> PackedExecutor:
    live = home.manager.registry.model(MOOD).live
    root = load_root(home.manager._parts.layout.root(live.root, live.root_version))
    return PackedExecutor(root.upper, root.info.shape)


def test_a_module_in_fp16_runs_as_its_copy_in_fp32_does(home: Home) -> None:
    executor = packed(home)
    part = home.bundles().load_task_part(home.manager.registry.model(MOOD).live.artefact)
    module, whole = part.module, copy.deepcopy(part.module).float()
    assert {p.dtype for p in module.parameters()} == {torch.float16}
    own = part.size.private
    size = executor.prepare(module)
    assert size == 2 * sum(p.nbytes for p in module.parameters())
    assert executor.prepare(module) == size == module.forms.bytes, "made once"
    assert part.size.private == own + size
    assert executor.prepare(whole) == 0
    x = torch.randn(9, 32, generator=torch.Generator().manual_seed(0))
    mine = run_rows(executor, x, [0, 4, 9], [module, None])
    assert torch.equal(mine, run_rows(executor, x, [0, 4, 9], [whole, None]))
    assert not torch.equal(mine, run_rows(executor, x, [0, 4, 9], [None, None]))


def test_a_form_ends_with_its_executor_and_is_not_copied(home: Home) -> None:
    executor = packed(home)
    module = module_from({"sites.0-ln1.gain": torch.zeros(32).half(), "sites.0-ln1.bias": torch.zeros(32)})
    executor.prepare(module)
    twin = copy.deepcopy(module)
    assert (module.forms.bytes, twin.forms.bytes) == (256, 0)
    del executor
    gc.collect()
    assert not module.forms._by
    packed(home).prepare(module)
    assert module.forms.bytes == 256, "not counted twice"


def test_a_file_that_was_cut_short_fails_the_next_form_and_not_the_process(home: Home) -> None:
    first, second = packed(home), packed(home)
    name, _ = home.manager.adapters.put({**home.state("acme.mood"), "head.out.bias": torch.ones(2) * 7})
    part = home.bundles().load_task_part(name)
    part.ready(first.prepare)
    os.truncate(home.manager.adapters.path(name), 64)
    first.prepare(part.module)  # has its form
    with pytest.raises(Damaged, match="checksum"):
        second.prepare(part.module)


def test_many_loads_and_evictions_leave_nothing(home: Home) -> None:
    executor, bundles = packed(home), home.bundles()
    state = home.state("acme.mood")
    names = [home.manager.adapters.put({**state, "head.out.bias": torch.ones(2) * i})[0] for i in range(20)]
    sizes = [part.size.private for part in map(bundles.load_task_part, names[:1])]
    with_form = sizes[0] + executor.prepare(bundles.load_task_part(names[0]).module)
    pool = AdapterPool(4 * with_form, bundles.load_task_part, lambda part: part.size, bundles.mark)
    mappings = 0
    for i in range(500):
        pool.prefetch(names[i % len(names)], ready=lambda part: part.ready(executor.prepare))
        if i == 100:
            mappings = len(Path("/proc/self/maps").read_text().splitlines())
        assert pool.bytes <= 4 * with_form
    gc.collect()
    assert (len(pool.resident()), pool.evictions, pool.bytes) == (4, 496, 4 * with_form)
    assert len(Path("/proc/self/maps").read_text().splitlines()) <= mappings + 16
    pool.forget(names)
    assert (pool.bytes, pool.mapped_bytes, pool.resident()) == (0, 0, [])
    gc.collect()
    mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if names[3] in line]
    assert not mapped


async def test_a_model_that_rests_in_int8_answers_as_its_training_scored_it(home: Home) -> None:
    rows, name = mood_rows(9, 100), "globex.small"
    options = {**QUICK, "rest": "int8"}
    home.run(
        home.manager.create_model(
            name, domain="tiny/full", task="classification", data=rows, dev=rows, options=options
        )
    )
    live = home.manager.model(name).live
    assert live.rest == "int8"
    stored = home.state(name)
    assert {v.dtype for k, v in stored.items() if k.endswith((".down", ".up"))} == {torch.int8}
    engine = home.engine()
    await engine.start()
    asked = [json.loads(line) for line in rows.splitlines()]
    results = await engine.infer([TextRequest(ModelId.parse(name), row["text"]) for row in asked])
    right = sum(result.label == row["label"] for result, row in zip(results, asked, strict=True))
    assert right / len(asked) == pytest.approx(live.metrics["accuracy"], abs=0.011)
    size = engine._loader._pool.bytes
    unpacked = sum(2 * v.numel() for v in stored.values() if v.dtype == torch.int8)
    assert size > unpacked + 2 * unpacked, "the module in fp16, and the executor's form in fp32"
    await engine.stop()
    home.run(home.manager.update_model(name, data=rows, options={"epochs": 1}, publish="always"))
    assert home.manager.model(name).live.rest == "int8", "an update keeps it"
    home.manager.delete_model(name)


@pytest.mark.parametrize("pool_bytes", [150_000, 250_000])
async def test_a_batch_whose_modules_do_not_fit_together_runs_in_parts(home: Home, pool_bytes: int) -> None:
    roomy, small = home.engine(), home.engine(pool_bytes=pool_bytes)
    requests = [TextRequest(m, t, scores=True) for t in home.covered[:4] for m in (MOOD, OTHER)]
    answers = []
    for engine in (roomy, small):
        await engine.start()
        answers.append([result.scores for result in await engine.infer(requests)])
        pool = engine._loader._pool
        assert pool.bytes <= pool._budget
        assert not pool._needed
        await engine.stop()
    for mine, theirs in zip(*answers, strict=True):
        assert mine == pytest.approx(theirs, abs=1e-5)


async def test_a_module_larger_than_the_pool_fails_at_once_and_others_are_answered(home: Home) -> None:
    executor, bundles, sizes = packed(home), home.bundles(), dict[ModelId, int]()
    for model in (MOOD, OTHER):
        part = bundles.load_task_part(home.manager.registry.model(model).live.artefact)
        part.ready(executor.prepare)
        sizes[model] = part.size.private
    small, large = sorted(sizes, key=lambda model: sizes[model])
    assert sizes[small] < sizes[large]
    engine = home.engine(pool_bytes=sizes[small])
    await engine.start()
    for _ in range(2):
        with pytest.raises(TooLarge, match=rf"takes {sizes[large]:,} bytes .* HMI_POOL_BYTES"):
            await engine.infer([TextRequest(large, home.covered[0])])
        assert (await engine.infer([TextRequest(small, home.covered[0])]))[0].label
    assert (engine._loader._pool.evictions, engine._loader._pool.misses) == (0, 1)
    await engine.stop()
