"""The `openai` package, unmodified, against a real server whose models write."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

from tests.e2e.protocols.protocol_lab import ProtocolServer
from tests.hmi.labs.writing_lab import PROMPT
from tests.hmi.model.test_decoder import tokenizer_of

ONE = "acme.one"
CHAT: Any = [{"role": "system", "content": "be good"}, {"role": "user", "content": PROMPT}]
ASKED = {"max_tokens": 20, "temperature": 1.0}


@pytest.fixture
def client(writing_server: ProtocolServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{writing_server.url}/v1", api_key=writing_server.key, max_retries=0
    ) as client:
        yield client


def test_completions_are_generates_texts(writing_server: ProtocolServer, client: openai.OpenAI) -> None:
    """Two prompts with two texts each, whole and streamed. The second text of a prompt has the next seed."""
    prompts = [PROMPT, "the bad plot"]
    wanted = [
        writing_server.written(ONE, prompt=prompt, seed=seed, logprobs=2, **ASKED)
        for prompt in prompts
        for seed in (7, 8)
    ]
    asked: Any = {"model": ONE, "prompt": prompts, "seed": 7, "n": 2, "logprobs": 2, "max_tokens": 20}
    made = client.completions.create(**asked)
    assert [choice.text for choice in made.choices] == [text["text"] for text in wanted]
    assert [choice.index for choice in made.choices] == [0, 1, 2, 3]
    assert len({choice.text for choice in made.choices}) == 4
    for choice, text in zip(made.choices, wanted, strict=True):
        told = choice.logprobs
        assert told is not None
        assert told.tokens == [token["token"] for token in text["logprobs"]]
        assert told.token_logprobs == pytest.approx(
            [token["logprob"] for token in text["logprobs"]], abs=1e-4
        )
        assert told.text_offset is not None
        assert told.text_offset[:2] == [0, len(told.tokens[0])]
        for best, token, theirs in zip(told.top_logprobs or (), told.tokens, text["logprobs"], strict=True):
            assert best.keys() == {token, *(each["token"] for each in theirs["top"])}
    assert made.usage is not None
    assert made.usage.prompt_tokens == sum(text["usage"]["prompt_tokens"] for text in wanted[::2])
    assert made.usage.completion_tokens == sum(text["usage"]["written_tokens"] for text in wanted)
    assert made.system_fingerprint == "v1"
    texts, ends = [""] * 4, [""] * 4
    for chunk in client.completions.create(**asked, stream=True):
        for part in chunk.choices:
            assert not ends[part.index], "nothing follows the end of a text"
            texts[part.index] += part.text
            ends[part.index] = part.finish_reason or ""
    assert texts == [text["text"] for text in wanted]
    assert ends == [choice.finish_reason for choice in made.choices]


def test_prompts_may_be_tokens(writing_server: ProtocolServer, client: openai.OpenAI) -> None:
    """Ids of the source's tokenizer, here its own copy. They may begin with the begin token, and be empty."""
    source = tokenizer_of()
    prompts = [PROMPT, "the bad plot", ""]
    ids = [source.encode(prompt).ids for prompt in prompts]
    asked: Any = {"model": ONE, "max_tokens": 9, "temperature": 0}
    wanted = [writing_server.written(ONE, prompt=prompt, max_tokens=9)["text"] for prompt in prompts]
    for given in (prompts, ids, [[1, *each] for each in ids]):
        made = client.completions.create(**asked, prompt=given)
        assert [choice.text for choice in made.choices] == wanted
    for prompt, tokens, text in zip(prompts, ids, wanted, strict=True):
        for alone in (prompt, tokens):
            if alone != []:  # which is a list of no prompts
                assert client.completions.create(**asked, prompt=alone).choices[0].text == text


