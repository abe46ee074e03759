"""Answers that keep a form, over HTTP: each is read by another library, and none is broken."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch

from hmi.api.access.caller import ADMINISTRATOR
from hmi.core import ModelId
from hmi.engine.writing.request import WriteRequest
from hmi.execution.decoding.scores import HostRow
from hmi.execution.decoding.writing import Answer
from hmi.model.text.form import Form
from hmi.model.text.guides import FormGuide, Guides
from hmi.model.text.sampling import Sampling
from tests.hmi.api.test_generate import MODELS, device, stream, tokenizer_of
from tests.hmi.execution.test_decoding_sampling import row_of
from tests.hmi.labs.api_world import World
from tests.hmi.labs.writing_lab import PROMPT, Reference, server, words
from tests.hmi.model.test_forms import guides

__all__ = ["device", "guides"]
POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "y": {"type": "number"}},
    "required": ["x"],
}
SCHEMAS: list[dict[str, Any]] = [
    {"type": "integer", "minimum": -3, "maximum": 140},
    {"type": "boolean"},
    {"enum": ["good film", 3, None, {"a": [1.5]}]},
    {"const": ["bad", "plot"]},
    {"type": "string", "maxLength": 6},
    {"type": "string", "pattern": "^[a-f]{2,4}-[0-9]$"},
    {"type": "string", "format": "date"},
    {"type": "number", "multipleOf": 5, "minimum": 0, "maximum": 100},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4},
    {"type": "array", "prefixItems": [{"type": "null"}, {"enum": ["é", "ü"]}], "items": False},
    {**POINT, "additionalProperties": False},
    {"anyOf": [{"type": "null"}, {"type": "integer", "exclusiveMinimum": 7}]},
    {"oneOf": [{"type": "null"}, {"type": "string", "maxLength": 2}]},
    {"allOf": [{"type": "string", "minLength": 2}, {"maxLength": 4}]},
    {"type": "object", "patternProperties": {"^[xy]$": {"type": "integer"}}, "additionalProperties": False},
    {"type": "object", "additionalProperties": {"type": "boolean"}, "minProperties": 1, "maxProperties": 2},
    {
        "$defs": {"tree": {**POINT, "properties": {"x": {"$ref": "#/$defs/tree"}}, "required": []}},
        "$ref": "#/$defs/tree",
    },
]


@pytest.fixture(autouse=True)
def _ahead_at_any_price(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine looking ahead may seem too dear, and then a guide does not look ahead again."""
    monkeypatch.setattr("hmi.model.text.guides.DEAREST_AHEAD_S", 60.0)


async def ask(world: World, model: str, **body: Any) -> tuple[int, Any]:
    status, answer, _ = await world.call("POST", f"/generate/{model}", {"prompt": PROMPT, **body})
    return status, answer


async def test_whole_answers_keep_their_schemas(writing_data: Path, device: str) -> None:
    """All at once. Those that are cut are errors."""
    cases = [(schema, seed) for seed in range(4) for schema in SCHEMAS]
    async with server(writing_data, writing_bytes=1) as world:
        asks = [
            ask(world, MODELS[i % 3], form={"json_schema": schema}, temperature=1.0, seed=i, max_tokens=48)
            for i, (schema, _) in enumerate(cases)
        ]
        answers = await asyncio.gather(*asks)
    whole = 0
    for (schema, _), (status, answer) in zip(cases, answers, strict=True):
        if status == 200:
            jsonschema.validate(json.loads(answer["text"]), schema, format_checker=jsonschema.FormatChecker())
            whole += 1
        else:
            assert (status, answer["error"]["details"]) == (422, {"field": "max_tokens"})
    assert whole > 0.7 * len(cases)


FORMS: list[dict[str, Any]] = [
    {"choices": ["good film", "good<|end|>", "bad plot<|stop|>, new", "é😀", 'a"b']},
    {"regex": "[a-c]{2,5} [0-9]+(é|!)?"},
    {"grammar": 'start: e\ne: e "+" e | "(" e ")" | /[0-9]{1,2}/'},
    {"json": True},
]


def keeps(form: dict[str, Any], text: str) -> bool:
    if "choices" in form:
        return text in form["choices"]
    if "regex" in form:
        return re.fullmatch(form["regex"], text) is not None
    if "json" in form:
        return isinstance(json.loads(text), dict)
    return re.fullmatch(r"[0-9+()]+", text) is not None and eval(re.sub(r"\b0+(?=\d)", "", text)) >= 0  # noqa: S307


