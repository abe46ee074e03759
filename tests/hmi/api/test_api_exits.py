"""Objectives, reports and late labels of early exits, over HTTP and on the command line."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from hmi.api.schemas.exits import Feedback
from hmi.api.views.cascades import cascade_view
from hmi.api.views.exits import checked_labels, exits_view
from hmi.core import Cascade, ModelId, ModelRecord, Objective, Offer
from hmi.errors import InvalidInput
from hmi.manager import Manager
from hmi.manager.cascades import CascadeInfo
from hmi.stages.cascade.report import CascadeReport
from hmi.stages.early_exit.report import ExitReport, Label, Totals
from tests.hmi.labs.api_world import World, hmi, running, tenant
from tests.hmi.labs.manager_lab import add_model, publish_plot

MODEL = "/manage/models/acme.m"
NO_BOUNDS = {"agreement": None, "deadline_ms": None, "agreement_under_load": None}


def with_ramps(manager: Manager, name: str = "acme.m") -> None:
    """Give a model a ramp before each of its first two upper layers, each its head without queries."""
    model = ModelId.parse(name)
    state = manager.adapters.get(manager.registry.model(model).live.artefact)
    weight, bias = state["head.out.weight"], state["head.out.bias"]
    read = weight.shape[1] - (state["head.query"].numel() if "head.query" in state else 0)
    for site in (0, 1):
        state |= {
            f"ramps.{site}.out.weight": weight[:, :read].clone(),
            f"ramps.{site}.out.bias": bias.clone(),
        }
    artefact, size = manager.adapters.put(state)

    def change(record: ModelRecord) -> ModelRecord:
        live = record.live.model_copy(update={"artefact": artefact, "bytes": size, "ramps": (0, 1)})
        return record.model_copy(update={"versions": (live,)})

    manager.registry.change_model(model, change)


async def answered(world: World, *texts: str, **parameters: Any) -> str:
    """Ask acme.m about these texts; the answer's id."""
    body = {"inputs": list(texts), "parameters": parameters}
    status, answer, response = await world.call("POST", "/infer/acme.m", body)
    assert status == 200, answer
    assert answer["id"] == response.headers["X-Request-Id"]
    return str(answer["id"])


async def sent(world: World, *items: tuple[str, int, Any]) -> tuple[int, int]:
    """Send late labels; (taken, unknown)."""
    body = {"items": [{"id": i, "index": n, "label": label} for i, n, label in items]}
    status, done, _ = await world.call("POST", f"{MODEL}/feedback", body)
    assert status == 200, done
    return done["taken"], done["unknown"]


