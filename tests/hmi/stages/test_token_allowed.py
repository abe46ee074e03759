"""The γ that a model may use: the profile, the tenant's bound, what exits are granted, and the audits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hmi.api.views.tokens import tokens_view
from hmi.core import ModelId, ModelRecord, Objective
from hmi.execution import BatchKey
from hmi.stages.base import OFF, Shape
from hmi.stages.early_exit.evidence import Audits, upper_bound
from hmi.stages.token_adaptation import audits as ledgers
from hmi.stages.token_adaptation.allowed import ERROR, allowed, boldest
from hmi.stages.token_adaptation.audits import AuditRecords, audited
from hmi.stages.token_adaptation.settings import MERGE_SETTINGS, PROMPT_SETTINGS, SHORTEST, merging
from hmi.stages.token_adaptation.stage import TokenAdaptation
from tests.hmi.labs.merging_lab import KEYS, MODEL, OBJECTIVE, batch_of, version

PROFILE = (
    (-50, 0.8, 0.85, 1000), (-20, 0.9, 0.97, 1000), (-10, 0.9, 0.99, 1000),
    (0, 0.9, 1.0, 1000), (2, 0.91, 0.95, 1000), (8, 0.89, 0.95, 1000),
)  # fmt: skip


def bound(least: float, **others: float) -> Objective:
    return Objective(agreement_under_load=least, **others)


def test_merging_needs_agreement_and_prompts_need_a_score() -> None:
    made = version(*PROFILE)
    assert allowed(made, Objective()) == ()
    assert allowed(version(), OBJECTIVE) == ()
    assert allowed(made, bound(0.8)) == (-50, -20, -10, 2)
    assert allowed(made, bound(0.95)) == (-20, -10, 2)
    assert allowed(made, bound(0.985)) == (2,), "1% of 1000 rows is no proof of 1.5%"
    assert upper_bound(Audits(1000, 10), ERROR) > 0.015


def test_what_exits_and_cascades_are_granted_is_not_merging_s() -> None:
    made, ramped = version(*PROFILE), version(*PROFILE, ramps=(1,))
    both = bound(0.95, agreement=0.98)
    assert allowed(made, both) == (-20, -10, 2)
    assert allowed(ramped, both) == (-10, 2)
    assert allowed(ramped, bound(0.95, agreement=0.95)) == (2,)
    assert allowed(ramped, bound(0.95)) == (-20, -10, 2), "the exits are off"


@pytest.mark.parametrize(
    ("level", "found"), [(-50, -20), (-35, -20), (-10, -10), (-5, 0), (1, 0), (2, 2), (8, 2)]
)
def test_a_text_gets_the_boldest_that_is_not_beyond_the_level(level: int, found: int) -> None:
    assert boldest((-20, -10, 2), level) == found


def test_audits_revoke_and_another_artefact_begins_anew() -> None:
    ledger, made, objective = AuditRecords(), version(*PROFILE), bound(0.95)
    other = made.model_copy(update={"artefact": "1" * 64})
    assert ledger.allowed(MODEL, made, objective, None) == (-20, -10, 2)
    for i in range(200):
        ledger.record(MODEL, made.artefact, -20, disagrees=i % 10 == 0)
        if -20 not in ledger.allowed(MODEL, made, objective, None):
            break
    assert ledger.allowed(MODEL, made, objective, None) == (-10, 2)
    assert ledger.allowed(ModelId("globex", "m"), made, objective, None) == (-20, -10, 2)
    assert ledger.allowed(MODEL, other, objective, None) == (-20, -10, 2)
    assert ledger.allowed(MODEL, made, bound(0.8), None) == (-50, -20, -10, 2), (
        "the bound counts, not the past"
    )
    ledger.forget({made.artefact}, {MODEL})
    assert ledger.allowed(MODEL, made, objective, None) == (-20, -10, 2)


def test_audits_alone_revoke_what_a_large_profile_would_cover_up() -> None:
    made, objective = version((-20, 0.9, 1.0, 100_000)), bound(0.95)
    assert allowed(made, objective, None, {-20: Audits(100, 5)}) == (-20,)
    assert allowed(made, objective, None, {-20: Audits(100, 15)}) == ()


def test_the_memory_of_audits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, made = AuditRecords(most=2), version(*PROFILE)
    models = [ModelId("acme", name) for name in "abc"]
    for model in models:
        ledger.allowed(model, made, OBJECTIVE, None)
        ledger.record(model, made.artefact, -20, disagrees=False)
    assert [len(ledger.audits(model, made.artefact)) for model in models] == [0, 1, 1]
    ledger.record(models[0], made.artefact, -20, disagrees=False)
    assert not ledger.audits(models[0], made.artefact), "it was forgotten meanwhile"
    monkeypatch.setattr(ledgers, "MEMORY", 8)
    for _ in range(20):
        ledger.record(models[1], made.artefact, -20, disagrees=True)
    assert ledger.audits(models[1], made.artefact)[-20].seen < 8


def test_the_stage_takes_those_texts_that_may_be_merged() -> None:
    stage, exact = TokenAdaptation(), BatchKey(("", ""), "cls", exact=True)
    assert list(stage.settings(KEYS["cls"])) == [OFF, *PROMPT_SETTINGS, *MERGE_SETTINGS]
    assert list(stage.settings(exact)) == [OFF]
    assert stage.effect(merging(-20), Shape(KEYS["cls"], 9)).work == pytest.approx(0.8)
    tokens = [30, 30, SHORTEST - 1, 30, 30]
    versions = [(MODEL, version(*PROFILE), None)] * 4 + [(MODEL, version(), None)]
    objectives = [bound(0.95), bound(0.8), bound(0.8), Objective(), bound(0.8)]
    batch = batch_of(tokens, versions=versions, objectives=objectives)
    (hook,) = stage.hooks(merging(-50), batch)
    assert hook.concerns == {0: "merge 20%", 1: "merge 50%"}
    assert stage.hooks(merging(-10), replace(batch, objectives=[Objective()] * 5)) == []
    assert stage.hooks(merging(-10), replace(batch, key=exact)) == []


def test_about_one_text_in_fifty_is_an_audit() -> None:
    assert 150 < sum(audited(f"nonce {i}") for i in range(10_000)) < 250


def test_a_tenant_sees_what_audits_have_revoked() -> None:
    live = version(*PROFILE)
    record = ModelRecord(tenant="acme", name="m", current=1, versions=(live,), objective=bound(0.95))
    audits = {-20: Audits(200, 40)}
    assert tokens_view(record).tokens.allowed == [-20, -10, 2]
    found = tokens_view(record, audits)
    assert found.tokens.allowed == [-10, 2]
    (point,) = [point for point in found.points if point.gamma == -20]
    assert (point.allowed, (point.why or "")[:9]) == (False, "40 of 200")
