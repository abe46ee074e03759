"""From asks to results without HTTP, with an engine that only records what it is sent."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hmi.api.access.caller import ADMINISTRATOR, Caller
from hmi.api.infer.inference import Inference
from hmi.api.protocols.asks import Ask, Input
from hmi.config import Settings
from hmi.core import ModelId
from hmi.engine import TextRequest, TextResult
from hmi.engine.texts.request import AnswerProvenance, AnswerVersions
from hmi.engine.watch.in_flight import InFlight
from hmi.errors import HmiError, InvalidInput, NotFound, TooLarge
from hmi.stores.records.registry import Registry

ACME = Caller("acme", frozenset({"infer"}))
TOPIC, MOOD, FOREIGN = ModelId("acme", "topic"), ModelId("acme", "mood"), ModelId("zeta", "mood")


@dataclass
class Echo:
    """Answers each text with itself; its times are as many milliseconds as the text has characters."""

    calls: list[list[TextRequest]] = field(default_factory=list)
    error: Exception | None = None

    async def start(self) -> None: ...

    async def stop(self, *, drain: bool = True) -> None: ...

    def ready(self) -> bool:
        return True

    exits = tokens = None

    def trouble(self) -> str | None:
        return None

    def forget(self, *gone: object) -> None: ...

    def cascade_report(self, *of: object) -> None: ...

    async def infer(self, requests: list[TextRequest]) -> Sequence[TextResult]:
        self.calls.append(requests)
        if self.error is not None:
            raise self.error
        return [_echo(request) for request in requests]


@dataclass
class Counting(Echo):
    """An engine that counts a token for each character."""

    async def infer(self, requests: list[TextRequest]) -> Sequence[TextResult]:
        await super().infer(requests)
        return [TextResult(model=r.model, version=1, tokens=r.characters) for r in requests]


def _echo(request: TextRequest) -> TextResult:
    text = str(request.text)
    made_by = AnswerProvenance(
        {"trigram": len(text), "miss": 1}, len(text), request.exact, AnswerVersions(7, "v", "d", "r")
    )
    return TextResult(
        model=request.model,
        version=7,
        label=text,
        provenance=made_by if request.provenance else None,
        timing={"queue_ms": len(text), "compute_ms": 1.0},
    )


def inference(**settings: Any) -> tuple[Inference, Echo]:
    echo = Echo()
    return Inference(echo, Settings(data=Path("none"), **settings)), echo


def texts(*given: Any) -> list[Input]:
    places = [f"inputs[{i}]" for i in range(len(given))]
    return [
        Input(t, at, (at, at) if isinstance(t, tuple) else (at,)) for t, at in zip(given, places, strict=True)
    ]


async def test_results_are_in_the_order_of_the_asks_and_their_inputs() -> None:
    room, echo = inference()
    sizes = [("a", "bb"), ("ccc",), ("d", "ee", "f")]
    asks = [Ask(model, texts(*given)) for model, given in zip((TOPIC, MOOD, TOPIC), sizes, strict=True)]
    results = await room.answer(asks, ACME, time.monotonic())
    assert [result.model for result in results] == [TOPIC, MOOD, TOPIC]
    assert [[output.label for output in result.outputs] for result in results] == [
        list(given) for given in sizes
    ]
    assert [result.version for result in results] == [7, 7, 7]
    assert len(echo.calls) == 1, "at once, so that the engine batches them together"
    assert [request.ask for request in echo.calls[0]] == [0, 0, 1, 2, 2, 2]
    assert {request.id for request in echo.calls[0]} == {""}, "a call without an id has texts without one"


async def test_each_text_has_an_id_that_feedback_can_name() -> None:
    room, echo = inference()
    (one,) = await room.answer([Ask(TOPIC, texts("a", "bb"))], ACME, 0.0, id="x")
    both = await room.answer(
        [Ask(TOPIC, texts("a"), place=0), Ask(MOOD, texts("b", "c"), place=1)], ACME, 0.0, id="x"
    )
    assert [request.id for call in echo.calls for request in call] == [
        "x/0",
        "x/1",
        "x.0/0",
        "x.1/0",
        "x.1/1",
    ]
    assert [result.id for result in (one, *both)] == ["x", "x.0", "x.1"]


async def test_what_an_ask_wants_reaches_the_engine_with_each_input() -> None:
    room, echo = inference()
    words = ["some", "words"]
    inputs = [Input(("one", "other"), "[1].inputs[0]", ("t", "p")), Input(words, "[1].inputs[1]", ("w",))]
    wanted: dict[str, Any] = {"exact": True, "scores": True, "provenance": True}
    wanted |= {"calibrated": True, "early": False}
    full = Ask(MOOD, inputs, "[1].model", **wanted, deadline_ms=50, utility=0.5)
    await room.answer([Ask(TOPIC, texts("a")), full], ACME, 100.0)
    plain, pair, split = echo.calls[0]
    assert plain == TextRequest(TOPIC, "a", place="inputs[0]")
    told: dict[str, Any] = {
        **wanted,
        "deadline": 100.05,
        "utility": 0.5,
        "ask": 1,
        "model_place": "[1].model",
    }
    assert pair == TextRequest(MOOD, ("one", "other"), place="[1].inputs[0]", **told)
    assert split == TextRequest(MOOD, words, place="[1].inputs[1]", **told)


async def test_timing_is_of_the_slowest_input_and_provenance_of_all() -> None:
    room, _ = inference()
    asks = [Ask(TOPIC, texts("a", "bbbb"), provenance=True, exact=True), Ask(MOOD, texts("cc"))]
    begun = time.monotonic()
    both, one = await room.answer(asks, ACME, begun - 5)
    assert {**both.timing, "total_ms": 0} == {"compute_ms": 1.0, "queue_ms": 4.0, "total_ms": 0}
    assert 5000 <= both.timing["total_ms"] <= 5000 + (time.monotonic() - begun) * 1000 + 1
    assert list(both.timing)[-1] == "total_ms"
    assert both.provenance == AnswerProvenance(
        {"trigram": 5, "miss": 2}, 4, True, AnswerVersions(7, "v", "d", "r")
    )
    assert (one.timing["queue_ms"], one.provenance) == (2.0, None)


@pytest.mark.parametrize(("place", "details"), [("[1].model", {"field": "[1].model"}), (None, {})])
async def test_a_model_out_of_reach_is_as_one_that_does_not_exist(
    place: str | None, details: dict[str, str], tmp_path: Path
) -> None:
    room, echo = inference()
    with pytest.raises(NotFound) as caught:
        await room.answer([Ask(TOPIC, texts("a")), Ask(FOREIGN, texts(" "), place)], ACME, 0.0)
    with closing(Registry.open(tmp_path)) as registry, pytest.raises(NotFound) as missing:
        registry.model(FOREIGN)
    assert (caught.value.message, caught.value.details) == (missing.value.message, details)
    assert not echo.calls
    await room.answer([Ask(FOREIGN, texts("a"), place)], ADMINISTRATOR, 0.0)
    assert echo.calls


class Unread:
    """Inputs whose reading is an error."""

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[Input]:
        raise AssertionError("a call with too many inputs is refused before any is read")


async def test_too_many_inputs_are_not_read() -> None:
    room, echo = inference(max_inputs=4)
    for asks, name in (
        ([Ask(TOPIC, Unread()), Ask(MOOD, Unread())], "body"),
        ([Ask(TOPIC, texts(*"abcde"))], "inputs"),
    ):
        with pytest.raises(
            TooLarge, match=f"^{name} is over the limit of 4 inputs: send several requests$"
        ) as caught:
            await room.answer(asks, ACME, 0.0, field=name)
        assert caught.value.details == {"field": name, "limit": 4}
    assert not echo.calls
    await room.answer([Ask(TOPIC, texts(*"ab")), Ask(MOOD, texts(*"cd"))], ACME, 0.0)


@pytest.mark.parametrize(
    ("text", "wrong", "message"),
    [
        (" \n", "one", "one is blank: send some text"),
        ("é" * 6, "one", "one is over the limit of 10 bytes: send a shorter text"),
        (("a", "\t"), "two", "two is blank: send some text"),
        (("b" * 11, "a"), "one", "one is over the limit of 10 bytes: send a shorter text"),
        (("a", "b" * 11), "two", "two is over the limit of 10 bytes: send a shorter text"),
        (["a", "b", ""], "one[2]", "one[2] is blank: send some text"),
        (["é" * 3, "é" * 3], "one", "one is over the limit of 10 bytes: send shorter texts"),
    ],
)
async def test_a_wrong_input_is_named_by_its_part_and_keeps_the_engine_from_all(
    text: Any, wrong: str, message: str
) -> None:
    room, echo = inference(max_text_bytes=10)
    parts = ("one", "two") if isinstance(text, tuple) else ("one",)
    for large in (False, True):
        with pytest.raises((InvalidInput, TooLarge)) as caught:
            await room.answer(
                [Ask(TOPIC, [*texts("good"), Input(text, "place", parts)])], ACME, 0.0, large=large
            )
        assert (caught.value.message, caught.value.details["field"]) == (message, wrong)
    assert not echo.calls
    await room.answer([Ask(TOPIC, texts("é" * 5, ("a" * 10, "b" * 10), ["é" * 2, "é" * 3]))], ACME, 0.0)


class Watched:
    """Inputs that record on which thread they are read."""

    thread: int | None = None

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Input]:
        self.thread = threading.get_ident()
        yield from texts("a")


async def test_large_calls_are_checked_off_the_loop() -> None:
    room, _ = inference()
    for large in (False, True):
        inputs = Watched()
        await room.answer([Ask(TOPIC, inputs)], ACME, 0.0, large=large)
        assert (inputs.thread != threading.get_ident()) is large


async def test_the_engines_error_comes_as_it_is() -> None:
    room, echo = inference()
    echo.error = InvalidInput("[0].inputs is a pair", field="[0].inputs")
    with pytest.raises(HmiError) as caught:
        await room.answer([Ask(TOPIC, texts("a"))], ACME, 0.0)
    assert caught.value is echo.error
    assert (caught.value.message, caught.value.details) == ("[0].inputs is a pair", {"field": "[0].inputs"})


async def test_a_call_that_is_cancelled_is_cancelled_in_the_engine() -> None:
    room, echo = inference()
    begun, ended = asyncio.Event(), asyncio.Event()

    async def wait(_: list[TextRequest]) -> Sequence[TextResult]:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return []

    echo.infer = wait  # type: ignore[method-assign]
    call = asyncio.create_task(room.answer([Ask(TOPIC, texts("a"))], ACME, 0.0))
    await begun.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert ended.is_set()


async def test_work_is_under_way_until_its_task_is_done() -> None:
    under_way = InFlight()
    await under_way.none()
    held = asyncio.Event()

    async def work() -> None:
        await held.wait()
        raise ValueError

    tasks = [asyncio.create_task(work()) for _ in range(3)]
    for task in tasks:
        under_way.until_done(task)
    tasks[0].cancel()  # cancelled before its first step
    waiting = asyncio.create_task(under_way.none())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (under_way.count, waiting.done()) == (2, False)
    held.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    async with asyncio.timeout(30):
        await waiting
    assert under_way.count == 0
