"""States of models' exits: what survives a change of the objective, the budget of memory, and a restart."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hmi.core import ModelId, Objective
from hmi.execution.batch import BatchKey
from hmi.model.tasks import task_of
from hmi.stages.base import Text
from hmi.stages.early_exit import state, states
from hmi.stages.early_exit.control import Policy
from hmi.stages.early_exit.costs import ExitCosts
from hmi.stages.early_exit.evidence import Alarm, Audits, error_for_policy
from hmi.stages.early_exit.labelled import FIRST_LOOK, REMEMBERED, Answers, Labels
from hmi.stages.early_exit.report import ExitReport
from hmi.stages.early_exit.state import AnsweredText, ModelState
from hmi.stages.early_exit.states import States

MEASURED = ExitCosts(BatchKey(("r", "v1"), "cls", False), 2)
TASK = task_of("classification", ("neg", "pos"))


def text(model: str = "acme.mood", artefact: str = "a") -> Text:
    about = {"artefact": artefact, "domain": "d", "root": "r", "root_version": "v1", "ramps": (0, 1)}
    version: Any = type("Version", (), about)()
    return Text(
        model=ModelId.parse(model),
        version=version,
        objective=Objective(),
        cascade=None,
        task=TASK,
        id="id",
        nonce="nonce",
        tokens=4,
        whole=True,
        merged=lambda output: output,
    )


def served(found: ModelState, texts: int, agreement: float = 0.99, *, wrong: bool = False) -> None:
    """Texts that are sure at both ramps; whether they leave is up to the state."""
    for i in range(texts):
        begun = found.begin(str(i), agreement)
        if begun is None:
            continue
        one = AnsweredText(begun, str(i), 1)
        left = begun.thresholds[0] > 0.1 and found.leave(one, 0)
        if begun.recorded:
            found.record([one], np.full((1, 2), 0.1), np.full((1, 2), not wrong))
        elif not left:
            found.stayed([one])


def plant(found: ModelState) -> None:
    """Put a policy into force, on an account that can afford it."""
    control = found.control
    control.present, control.tested = Policy((0.5, 0.5), Alarm(control.terms.loss)), ()
    control.account.texts, control.wait = control.account.texts + 100_000, 1 << 30
    control.account.phase = control.account.used = 1
    control.windows = 8


def report(held: States, one: Text) -> ExitReport:
    found = held.report(one.version.artefact, one.model)
    assert found is not None
    return found


def of(held: States, one: Text, agreement: float = 0.99) -> ModelState:
    return held.of(one, agreement, MEASURED)


def test_totals_count_each_audit_once_over_evictions_and_begin_at_0_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states, "MAX_BYTES", 1)  # so that only the last one is held
    held, one, other = States(tmp_path), text(), text("acme.tags", "b")
    plant(of(held, one))
    for _ in range(5):
        served(of(held, one), 20)
        served(of(held, other), 1)
    audits = report(held, one).audits
    assert 10 < audits < 60, "a third of them"
    assert held.totals().audits == audits
    assert len(held._held) == 1
    assert held.totals().states == {"collecting": 1}
    held.close()
    later = States(tmp_path)
    served(of(later, one), 20)
    assert report(later, one).audits > audits, "the model's own counts go on"
    assert later.totals().audits == report(later, one).audits - audits, "since the server started"


def test_states_stay_within_their_budget_however_many_models_share_an_artefact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states, "MAX_BYTES", 100_000)
    held, all_texts = States(tmp_path), [text(f"acme.m{i}") for i in range(40)]
    for i, one in enumerate(all_texts):
        served(of(held, one), 1 + i)
        assert sum(found.nbytes for found in held._held.values()) <= 100_000
    assert 1 < len(held._held) < 9
    assert [report(held, one).texts for one in all_texts] == list(range(1, 41)), "also of those put away"
    for one in all_texts[:3]:
        served(of(held, one), 1)
    assert [report(held, one).texts for one in all_texts[:3]] == [2, 3, 4], "they went on where they were"
    held.forget(["a"], [all_texts[0].model, all_texts[5].model])
    assert [held.report("a", one.model) is None for one in all_texts[:7]] == [True, *[False] * 4, True, False]
    served(of(held, all_texts[5]), 1)
    served(of(held, all_texts[6]), 1)
    assert [report(held, one).texts for one in all_texts[5:7]] == [1, 8], "one began anew, the other went on"
    held.forget(["a"])
    assert held.report("a", None) is None
    assert not list(tmp_path.iterdir())
    assert held._bytes == sum(held._sizes.values()) == 0


def test_a_state_that_grows_counts_as_what_it_takes() -> None:
    held, one = States(None), text()
    served(of(held, one), 1)
    before = of(held, one).nbytes
    served(of(held, one), 2000)
    assert of(held, one).nbytes > before + 2000 * 17 + 600 * 2 * 5, "answers and records"
    assert held._bytes == of(held, one).nbytes


def test_an_objective_changed_and_changed_back_gives_no_further_credit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state, "SETTLES_S", 0.0)
    found = of(States(None), text())
    control, account = found.control, found.control.account
    served(found, 600)
    plant(found)
    served(found, 4, wrong=True)
    kept = (
        account.texts,
        copy.deepcopy(account.counts),
        control.policies,
        control.alarms,
        control.audits,
        len(control.records),
    )
    assert sum(count.free for count in kept[1]) > 0
    assert kept[2] > 0
    served(found, 1, 0.98)
    assert found.report().agreement == 0.98
    assert control.present is None, "its gate was for another agreement"
    served(found, 1, 0.99)
    texts, counts, policies, alarms, audits, records = kept
    assert (account.texts, account.counts, control.alarms) == (texts + 2, counts, alarms)
    assert (control.audits, len(control.records)) == (audits, records + 2)
    assert control.policies >= policies
    assert account.loss == control.terms.loss == pytest.approx(0.01)
    served(found, 600)
    assert control.policies > policies
    for ladder in control.tested:
        assert ladder.error <= error_for_policy(0.05, policies), "of the same 5% as the ladders before"


def test_texts_that_were_admitted_before_a_change_of_the_objective_run_to_the_end() -> None:
    found = of(States(None), text())
    served(found, 10)
    served(found, 1, 0.98)
    plant(found)
    for _ in range(20):
        assert found.begin("late", 0.99) is None
        assert found.begin("new", 0.98) is not None
    assert found.control.present is not None, "they do not change it back"


def test_a_state_put_away_under_another_objective_keeps_its_account(tmp_path: Path) -> None:
    held, one = States(tmp_path), text()
    served(of(held, one), 30)
    plant(of(held, one))
    served(of(held, one), 30, wrong=True)
    before = report(held, one)
    counts = [(c.wrong, c.free) for c in of(held, one).control.account.counts]
    held.close()
    found = of(States(tmp_path), one, 0.98)
    served(found, 1, 0.98)
    assert found.report().texts == before.texts + 1
    assert [(c.wrong, c.free) for c in found.control.account.counts] == counts
    assert sum(wrong for wrong, _ in counts) > 0
    assert found.control.present is None
    assert found.control.terms.loss == pytest.approx(0.02)


def test_a_text_under_way_does_not_leave_once_its_state_has_been_put_away(tmp_path: Path) -> None:
    held, one = States(tmp_path), text()
    found = of(held, one)
    served(found, 1)
    plant(found)
    some = [
        AnsweredText(begun, str(i), 1) for i in range(20) if (begun := found.begin(str(i), 0.99)) is not None
    ]
    assert found.leave(some[0], 0)
    held.close()
    assert not any(found.leave(each, 0) for each in some[1:]), "the file would not know of it"
    later = of(States(tmp_path), one)
    assert later.begin("x", 0.99) is not None
    account = later.control.account
    assert account.texts == 100_003, "planted ones, two answers, and the new one"
    assert sum(count.wrong + count.free for count in account.counts) == 1


def test_what_exits_saved_and_late_labels_survive_a_restart(tmp_path: Path) -> None:
    held, one = States(tmp_path), text()
    plant(of(held, one))
    served(of(held, one), 40)
    for i in range(40):
        assert of(held, one).feedback(str(i), "pos")
    before = report(held, one)
    assert 0.0 < before.saved < before.avoided
    sooner = sum(count * before.avoids[site] for site, count in before.left.items())
    audited = sum(count * before.avoids[site] for site, count in before.checked.items())
    assert 0 < sum(before.checked.values()) == before.audits
    assert before.sooner == pytest.approx(sooner / 40), "a reader can check it"
    assert before.avoided == pytest.approx((sooner - audited) / 40)
    assert before.early.seen + before.full.seen == 40
    assert of(held, one).labels.looks == 1
    held.close()
    later = States(tmp_path)
    assert of(later, one).begin("x", 0.99) is not None
    after = report(later, one)
    told = [(r.saved, r.avoided, r.sooner, r.checked, r.early, r.full) for r in (before, after)]
    assert told[0] == told[1]
    assert of(later, one).labels.looks == 1


def waits(monkeypatch: pytest.MonkeyPatch, name: str) -> tuple[threading.Event, threading.Event]:
    """Lets the next `state.<name>` wait: events "it began" and "it may go on"."""
    began, may, real = threading.Event(), threading.Event(), getattr(state, name)

    def slow(path: Path, *args: Any) -> Any:
        if path.name == "acme.mood":
            began.set()
            assert may.wait(30)
        return real(path, *args)

    monkeypatch.setattr(state, name, slow)
    return began, may


@pytest.mark.parametrize("name", ["take", "write"])
def test_a_slow_disk_holds_up_only_the_model_whose_file_it_is(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states, "MAX_BYTES", 1)
    held, one, other = States(tmp_path), text(), text("acme.tags", "b")
    served(of(held, one), 7)
    if name == "take":
        served(of(held, other), 1)  # puts the first one away
        monkeypatch.setattr(states, "MAX_BYTES", 1 << 20)
    began, may = waits(monkeypatch, f"_{name}_snapshot")
    with ThreadPoolExecutor(2) as threads:
        try:
            slow: Callable[[], None] = lambda: served(of(held, one if name == "take" else other), 1)  # noqa: E731
            first = threads.submit(slow)
            assert began.wait(30)
            served(of(held, other), 5)
            assert report(held, other).texts >= 5, "others' texts begin meanwhile"
            second = threads.submit(lambda: served(of(held, one), 1))
            assert not second.done()
        finally:
            may.set()
        first.result(30)
        second.result(30)
    assert report(held, one).texts == (9 if name == "take" else 8), "one account, which two never spend from"


def test_an_id_that_comes_again_gets_the_newest_answer_also_after_the_ring_has_wrapped() -> None:
    answers = Answers()
    for i in range(REMEMBERED + 10):
        answers.add("twice" if i in (REMEMBERED - 50, REMEMBERED + 3) else str(i), i, early=False)
    assert answers.take("twice") == (REMEMBERED + 3, False)
    assert answers.take("twice") == (REMEMBERED - 50, False)
    assert answers.take("twice") is None


def test_comparisons_after_an_alarm_share_the_error_of_those_before() -> None:
    labels = Labels()
    for _ in range(4 * FIRST_LOOK):
        labels.add(True, early=False)
        labels.rings(0.01)
    assert labels.looks == 3
    labels.begin_again()
    assert labels.early == labels.full == Audits()
    for _ in range(FIRST_LOOK):
        labels.add(False, early=True)
        labels.rings(0.01)
    assert labels.looks == 4, "the next one is at 32 labels again, with what the first three have left"