def test_chats_are_generates_texts(writing_server: ProtocolServer, client: openai.OpenAI) -> None:
    wanted = writing_server.written(ONE, messages=CHAT, seed=3, logprobs=1, **ASKED)
    asked: Any = {"model": ONE, "messages": CHAT, "seed": 3, "logprobs": True, "top_logprobs": 1}
    made = client.chat.completions.create(**asked, max_completion_tokens=20, user="someone")
    (choice,) = made.choices
    assert (choice.message.role, choice.message.content) == ("assistant", wanted["text"])
    assert choice.finish_reason == {"end": "stop"}.get(wanted["finish"], wanted["finish"])
    assert choice.logprobs is not None
    for mine, theirs in zip(choice.logprobs.content or (), wanted["logprobs"], strict=True):
        assert (mine.token, mine.top_logprobs[0].token) == (theirs["token"], theirs["top"][0]["token"])
        assert mine.bytes in (None, list(mine.token.encode()))
    cached = (
        made.usage and made.usage.prompt_tokens_details and made.usage.prompt_tokens_details.cached_tokens
    )
    assert cached == 16 * ((wanted["usage"]["prompt_tokens"] - 1) // 16) > 0
    stream = client.chat.completions.create(
        **asked, max_tokens=20, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = list(stream)
    assert last.choices == []
    assert last.usage == made.usage
    assert {chunk.usage for chunk in chunks} == {None}
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == wanted["text"]
    assert chunks[-1].choices[0].finish_reason == choice.finish_reason
    parts = [
        {
            "role": "user",
            "content": [{"type": "text", "text": PROMPT[:9]}, {"type": "text", "text": PROMPT[9:]}],
        }
    ]
    again = client.chat.completions.create(**{**asked, "messages": [CHAT[0], *parts]}, max_tokens=20)
    assert again.choices[0].message.content == wanted["text"]


class Review(BaseModel):
    good: bool
    stars: Literal[1, 2, 3]


def test_response_formats_are_generates_forms(writing_server: ProtocolServer, client: openai.OpenAI) -> None:
    pytest.importorskip("llguidance", reason="the [structured] extra is not installed")
    asked: Any = {"model": ONE, "messages": CHAT, "seed": 3, "max_tokens": 60}
    parsed = client.chat.completions.parse(**asked, response_format=Review).choices[0]
    assert parsed.message.parsed is not None
    assert parsed.message.parsed.stars in (1, 2, 3)
    assert parsed.finish_reason == "stop"
    schema = {"enum": ["good", "bad", "plot"]}
    wanted = writing_server.written(
        ONE, messages=CHAT, seed=3, max_tokens=60, temperature=1.0, form={"json_schema": schema}
    )
    form: Any = {"type": "json_schema", "json_schema": {"name": "word", "schema": schema}}
    stream = client.chat.completions.create(**asked, response_format=form, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == wanted["text"]
    plain = client.chat.completions.create(**asked, response_format={"type": "text"})
    assert (
        plain.choices[0].message.content == client.chat.completions.create(**asked).choices[0].message.content
    )
    with pytest.raises(openai.BadRequestError, match="does not keep its form"):
        client.chat.completions.create(**{**asked, "max_tokens": 1}, response_format={"type": "json_object"})


def test_completions_keep_forms_too(writing_server: ProtocolServer, client: openai.OpenAI) -> None:
    """Each of several prompts keeps it. A form is no field of OpenAI's completions."""
    pytest.importorskip("llguidance", reason="the [structured] extra is not installed")
    prompts, form = [PROMPT, "the bad plot"], {"json_schema": {"enum": ["good", "bad", "plot"]}}
    wanted = [
        writing_server.written(ONE, prompt=prompt, seed=3, form=form, **ASKED)["text"] for prompt in prompts
    ]
    given = {"type": "json_schema", "json_schema": {"name": "word", "schema": form["json_schema"]}}
    asked: Any = {"model": ONE, "prompt": prompts, "seed": 3, "max_tokens": 20}
    made = client.completions.create(**asked, extra_body={"response_format": given})
    assert [choice.text for choice in made.choices] == wanted
    assert {*wanted} <= {'"good"', '"bad"', '"plot"'}
    asked |= {"max_tokens": 1, "extra_body": {"response_format": {"type": "json_object"}}}
    with pytest.raises(openai.BadRequestError, match="does not keep its form") as failed:
        client.completions.create(**asked)
    assert failed.value.param == "max_tokens"


def test_stop_and_temperature(writing_server: ProtocolServer, client: openai.OpenAI) -> None:
    greedy = writing_server.written(ONE, prompt=PROMPT, max_tokens=20)
    made = client.completions.create(model=ONE, prompt=PROMPT, max_tokens=20, temperature=0)
    assert made.choices[0].text == greedy["text"]
    stop = greedy["text"][6:9]
    cut = client.completions.create(model=ONE, prompt=PROMPT, max_tokens=20, temperature=0, stop=[stop])
    assert cut.choices[0].text == greedy["text"][: greedy["text"].index(stop)]
    assert cut.choices[0].finish_reason == "stop"
    short = client.completions.create(model=ONE, prompt=PROMPT, temperature=0)
    assert short.usage is not None
    assert short.usage.completion_tokens <= 16, "OpenAI's default"
    drawn = {client.completions.create(model=ONE, prompt=PROMPT).choices[0].text for _ in range(3)}
    assert len(drawn) > 1, "OpenAI's default temperature is 1, and seeds are drawn"


@pytest.mark.parametrize(
    ("given", "error", "param", "says"),
    [
        ({"tools": [{"type": "function"}]}, openai.BadRequestError, "tools", "call no tools"),
        ({"tool_choice": "required"}, openai.BadRequestError, "tool_choice", "call no tools"),
        ({"functions": [{"name": "a"}]}, openai.BadRequestError, "functions", "call no tools"),
        ({"response_format": {"type": "xml"}}, openai.BadRequestError, "response_format.type", "json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"not": {}}}}},
            openai.BadRequestError,
            "response_format.json_schema.schema.not",
            "'not' is not supported",
        ),
        ({"logit_bias": {"1": 1}}, openai.BadRequestError, "logit_bias", "not served"),
        ({"top_logprobs": 2}, openai.BadRequestError, "top_logprobs", "set logprobs"),
        ({"max_tokens": 3, "max_completion_tokens": 3}, openai.BadRequestError, "max_tokens", "one of them"),
        ({"stream_options": {}}, openai.BadRequestError, "stream_options", "set stream"),
        ({"max_tokens": 511}, openai.BadRequestError, "max_tokens", "do not fit into the 512"),
        (
            {"max_completion_tokens": 511},
            openai.BadRequestError,
            "max_completion_tokens",
            "or lower max_comp",
        ),
        ({"modalities": ["audio"]}, openai.BadRequestError, "modalities[0]", "text"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a"}}]}]},
            openai.BadRequestError,
            "messages[0].content[0].image_url",
            "read text only",
        ),
        (
            {"messages": [{"role": "tool", "content": "a"}]},
            openai.BadRequestError,
            "messages[0].role",
            "'tool'",
        ),
        ({"n": 129}, openai.BadRequestError, "n", "at most 128"),
        ({"model": "gpt-4o"}, openai.NotFoundError, "model", "tenant.model"),
        ({"model": "beta.one"}, openai.NotFoundError, "model", "no model"),
    ],
)
def test_what_is_not_there_is_refused_by_name(
    client: openai.OpenAI, given: dict[str, Any], error: type[openai.APIStatusError], param: str, says: str
) -> None:
    for stream in ({"stream": True}, {}):
        if "stream_options" in given and stream:
            continue
        with pytest.raises(error) as caught:
            client.chat.completions.create(**{"model": ONE, "messages": CHAT, **stream, **given})
        assert caught.value.param == param
        assert says in caught.value.message


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"prompt": [1, "a"]}, "prompt[1]"),
        ({"prompt": [True]}, "prompt[0]"),
        ({"prompt": [[1], [1, 10**6]]}, "prompt[1][1]"),
        ({"prompt": [1, 10**6]}, "prompt[1]"),
        ({"prompt": []}, "prompt"),
        ({"prompt": {"text": "a"}}, "prompt"),
        ({"prompt": [PROMPT, "a " * 600]}, "prompt[1]"),
        ({"prompt": "a " * 600}, "prompt"),
        ({"prompt": [PROMPT] * 65, "n": 2}, "n"),
        ({"prompt": [PROMPT] * 129}, "prompt"),
        ({"best_of": 2}, "best_of"),
        ({"echo": True}, "echo"),
        ({"suffix": "a"}, "suffix"),
    ],
)
def test_completions_refuse_by_name(client: openai.OpenAI, given: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        client.completions.create(**{"model": ONE, "prompt": PROMPT, **given})
    assert (caught.value.param, caught.value.status_code in (400, 413)) == (param, True)


def test_models_say_what_they_do(client: openai.OpenAI) -> None:
    listed = {model.id: model.model_dump() for model in client.models.list()}
    assert listed[ONE]["task"] == "generation"
    assert listed[ONE]["calls"] == ["/v1/completions", "/v1/chat/completions"]
    assert "beta.one" not in listed