async def test_from_an_objective_to_late_labels(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with running(folder) as world:
        manager = world.services.manager
        status, shown, _ = await world.call("PATCH", MODEL, {"objective": {"agreement": 0.9}})
        assert (status, shown["exits"]["state"]) == (200, "no ramps")
        assert shown["exits"]["says"] == "no ramps: run hmi model ramps acme.m"
        with_ramps(manager)
        early = await answered(world, "profit and loss", "cells and genes")
        assert (await world.call("GET", f"{MODEL}/exits"))[1]["report"]["texts"] == 2, "from the next text on"
        full = await answered(world, "profit", early=False, calibrated=True)
        mixed = [{"model": "acme.m", "inputs": "profit"}, {"model": "acme.m", "inputs": ["x", "cells"]}]
        _, answers, response = await world.call("POST", "/infer", mixed)
        assert [a["id"] for a in answers] == [f"{response.headers['X-Request-Id']}.{i}" for i in (0, 1)]

        first = (early, 1, "biology"), (answers[1]["id"], 1, "biology"), (answers[0]["id"], 0, "finance")
        assert await sent(
            world, *first, (full, 0, "finance"), ("other", 0, "finance"), (early, 7, "biology")
        ) == (3, 3)
        assert await sent(world, *first) == (0, 3), "each answer takes one label"
        _, view, _ = await world.call("GET", f"{MODEL}/exits")
        assert (view["state"], view["report"]["counted"], view["report"]["texts"]) == ("collecting", 5, 5)
        assert view["says"].startswith("collecting: 5 of the 128 texts ")
        assert view["report"]["full"]["seen"] == 3
        assert b'hmi_exit_models{state="collecting"} 1.0' in world.services.monitoring.metrics.render()

        bad = [{"id": early, "label": "finance"}, {"id": early, "index": 3, "label": "sports"}]
        status, told, _ = await world.call("POST", f"{MODEL}/feedback", {"items": bad})
        assert (status, told["error"]["details"]["field"]) == (422, "items[1].label")
        assert await sent(world, (early, 0, "finance")) == (1, 0), "a refused call takes nothing"
        await the_command_line(world, folder, capsys)

        _, shown, _ = await world.call("PATCH", MODEL, {"objective": None})
        assert (shown["objective"], shown["exits"]) == (NO_BOUNDS, None)
        assert await sent(world, (await answered(world, "profit"), 0, "finance")) == (0, 1)


async def the_command_line(world: World, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same from another process' view: the commands, with --url."""
    url = ("--url", str(world.client.make_url("/")))

    async def run(*arguments: object, code: int = 0) -> str:
        return await asyncio.to_thread(hmi, capsys, *arguments, *url, code=code)

    told = json.loads(await run("model", "objective", "acme.m", "--deadline-ms", 40, "--json"))
    assert told["objective"] == {**NO_BOUNDS, "agreement": 0.9, "deadline_ms": 40.0}
    told = await run("model", "objective", "acme.m", "--agreement", 99, code=1)
    assert "objective.agreement: is 99.0, and must be at most 0.9999" in told
    asked = json.loads(await run("infer", "acme.m", "profit", "genes", "--json"))
    rows = folder / "late.csv"
    rows.write_text(f"id,index,label\n{asked['id']},1,biology\n{asked['id']},0,finance\nzz,0,finance\n")
    done = json.loads(await run("model", "feedback", "acme.m", rows, "--json"))
    assert done == {"taken": 2, "unknown": 1}
    rows.write_text("id,text\nzz,a\n")
    assert "file has no column `label`" in await run("model", "feedback", "acme.m", rows, code=1)
    shown = await run("model", "exits", "acme.m")
    assert "collecting: 7 of the 128 texts" in shown
    assert "of this time on the processor" in shown
    assert "at least 90% of answers equal the full model's; 40 ms in the mean" in shown
    assert asked["id"] not in await run("infer", "acme.m", "profit")
    assert "INDEX" in await run("infer", "acme.m", "profit", "--ids")


@pytest.mark.parametrize(
    ("body", "field", "said"),
    [
        ({}, "body", "changes nothing: give one or more of objective"),
        ({"objective": {}}, "objective", "changes nothing: give one or more of agreement, deadline_ms"),
        ({"objective": {"agreement": 99}}, "objective.agreement", "must be at most 0.9999"),
        ({"objective": {"agreement": "99%"}}, "objective.agreement", "must be a number"),
        ({"objective": {"agrement": 0.9}}, "objective.agrement", "did you mean 'agreement'"),
        ({"objective": {"deadline_ms": 0}}, "objective.deadline_ms", "no answer takes less than 0.1 ms"),
        ({"objective": {"deadline_ms": 1e-300}}, "objective.deadline_ms", "is 1e-300, and no answer takes"),
        ({"objective": {"deadline_ms": 4e6}}, "objective.deadline_ms", "must be at most 3600000"),
        ({"objectives": None}, "objectives", "did you mean 'objective'"),
    ],
)
async def test_what_is_no_objective(tmp_path: Path, body: Any, field: str, said: str) -> None:
    async with running(tmp_path) as world:
        status, told, _ = await world.call("PATCH", MODEL, body)
        assert (status, told["error"]["details"]["field"]) == (422, field)
        assert said in told["error"]["message"]


async def test_another_tenant_s_model_is_not_there(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        manager = world.services.manager
        acme, zeta = await tenant(world, "acme"), await tenant(world, "zeta")
        add_model(manager, "acme.m", publish_plot(manager, "tiny"))
        late = {"items": [{"id": "x", "label": "a"}]}
        calls: list[tuple[str, str, Any]] = [
            ("PATCH", MODEL, {"objective": {"agreement": 0.99}}),
            ("GET", f"{MODEL}/exits", None),
            ("POST", f"{MODEL}/feedback", late),
        ]
        for method, path, body in calls:
            status, told, _ = await world.call(method, path, body, key=zeta)
            missing = await world.call(method, path.replace("acme.m", "zeta.m"), body, key=zeta)
            assert (status, missing[0]) == (404, 404)
            assert told["error"]["message"] == "there is no model 'acme.m': check the name"
        assert manager.model("acme.m").objective == Objective()
        for scope, denied in (("infer", calls[:2]), ("manage", calls[2:])):
            _, made, _ = await world.call("POST", "/manage/tenants/acme/keys", {"scopes": [scope]}, key=acme)
            for method, path, body in calls:
                status, _, _ = await world.call(method, path, body, key=made["key"])
                assert (status == 403) == ((method, path, body) in denied)


async def test_too_much_feedback_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path, max_body_bytes=100_000) as world:
        for count, label in ((1001, "a"), (1, "a" * 100_000)):
            items = [{"id": "x", "index": i, "label": label} for i in range(count)]
            status, told, _ = await world.call("POST", f"{MODEL}/feedback", {"items": items})
            assert (status, told["error"]["kind"]) == (413, "too_large")


def record(manager: Manager, task: str, labels: tuple[str, ...]) -> ModelRecord:
    plot = publish_plot(manager, "tiny") if "tiny" not in manager.plots.refs() else None
    assert plot is not None
    manager.create_tenant("acme")
    add_model(manager, "acme.m", plot)

    def change(old: ModelRecord) -> ModelRecord:
        live = old.live.model_copy(update={"task": task, "labels": labels})
        return old.model_copy(update={"versions": (live,)})

    return manager.registry.change_model(ModelId("acme", "m"), change)


@pytest.mark.parametrize(
    ("task", "good", "bad", "said"),
    [
        ("classification", ["a"], ["c", 1.5, ["a"]], "use 'a', 'b', or leave the item out"),
        ("multilabel", [["a", "b"], []], ["a", ["a", "c"]], "give a list of labels"),
        ("regression", [1, -2.5], ["1", ["a"]], "give a number"),
        ("tagging", [["a", "b", "a"]], ["a", ["a", "O"]], "give a list with one tag for each word"),
    ],
)
def test_a_label_has_the_form_of_the_task(
    manager: Manager, task: str, good: list[Any], bad: list[Any], said: str
) -> None:
    model = record(manager, task, ("a", "b") if task != "regression" else ())
    fits = Feedback.model_validate(
        {"items": [{"id": "x", "index": i, "label": g} for i, g in enumerate(good)]}
    )
    assert checked_labels(model, fits.items) == [(f"x/{i}", g) for i, g in enumerate(good)]
    found = []
    for label in bad:
        items = Feedback.model_validate({"items": [{"id": "x", "label": label}]}).items
        with pytest.raises(InvalidInput) as caught:
            checked_labels(model, items)
        assert caught.value.details["field"] == "items[0].label"
        found.append(caught.value.message)
    assert said in found[0]


def test_an_answer_is_named_once_and_an_embedding_has_no_bounds(manager: Manager) -> None:
    model = record(manager, "classification", ("a",))
    twice = Feedback.model_validate({"items": [{"id": "x", "label": "a"}] * 2})
    with pytest.raises(InvalidInput, match=r"items\[1\] names the same answer as items\[0\]"):
        checked_labels(model, twice.items)
    manager.registry.change_model(
        ModelId("acme", "m"),
        lambda old: old.model_copy(
            update={"versions": (old.live.model_copy(update={"task": "embedding", "labels": ()}),)}
        ),
    )
    with pytest.raises(InvalidInput, match="is an embedding") as caught:
        manager.set_objective("acme.m", lambda old: {"agreement": 0.99})
    assert caught.value.details["field"] == "objective.agreement"
    assert manager.set_objective("acme.m", lambda old: {"deadline_ms": 5.0}).objective.deadline_ms == 5.0
    with pytest.raises(InvalidInput, match="an embedding has no labels"):
        checked_labels(manager.model("acme.m"), twice.items)


class Told:
    """Exits whose report is given."""

    def __init__(self, given: ExitReport | None) -> None:
        self.given = given

    def report(self, artefact: str, model: ModelId | None = None) -> ExitReport | None:
        return self.given

    def totals(self) -> Totals:
        return Totals({}, 0, 0, 0)

    def feedback(self, artefact: str, id: str, label: Label, model: ModelId | None = None) -> bool:
        return False


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("collecting", "collecting: 212 of the 344 texts from which thresholds are tuned, 200 of them"),
        ("testing", "testing: thresholds are tuned, and 212 of about 344 further texts have tested them"),
        ("open", "open: 40% of 1000 texts left early"),
        ("paused", "paused: no text leaves at present"),
        ("off", "off: at this agreement early exits would cost more time than they save, or hardly save any"),
    ],
)
def test_each_state_in_words(manager: Manager, state: Any, said: str) -> None:
    model = record(manager, "classification", ("a",))
    objective = Objective(agreement=0.99)
    live = model.live.model_copy(update={"ramps": (0, 2)})
    model = model.model_copy(update={"objective": objective, "versions": (live,)})
    given = ExitReport(
        *(state, 0.99, 1000, {0: 100, 2: 300}, 0.25, 300, 1, 0.9843, (0, 2), (0.1, 0.2), 2, 0, 0.22),
        counted=212,
        needed=344,
        borrowed=200,
        avoided=0.3,
        avoids={0: 0.9, 1: 0.6, 2: 0.3},
    )
    view = exits_view(model, Told(given), held=False)
    assert view.says.startswith(said)
    assert view.report is not None
    assert (view.report.left, view.report.left_share) == ({"0": 100, "2": 300}, 0.4)
    assert [(s.site, s.threshold, s.avoids) for s in view.report.sites] == [(0, 0.1, 0.9), (2, 0.2, 0.3)]
    assert view.report.cost == pytest.approx(0.3 - 0.22)
    offline = exits_view(model, None, held=False)
    assert offline.state == "waiting"
    assert "hmi model exits acme.m asks the running server" in offline.says