@pytest.mark.parametrize("form", FORMS)
async def test_other_forms_are_kept_alone_and_in_any_company(
    form: dict[str, Any], writing_data: Path
) -> None:
    settings = [
        {"temperature": 0},
        {"temperature": 1.0, "top_p": 0.9, "logprobs": 2},
        {"temperature": 2.0, "top_k": 90},
        {"temperature": 1.0, "repetition_penalty": 1.3, "frequency_penalty": 0.5},
    ]
    plain = [{"temperature": 1.0, "seed": i, "max_tokens": 90} for i in range(20)]
    guided = [
        {**settings[i % 4], "seed": i, "max_tokens": 60, "form": form, "prompt": words(i, 3)}
        for i in range(18)
    ]
    bodies = [*plain, *guided]
    async with server(writing_data) as world:
        alone = [await ask(world, MODELS[i % 3], **body) for i, body in enumerate(bodies)]
    async with server(writing_data, writing_bytes=1) as world:
        together = await asyncio.gather(*(ask(world, MODELS[i % 3], **body) for i, body in enumerate(bodies)))
        metrics = await (await world.client.get("/metrics")).text()
    assert float(re.search(r"^hmi_writing_set_back_total (\S+)", metrics, re.M)[1]) > 0  # type: ignore[index]
    assert [a.get("text") for _, a in together] == [a.get("text") for _, a in alone]
    whole = [answer for status, answer in alone[20:] if status == 200]
    assert len(whole) > 5
    for answer in whole:
        assert keeps(form, answer["text"]), answer["text"]
        assert answer["finish"] in ("end", "length")


async def test_a_text_that_is_cut_is_an_error_and_is_charged(writing_data: Path) -> None:
    form = {"regex": "good film{30}"}
    async with server(writing_data) as world:
        status, answer = await ask(world, "acme.one", form=form, max_tokens=4)
        assert (status, answer["error"]["details"]["field"]) == (422, "max_tokens")
        assert "longest answer's 4 tokens: raise max_tokens" in answer["error"]["message"]
        assert world.services.monitoring.metrics.usage.of("acme").tokens > 4
        events = await stream(world, "acme.one", {"prompt": PROMPT, "form": form, "max_tokens": 4})
        assert [name for name, _ in events] == ["text"] * (len(events) - 1) + ["error"]
        assert events[-1][1]["error"]["details"]["field"] == "max_tokens"
        assert "good film".startswith("".join(data["text"] for _, data in events[:-1])[:9])
        status, answer = await ask(world, "acme.one", form={"regex": "[0-9]+"}, max_tokens=3)
        assert (status, answer["finish"] in ("end", "length")) == (200, True), "a cut may leave a whole text"


async def test_a_call_without_room_for_its_shortest_choice_is_refused_at_once(writing_data: Path) -> None:
    async with server(writing_data) as world:
        form = {"choices": ["good film, new", "bad plot, good film"]}
        (encoded,) = tokenizer_of(world.services.manager).encode(["good film, new"], 99)
        need = len(encoded.ids) - 1
        status, answer = await ask(world, "acme.one", form=form, max_tokens=need - 1)
        assert (status, answer["error"]["details"]["field"]) == (422, "max_tokens")
        assert f"the shortest choice has {need} tokens" in answer["error"]["message"]
        assert world.services.monitoring.metrics.usage.of("acme").tokens == 0
        status, answer = await ask(world, "acme.one", form=form, max_tokens=40)
        assert (status, answer["text"] in form["choices"]) == (200, True)
        form["choices"].append("a")
        assert (await ask(world, "acme.one", form=form, max_tokens=40))[0] == 200


async def test_probabilities_need_room_for_the_longest_choice(writing_data: Path) -> None:
    async with server(writing_data) as world:
        form = {"choices": ["good", "good film, new plot"], "probabilities": True}
        (encoded,) = tokenizer_of(world.services.manager).encode(["good film, new plot"], 99)
        need = len(encoded.ids)  # the begin token stands for the end
        status, answer = await ask(world, "acme.one", form=form, max_tokens=need - 1)
        assert (status, answer["error"]["details"]["field"]) == (422, "max_tokens")
        assert f"the longest choice has {need} tokens" in answer["error"]["message"]
        assert (await ask(world, "acme.one", form=form, max_tokens=need))[0] == 200
        body = {"text_input": PROMPT, "parameters": {"form": {**form, "choices": ["good", "new " * 30]}}}
        status, told, _ = await world.call("POST", "/v2/models/acme.one/generate", body)
        assert status == 200, "the protocol's own default of 20 tokens is none of the caller's"
        assert [each["text"] for each in told["choices"]] == ["good", "new " * 30]
        assert sum(each["probability"] for each in told["choices"]) == pytest.approx(1)
        async with world.client.post("/v2/models/acme.one/generate_stream", json=body) as response:
            events = [json.loads(each[6:]) for each in (await response.text()).strip().split("\n\n")]
        assert [event.get("choices") for event in events] == [None, told["choices"]]
        status, told, _ = await world.call("POST", "/v2/models/acme.one/generate", {"text_input": PROMPT})
        assert (status, told["choices"]) == (200, None)


