"""`bench serve` on a tiny root: its sections measure, its home is as said, and its checks can fail."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from bench.cases.serve import engine
from bench.cases.serve.churn import ANSWERS_A_CHANGE, Span
from bench.cases.serve.engine import serving
from bench.cases.serve.isolation import checked, prepared
from bench.cases.serve.memory import MemorySamples
from bench.cases.serve.plan import ServePlan
from bench.cases.serve.run import run, steps
from bench.cases.serve.traffic import tenants_in_turn
from bench.harness.home import Home, build, mixed_spec
from hmi.config import Settings
from hmi.engine import TextRequest, TextResult
from hmi.engine.admit.bundles import Bundles, TaskPart
from hmi.errors import Conflict, InvalidInput, Unavailable
from hmi.manager import Manager
from tests.bench.lab import tiny_home, tiny_plan


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> ServePlan:
    """The quick plan on a tiny root."""
    sections = ("flat", "cold", "pieces", "memory", "isolation")
    return tiny_plan(tmp_path_factory.mktemp("bench-serve"), tenants=16, answers=64, sections=sections)


@pytest.fixture(scope="module")
def home(quick: ServePlan) -> Home:
    return tiny_home(quick)


def test_the_quick_run_measures_every_section(quick: ServePlan, home: Home) -> None:
    reports: list[str] = []
    rows = {row.id: row for row in run(quick, home.folder.parent, reports.append)}
    assert len(reports) == steps(quick)
    assert rows["answers_checked"].value >= quick.answers
    assert rows["answers_wrong"].value == 0
    assert rows["calls_with_other_errors"].value == 0
    assert rows["nearest_two_models"].ok
    assert rows["nearest_two_texts"].ok
    assert rows["alone_beside_fp32_reference"].ok
    assert 0 < rows["engine_own_share_16_texts_a_call"].value < 1
    assert 0 < rows["retrieval_share_128_tokens"].value < 1
    assert rows["tokens_of_a_batch_128_tokens"].value > 64
    assert rows["tenant_bytes_disk"].value > 2 * 3_000
    assert rows["flat_default_pool_128_tokens_uniform_16_over_1"].value > 0
    assert rows["ready_s"].value > 0


def test_the_home_has_tenants_with_models_that_all_differ(quick: ServePlan, home: Home) -> None:
    manager = Manager(Settings(data=home.data, job_workers=0))
    try:
        records = [manager.registry.model(home.model(i)) for i in range(quick.tenants)]
        assert len({record.live.artefact for record in records}) == quick.tenants
        assert manager.verify() == ()
    finally:
        manager.close()
    more = build(replace(quick, tenants=quick.tenants + 2), home.folder)
    assert more.tenants == quick.tenants + 2
    assert build(quick, home.folder).tenants == more.tenants
    with pytest.raises(InvalidInput, match="another root or text"):
        build(replace(quick, corpus=None), home.folder)


def test_two_benchmarks_do_not_share_a_home(home: Home) -> None:
    async def twice() -> None:
        async with serving(home.data, home.model(0)):
            with pytest.raises(Conflict):
                async with serving(home.data, home.model(0)):
                    pass

    asyncio.run(twice())


def test_texts_have_the_tokens_asked_for(home: Home) -> None:
    texts = home.texts()
    assert {texts.tokens(text) for text in texts.of(14, 20)} == {14}
    lengths = [texts.tokens(text) for text in texts.of(None, 200)]
    assert 45 < np.mean(lengths) < 70
    assert max(lengths) <= 128


def test_traffic_reaches_every_tenant_and_zipf_prefers_the_first() -> None:
    uniform, zipf = (Counter(tenants_in_turn(s, 16, 4_000, seed=1).tolist()) for s in ("uniform", "zipf"))
    assert set(uniform) == set(zipf) == set(range(16))
    assert max(uniform.values()) < 2 * min(uniform.values())
    assert zipf[0] > 10 * zipf[15]


def test_mixed_models_have_every_kind_and_rank() -> None:
    specs = [mixed_spec(i) for i in range(100)]
    assert len({(s.kind, s.rank) for s in specs}) == 50


def test_the_check_finds_a_wrong_answer_and_one_of_a_version_that_was_not_live(home: Home) -> None:
    async def cases() -> list[int]:
        async with serving(home.data, home.model(0)) as engine:
            check = prepared(engine, 2, home.texts().of(14, 2))
            first, second = check.churn.models
            (answer,) = await engine.engine.infer([TextRequest(first, check.texts[0], scores=True)])

            def wrong(model: int, text: int, answer: TextResult) -> int:
                before = check.wrong
                check.check(model, text, answer, 0.0, 1.0)
                return check.wrong - before

            of_another = replace(answer, model=second)
            found = [wrong(*case) for case in ((0, 0, answer), (0, 1, answer), (0, 0, of_another))]
            found.append(wrong(1, 0, of_another))  # by the right name, with another model's scores
            check.churn._live[0] = [Span(1, 0.0)]
            return [*found, wrong(0, 0, answer)]

    assert asyncio.run(cases()) == [0, 1, 1, 1, 1]


class MixedUp(Bundles):
    """Every third load gives the module that was loaded before it, as a pool that mixes up names would."""

    loads, before = 0, ""

    def load_task_part(self, artefact: str) -> TaskPart:
        self.loads += 1
        given = self.before if self.loads % 3 == 0 else artefact
        self.before = artefact
        return super().load_task_part(given)


def test_the_check_finds_modules_that_are_mixed_up_under_load(quick: ServePlan, home: Home) -> None:
    plan, reports = replace(quick, answers=300), list[str]()
    right, mixed = (
        asyncio.run(checked(plan, home, reports.append, bundles, pool=250_000))
        for bundles in (Bundles, MixedUp)
    )
    assert right.evictions > 5
    assert right.check.answers >= plan.answers
    assert right.check.wrong == right.check.errors.total() == 0
    assert right.check.churn.done.total() >= plan.answers // ANSWERS_A_CHANGE
    assert mixed.check.wrong > plan.answers // 20
    assert ", 0 wrong" not in reports[-1]


def test_there_are_as_many_changes_as_the_answers_ask_for(quick: ServePlan, home: Home) -> None:
    async def changed() -> Counter[str]:
        async with serving(home.data, home.model(0)) as engine:
            churn = prepared(engine, 2, home.texts().of(14, 2)).churn
            await asyncio.gather(*(churn.keep_up(lambda: 12 * ANSWERS_A_CHANGE) for _ in range(3)))
            await churn.keep_up(lambda: 12 * ANSWERS_A_CHANGE)
            at, current = (
                time.monotonic(),
                [engine.manager.registry.model(model).current for model in churn.models],
            )
            assert all(churn.was_live(i, v, at, at) for i, v in enumerate(current))
            return churn.done

    assert asyncio.run(changed()) == {
        "publish": 6,
        "roll back": 2,
        "delete and create a model": 2,
        "delete and create a tenant": 2,
    }


def test_growth_compares_the_end_with_the_beginning_after_the_warm_up() -> None:
    samples = MemorySamples(at=[float(i) for i in range(20)], bytes=[1] * 5 + [100] * 10 + [110] * 5)
    assert samples.growth(5.0) == pytest.approx(1.10)


def test_an_unknown_section_is_named_with_those_there_are(quick: ServePlan) -> None:
    with pytest.raises(InvalidInput, match=r"'rain'.*isolation"):
        steps(replace(quick, sections=("rain",)))


async def test_on_a_device_there_is_no_choice_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "CHOICE_POLLS", 0)
    shape = SimpleNamespace(dim=64, heads=4, ffn=128)

    def running(name: str) -> Any:
        root = SimpleNamespace(info=SimpleNamespace(shape=shape))
        upper = SimpleNamespace(root=root, executor=SimpleNamespace(name=name, measured=()))
        return SimpleNamespace(upper=lambda version: SimpleNamespace(now=lambda: upper))

    await engine.chosen(running("cuda bf16"), cast(Any, None))
    with pytest.raises(Unavailable):
        await engine.chosen(running("packed fp32"), cast(Any, None))