def test_a_cascade_is_named_only_while_it_holds_and_is_not_said_to_answer(manager: Manager) -> None:
    model = record(manager, "classification", ("a",))
    version = model.live.version
    cascade = Cascade(version=version, rows=200, large_accuracy=0.9, large_ms=2.0, offers=())
    model = model.model_copy(update={"objective": Objective(agreement=0.99), "cascade": cascade})
    view = exits_view(model, Told(None), held=True)
    assert view.state == "cascade"
    assert "answers" not in view.says, "no offer may reach the agreement"
    assert "hmi model cascade show acme.m" in view.says
    stale = model.model_copy(update={"cascade": cascade.model_copy(update={"version": version + 1})})
    assert exits_view(stale, Told(None), held=False).state == "no ramps"


OFFERS = tuple(
    Offer(cut_off=c, slope=20.0, weight=w, accuracy=0.9, agreement=agreement, mean_ms=ms, returned=0.5)
    for c, w, agreement, ms in ((0.3, 1.0, 0.97, 1.0), (0.6, 0.4, 0.991, 1.4), (0.6, 1.0, 0.996, 1.5))
)


def traffic(state: Any, offer: Offer | None) -> CascadeReport:
    chosen = (None, None, None) if offer is None else (offer.cut_off, offer.slope, offer.weight)
    return CascadeReport(state, *chosen, 900, 300, 200, 100, 1, 90, 419, 1, 0.05, 0, 0.25)