async def test_choices_that_nobody_waits_for_are_charged_as_far_as_they_were_read(writing_data: Path) -> None:
    form = Form(choices=tuple(f"gene {i}" for i in range(900)), probabilities=True)
    async with server(writing_data) as world:
        await world.call("PATCH", "/manage/tenants/acme", {"limits": {"tokens_per_s": 10.0}})
        inference = world.services.inference

        async def leave() -> None:
            wants = [WriteRequest(ModelId("acme", "one"), PROMPT * 3, form=form)]
            async with inference.write(wants, ADMINISTRATOR) as texts:
                while sum(cost.tokens for cost in texts.costs) < 150:
                    await asyncio.sleep(0.001)
                raise ConnectionResetError

        with pytest.raises(ConnectionResetError):
            await leave()
        (left,) = (each.left for each in inference.rates.states("acme") if each.quota == "tokens_per_s")
        assert left < 0, "the rate is charged what was read"
        writer, *_ = world.services.engine._loader.writers()  # type: ignore[attr-defined]
        while writer.drafts or writer.pages[0]:
            await asyncio.sleep(0.01)
        usage = world.services.monitoring.metrics.usage.of("acme")
        assert 150 <= int(usage.tokens) < 3000


async def test_a_stop_string_breaks_no_form(writing_data: Path) -> None:
    async with server(writing_data) as world:
        status, answer = await ask(world, "acme.one", form={"regex": "[0-9]{2},[0-9]{2}"}, stop=",")
        assert (status, answer["error"]["details"]["field"]) == (422, "stop")
        form = {"regex": "[0-9]{2}(,[0-9]{2})*"}
        status, answer = await ask(world, "acme.one", form=form, stop=",", temperature=3.0, seed=1)
        assert (status, len(answer["text"])) == (200, 2)
        whole = {"choices": ["good film, new"]}
        events = await stream(world, "acme.one", {"prompt": PROMPT, "form": whole, "stop": "plot"})
        assert "".join(data["text"] for _, data in events[:-1]) == events[-1][1]["text"] == "good film, new"
        assert events[-1][1]["finish"] == "end"


async def test_forms_that_cannot_be_kept_are_refused(writing_data: Path) -> None:
    async with server(writing_data) as world:
        for form, field, said in (
            ({}, "form", "needs one of"),
            ({"json": True, "regex": "a"}, "form", "needs one of"),
            ({"choice": ["a"]}, "form.choice", ""),
            ({"choices": "a"}, "form.choices", ""),
            ({"json_schema": {"not": {}}}, "form.json_schema.not", "'not' is not supported"),
            ({"json_schema": {"type": "x"}}, "form.json_schema", "Invalid type"),
            ({"regex": "(a"}, "form.regex", "unclosed group"),
            ({"grammar": "start: foo"}, "form.grammar", "unknown name"),
        ):
            status, answer = await ask(world, "acme.one", form=form)
            assert (status, answer["error"]["details"]["field"]) == (422, field), answer
            assert said in answer["error"]["message"]


@pytest.mark.parametrize("temperature", [0.0, 1.3])
def test_a_guided_choice_is_that_among_the_allowed_words_alone(guides: Any, temperature: float) -> None:
    """Against rows from which each word that may not come was taken by hand, with and without penalties."""
    form = Form(regex="([a-d]|gene|cell|[0-9])+")
    for seed in range(20):
        for penalty in (1.0, 1.2):
            wants = Sampling(temperature, top_p=0.8, repetition_penalty=penalty, seed=seed, logprobs=2)
            guided = Answer(0, [2, 5, 80], 10, frozenset((3,)), sampling=wants, guide=guides.guide(form))
            plain, twin = Answer(0, [2, 5, 80], 10, frozenset((3,)), sampling=wants), guides.guide(form)
            for step in range(8):
                row = row_of(100 * seed + step, size=402)
                by_hand = row.copy()
                twin.look()
                by_hand[[id for id in range(402) if not twin.allows(id)]] = -float("inf")
                chosen, want = guided.take(HostRow(row)), plain.take(HostRow(by_hand))
                assert chosen is not None
                assert want is not None
                assert chosen.id == want.id
                own = guided._sampler.__class__(wants, [2]).choose(HostRow(row))
                assert list(chosen.best) == list(own.best), "log-probabilities are the model's own"
                if guided.ended:
                    break
                twin.take(chosen.id)


