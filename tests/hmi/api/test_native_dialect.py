"""The native protocol as functions: bodies to asks, results to answers, errors to their shape."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from pydantic import TypeAdapter

from hmi.api.http.plain import plain
from hmi.api.http.request_body import parse
from hmi.api.protocols.asks import Ask, AskResult, Input
from hmi.api.protocols.base import Dialect, Endpoint, Failure, Where
from hmi.api.protocols.native import NATIVE
from hmi.api.schemas.shared import ErrorAnswer
from hmi.core import ModelId
from hmi.engine import TextResult
from hmi.engine.texts.request import AnswerProvenance, AnswerVersions
from hmi.errors import InvalidInput
from hmi.model.tenant.answer import Entity
from tests.hmi.api.test_api_fuzz import draw

ONE, MIXED = NATIVE.endpoints
TOPIC = ModelId("acme", "topic")
VERSIONS = AnswerVersions(3, "0a1b", "minilm/papers", "minilm@1")
MADE_BY = AnswerProvenance(
    {"trigram": 4, "miss": 1}, 6, False, VERSIONS, {"exits": "on"}, 0.98, "small", "fits"
)
OUTPUTS: dict[str, dict[str, Any]] = {
    "classification": {"label": "a", "score": 0.75, "scores": {"a": 0.75, "b": 0.25}},
    "multilabel": {"labels": [("a", 0.9), ("b", 0.6)], "scores": {"a": 0.9, "b": 0.6, "c": 0.1}},
    "no label": {"labels": []},
    "regression": {"value": -3.5},
    "tagging": {"tags": ["B-per", "O"], "tag_scores": [0.9, 0.8], "truncated": True},
    "tagging of a text": {"entities": [Entity("per", 2, 7, "Ana 🎈", 0.8)], "known": True},
    "embedding": {"embedding": [0.5, -0.25]},
}
EMPTY = ("label", "score", "scores", "labels", "value", "tags", "tag_scores", "embedding", "entities")


def decoded(endpoint: Endpoint, body: Any, model: str = "acme.topic") -> list[Ask]:
    path = {"model": model} if "{model}" in endpoint.path else {}
    return endpoint.decode(parse(endpoint.body, json.dumps(body).encode()), Where(path))


def encoded(endpoint: Endpoint, results: list[AskResult]) -> Any:
    """An answer as it is sent, checked against the documented type."""
    answer = endpoint.encode(results, None, Where())
    text = json.dumps(plain(answer), allow_nan=False)
    assert TypeAdapter(endpoint.answer).validate_json(text) == answer
    return json.loads(text)


def body_of(ask: Ask) -> dict[str, Any]:
    """The most explicit native body of an ask."""
    wanted = [name for name in ("scores", "provenance") if getattr(ask, name)]
    parameters = {
        "deadline_ms": ask.deadline_ms,
        "utility": ask.utility,
        "exact": ask.exact,
        "calibrated": ask.calibrated,
        "early": ask.early,
        "return": wanted,
    }
    return {"inputs": [item_of(each) for each in ask.inputs], "parameters": parameters}


def item_of(given: Input) -> Any:
    if isinstance(given.text, list):
        return {"tokens": given.text}
    if isinstance(given.text, tuple):
        return {"text": given.text[0], "text_pair": given.text[1]}
    return given.text if given.parts == (given.place,) else {"text": given.text}


def test_the_native_protocol_is_a_dialect() -> None:
    dialect: Dialect = NATIVE
    assert [(each.path, each.inputs_field) for each in dialect.endpoints] == [
        ("/infer/{model}", "inputs"),
        ("/infer", "body"),
    ]


@pytest.mark.parametrize(
    ("item", "text", "parts"),
    [
        ("a text", "a text", ("",)),
        ({"text": "a text"}, "a text", (".text",)),
        ({"text": "one", "text_pair": None}, "one", (".text",)),
        ({"text": "one", "text_pair": "other"}, ("one", "other"), (".text", ".text_pair")),
        ({"tokens": ["two", "words"]}, ["two", "words"], (".tokens",)),
    ],
)
def test_each_form_of_an_input(item: Any, text: Any, parts: tuple[str, ...]) -> None:
    if isinstance(item, str):
        (ask,) = decoded(ONE, {"inputs": item})
        assert (len(ask.inputs), list(ask.inputs)) == (1, [Input(text, "inputs", ("inputs",))])
    (ask,) = decoded(ONE, {"inputs": ["first", item]})
    at = "inputs[1]"
    assert (len(ask.inputs), list(ask.inputs)[1]) == (2, Input(text, at, tuple(at + part for part in parts)))
    asks = decoded(MIXED, [{"model": "acme.topic", "inputs": "x"}, {"model": "zeta.mood", "inputs": [item]}])
    at = "[1].inputs[0]"
    assert list(asks[1].inputs) == [Input(text, at, tuple(at + part for part in parts))]
    assert list(asks[1].inputs) == list(asks[1].inputs), "they may be read twice"


def test_what_a_body_leaves_out_is_not_wanted() -> None:
    (ask,) = decoded(ONE, {"inputs": "a"})
    assert (ask.model, ask.model_place) == (TOPIC, None)
    assert (ask.exact, ask.scores, ask.provenance, ask.deadline_ms) == (False, False, False, None)
    assert (ask.calibrated, ask.early, ask.utility) == (False, True, 1.0)
    full = {"deadline_ms": 40, "utility": 0.25, "exact": True, "return": ["provenance", "scores", "scores"]}
    (ask,) = decoded(ONE, {"inputs": "a", "parameters": full})
    assert (ask.exact, ask.scores, ask.provenance, ask.deadline_ms) == (True, True, True, 40)
    assert ask.utility == 0.25


def test_a_mixed_body_names_each_model() -> None:
    asks = decoded(
        MIXED, [{"model": name, "inputs": "a"} for name in ("acme.topic", "zeta.mood", "acme.topic")]
    )
    assert [str(ask.model) for ask in asks] == ["acme.topic", "zeta.mood", "acme.topic"]
    assert [ask.model_place for ask in asks] == ["[0].model", "[1].model", "[2].model"]
    assert [each.place for ask in asks for each in ask.inputs] == ["[0].inputs", "[1].inputs", "[2].inputs"]
    assert [ask.id_in("call") for ask in asks] == ["call.0", "call.1", "call.2"]
    (one,) = decoded(ONE, {"inputs": "a"})
    assert one.id_in("call") == "call"


@pytest.mark.parametrize("path", ["acme", "Acme.m", "acme.m.n", "acme."])
def test_a_path_that_names_no_model(path: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        decoded(ONE, {"inputs": "a"}, path)
    assert caught.value.details == {"field": "model"}


def test_asks_of_drawn_bodies_make_the_same_bodies_again() -> None:
    rng = random.Random(11)
    for _ in range(300):
        body = draw({"$ref": "#/components/schemas/InferBody"}, rng, 0)
        (ask,) = decoded(ONE, body)
        assert body_of(ask) == filled(body)
        several = decoded(MIXED, [{**body, "model": "acme.m"}, {**body_of(ask), "model": "acme.m"}])
        assert [body_of(ask) for ask in several] == [filled(body)] * 2


def filled(body: dict[str, Any]) -> dict[str, Any]:
    """A body with all defaults filled in, and a list in place of a single text."""
    given = body.get("parameters", {})
    wanted = [name for name in ("scores", "provenance") if name in given.get("return", [])]
    parameters = {
        "deadline_ms": given.get("deadline_ms"),
        "utility": given.get("utility", 1.0),
        "exact": given.get("exact", False),
        "calibrated": given.get("calibrated", False),
        "early": given.get("early", True),
        "return": wanted,
    }
    items = [body["inputs"]] if isinstance(body["inputs"], str) else body["inputs"]
    return {"inputs": [without_none(item) for item in items], "parameters": parameters}


def without_none(item: Any) -> Any:
    return {k: v for k, v in item.items() if v is not None} if isinstance(item, dict) else item


@pytest.mark.parametrize("task", OUTPUTS)
@pytest.mark.parametrize("provenance", [None, MADE_BY])
def test_an_answer_has_what_the_result_has(task: str, provenance: AnswerProvenance | None) -> None:
    output = TextResult(
        model=TOPIC, version=3, provenance=provenance, timing={"queue_ms": 1.0}, **OUTPUTS[task]
    )
    timing = {"queue_ms": 1.0, "total_ms": 2.5}
    result = AskResult(TOPIC, 3, [output, output], timing, provenance, "call")
    sent = encoded(ONE, [result])
    assert {name: sent[name] for name in ("id", "model", "version", "timing")} == {
        "id": "call",
        "model": "acme.topic",
        "version": 3,
        "timing": {"queue_ms": 1.0, "total_ms": 2.5},
    }
    expected: dict[str, Any] = {
        **dict.fromkeys(EMPTY),
        "known": None,
        "truncated": False,
        "words": None,
        **OUTPUTS[task],
    }
    if expected["labels"] is not None:
        expected["labels"] = [{"label": label, "score": score} for label, score in expected["labels"]]
    if expected["entities"] is not None:
        expected["entities"] = [vars(entity) for entity in expected["entities"]]
    assert sent["outputs"] == [expected, expected]
    assert sent["provenance"] == (
        None
        if provenance is None
        else {
            "plot": {"trigram": 4, "miss": 1},
            "layers": 6,
            "exact": False,
            "versions": {"model": 3, "plot": "0a1b", "domain": "minilm/papers", "root": "minilm@1"},
            "stages": {"exits": "on"},
            "confidence": 0.98,
            "level": "small",
            "planner": "fits",
            "inputs": [
                {
                    "layers": 6,
                    "confidence": 0.98,
                    "level": "small",
                    "stages": {"exits": "on"},
                    "planner": "fits",
                }
            ]
            * 2,
        }
    )
    other = AskResult(ModelId("zeta", "mood"), 1, [output], {"total_ms": 2.5}, None)
    both = encoded(MIXED, [result, other])
    assert both[0] == sent
    assert (both[1]["model"], both[1]["version"], len(both[1]["outputs"])) == ("zeta.mood", 1, 1)


def test_an_error_has_the_documented_shape() -> None:
    shaped = NATIVE.encode_error(
        Failure("not_found", "there is none", {"field": "model", "limit": 3}, "id-1")
    )
    ErrorAnswer.model_validate(shaped)
    assert shaped == {
        "error": {
            "kind": "not_found",
            "message": "there is none",
            "details": {"field": "model", "limit": 3},
            "request_id": "id-1",
        }
    }