@pytest.mark.parametrize(
    ("objective", "report", "fits", "chosen", "said"),
    [
        ({}, None, [], None, "no agreement is set"),
        ({"agreement": 0.99}, None, [1, 2], 2, "ready: 2 of 3 dispatchers reach the objective"),
        ({"agreement": 0.99, "deadline_ms": 1.45}, None, [1], 1, "ready: 1 of 3"),
        ({"agreement": 0.99, "deadline_ms": 0.5}, None, [], None, "no dispatcher reaches the objective"),
        ({"agreement": 0.999}, None, [], None, "no dispatcher reaches the objective"),
        ({"agreement": 0.99}, traffic("testing", OFFERS[1]), [1, 2], 1, "testing: 90 of about 419 audits"),
        ({"agreement": 0.99}, traffic("paused", OFFERS[2]), [1, 2], 2, "paused: the large level answers"),
        ({"agreement": 0.99}, traffic("no offer", None), [1, 2], None, "no offer: 2 of 3"),
        (
            {"agreement": 0.9},
            traffic("in use", OFFERS[0]),
            [0, 1, 2],
            0,
            "in use: the small level answered 300",
        ),
    ],
)
def test_a_cascade_tells_which_offers_reach_the_objective(
    manager: Manager, objective: Any, report: CascadeReport | None, fits: list[int], chosen: int, said: str
) -> None:
    model = record(manager, "classification", ("a",))
    model = model.model_copy(update={"objective": Objective(**objective)})
    cascade = Cascade(version=1, rows=200, judged=90, large_accuracy=0.9, large_ms=2.0, offers=OFFERS)
    view = cascade_view(CascadeInfo(model, cascade, None), report)
    assert (view.fits, view.chosen) == (fits, chosen)
    assert view.says.startswith(said)
    stale = cascade_view(CascadeInfo(model, cascade, "another version answers"), report)
    assert (stale.state, stale.fits, stale.chosen) == ("stale", [], None)
    assert stale.says.startswith("stale: another version answers")