async def test_probabilities_of_choices_are_those_of_full_recomputation(writing_data: Path) -> None:
    """A choice's is that of its tokens and an end after the prompt, divided by the sum over all choices."""
    choices = ["good", "good film", "bad plot, new", *(f"gene {i}" for i in range(20))]
    form = {"choices": choices, "probabilities": True}
    async with server(writing_data) as world:
        manager = world.services.manager
        reference, tokenizer = Reference(manager), tokenizer_of(manager)
        version = manager.registry.model(ModelId.parse("acme.one")).live
        prompt = PROMPT * 3
        status, answer, _ = await world.call("POST", "/generate/acme.one", {"prompt": prompt, "form": form})
        assert status == 200, answer
        begun = tokenizer.encode([prompt], 400)[0].ids
        sums, count = [], 0
        for choice in choices:
            ids = [*tokenizer.encode([choice], 99)[0].ids[1:], tokenizer.ends[0]]
            count += len(ids)
            scores = reference.scores(version, [*begun, *ids]).log_softmax(-1)
            sums.append(sum(float(scores[len(begun) + i - 1, id]) for i, id in enumerate(ids)))
        want = torch.tensor(sums).softmax(0)
        assert [each["text"] for each in answer["choices"]] == choices
        got = [each["probability"] for each in answer["choices"]]
        assert sum(got) == pytest.approx(1)
        assert got == pytest.approx(want.tolist(), abs=0.02)
        assert (answer["text"], answer["finish"]) == (choices[got.index(max(got))], "end")
        usage = world.services.monitoring.metrics.usage.of("acme")
        assert (int(usage.inputs), int(usage.tokens)) == (1, len(begun) + count)
        events = await stream(world, "acme.one", {"prompt": prompt, "form": form})
        assert [name for name, _ in events] == ["text", "end"]
        assert events[-1][1]["choices"] == answer["choices"]
        for other in ({"temperature": 1.0}, {"stop": "a"}, {"presence_penalty": 1.0}):
            status, refused = await ask(world, "acme.one", form=form, **other)
            assert (status, refused["error"]["details"]["field"]) == (422, "form.probabilities")
        late = {"prompt": PROMPT, "form": {**form, "choices": [f"gene {i}" for i in range(900)]}}
        status, refused, _ = await world.call("POST", "/generate/acme.one", {**late, "deadline_ms": 200})
        assert status == 504
        writer, *_ = world.services.engine._loader.writers()  # type: ignore[attr-defined]
        while writer.drafts or writer.pages[0]:
            await asyncio.sleep(0.01)


def _tokenizes_no_more(guide: FormGuide) -> None:
    """The root's tokenizer raises what it raises for no text, where a guide looks ahead."""
    ids_of = guide._ids_of
    guide._ids_of = lambda _: ids_of(None)  # type: ignore[arg-type]


def _panics(guide: FormGuide) -> None:
    """The library's tokenizer panics in Rust where it calls back: that is no Exception."""

    from llguidance import LLTokenizer, TokenizerWrapper

    known = guide._tokenizer

    class Words:
        bos_token_id, eos_token_id, special_token_ids = None, 0, (0,)
        tokens = (b" 0", *(known.decode_bytes([id]) for id in range(1, known.vocab_size)))

        def __call__(self, text: str) -> list[int]:
            return [*map(len, [None])]  # type: ignore[list-item, arg-type]

    guide._tokenizer = LLTokenizer(TokenizerWrapper(Words()), n_vocab=known.vocab_size, eos_token=0)


def _has_no_state(guide: FormGuide) -> None:
    """Looking fails, on the thread of guides."""
    guide._matcher = None  # type: ignore[assignment]


@pytest.mark.parametrize("broken", [_tokenizes_no_more, _panics, _has_no_state])
async def test_a_guide_that_raises_ends_its_own_text_alone(
    writing_data: Path, monkeypatch: pytest.MonkeyPatch, broken: Callable[[FormGuide], None]
) -> None:
    """Others of its tenant and of another one, with the same form, are written in the same steps."""
    form = {"json_schema": {"enum": ["good film, good plot", "good film, bad plot"]}}
    asked = [(model, {"max_tokens": 60, "form": form, "seed": i}) for i, model in enumerate(MODELS * 2)]
    made, guide_of = list[FormGuide](), Guides.guide

    def guide(guides: Guides, form: Form) -> FormGuide:
        made.append(guide_of(guides, form))
        if len(made) == 3:
            broken(made[-1])
        return made[-1]

    async with server(writing_data) as world:
        whole = [await ask(world, model, **given) for model, given in asked]
        monkeypatch.setattr(Guides, "guide", guide)
        texts = await asyncio.gather(*(ask(world, model, **given) for model, given in asked))
        assert sorted(status for status, _ in texts) == [*[200] * (len(asked) - 1), 500]
        for (status, answer), (_, wanted) in zip(texts, whole, strict=True):
            if status == 200:
                assert answer["text"] == wanted["text"]
            else:
                assert answer["error"]["kind"] == "internal"
