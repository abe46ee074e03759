"""huggingface_hub's InferenceClient, unmodified, against a real server whose models write."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from huggingface_hub import InferenceClient, constants
from huggingface_hub.errors import HfHubHTTPError, TextGenerationError
from huggingface_hub.utils import reset_sessions

from tests.e2e.protocols.protocol_lab import ProtocolServer
from tests.hmi.labs.writing_lab import PROMPT

ONE = "acme.one"
CHAT = [{"role": "user", "content": PROMPT}]


@pytest.fixture(autouse=True)
def online(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the client connect. The tests run with the hub switched off, and that also refuses loopback."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    reset_sessions()
    yield
    reset_sessions()


def client_of(server: ProtocolServer, place: str = "hf", model: str = ONE) -> InferenceClient:
    return InferenceClient(model=f"{server.url}/{place}/{model}", token=server.key)


@pytest.mark.parametrize("place", ["hf", "infer"])
def test_texts_are_those_of_generate(writing_server: ProtocolServer, place: str) -> None:
    client = client_of(writing_server, place)
    asked: dict[str, Any] = {"max_new_tokens": 20, "temperature": 0.9, "top_k": 50, "seed": 7}
    wanted = writing_server.written(
        ONE, prompt=PROMPT, max_tokens=20, temperature=0.9, top_k=50, seed=7, logprobs=0
    )
    assert client.text_generation(PROMPT, **asked) == wanted["text"]
    assert client.text_generation(PROMPT, **asked, return_full_text=True) == PROMPT + wanted["text"]
    whole = client.text_generation(PROMPT, **asked, details=True)
    assert whole.generated_text == wanted["text"]
    details = whole.details
    assert details is not None
    reasons = {"end": "eos_token", "stop": "stop_sequence", "length": "length"}
    assert (details.finish_reason, details.seed) == (reasons[wanted["finish"]], 7)
    assert details.generated_tokens == wanted["usage"]["written_tokens"]
    assert [token.text for token in details.tokens] == [token["token"] for token in wanted["logprobs"]]
    assert "".join(client.text_generation(PROMPT, **asked, stream=True)) == wanted["text"]
    events = list(client.text_generation(PROMPT, **asked, details=True, stream=True))
    assert [event.token.id for event in events] == [token.id for token in details.tokens]
    assert [event.index for event in events] == list(range(1, len(events) + 1))
    assert [event.generated_text for event in events] == [None] * (len(events) - 1) + [wanted["text"]]
    assert events[-1].details is not None
    assert events[-1].details.finish_reason == details.finish_reason
    assert [event.token.special for event in events[:-1]] == [False] * (len(events) - 1)


def test_defaults_and_stops(writing_server: ProtocolServer) -> None:
    client = client_of(writing_server)
    greedy = writing_server.written(ONE, prompt=PROMPT, max_tokens=100)
    assert client.text_generation(PROMPT) == greedy["text"]
    drawn = writing_server.written(ONE, prompt=PROMPT, max_tokens=20, temperature=1, seed=1)
    assert client.text_generation(PROMPT, do_sample=True, seed=1, max_new_tokens=20) == drawn["text"]
    stop = greedy["text"][6:9]
    cut = client.text_generation(PROMPT, stop=[stop], details=True)
    assert cut.generated_text == greedy["text"][: greedy["text"].index(stop)]
    assert cut.details is not None
    assert cut.details.finish_reason == "stop_sequence"
    pieces = list(client.text_generation(PROMPT, stop=[stop], stream=True))
    assert "".join(pieces) == cut.generated_text, "no part of a stop string"


def test_chats(writing_server: ProtocolServer) -> None:
    wanted = writing_server.written(ONE, messages=CHAT, max_tokens=20, temperature=1, seed=7)
    for client, named in (
        (client_of(writing_server), {}),
        (InferenceClient(base_url=writing_server.url, api_key=writing_server.key), {"model": ONE}),
    ):
        asked: dict[str, Any] = {"messages": CHAT, "max_tokens": 20, "seed": 7, **named}
        made = client.chat_completion(**asked)
        assert made.choices[0].message.content == wanted["text"]
        assert made.usage.completion_tokens == wanted["usage"]["written_tokens"]
        chunks = list(client.chat_completion(**asked, stream=True))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == wanted["text"]
        assert chunks[-1].choices[0].finish_reason == made.choices[0].finish_reason


def test_grammars_are_generates_forms(writing_server: ProtocolServer) -> None:
    pytest.importorskip("llguidance", reason="the [structured] extra is not installed")
    client, schema = client_of(writing_server), {"enum": ["good", "bad", "plot"]}
    for given, form in (
        ({"type": "json", "value": schema}, {"json_schema": schema}),
        ({"type": "regex", "value": "[a-f]{3}"}, {"regex": "[a-f]{3}"}),
    ):
        wanted = writing_server.written(ONE, prompt=PROMPT, max_tokens=100, form=form)
        assert client.text_generation(PROMPT, grammar=given) == wanted["text"]  # type: ignore[call-overload]
        assert "".join(client.text_generation(PROMPT, grammar=given, stream=True)) == wanted["text"]  # type: ignore[call-overload]
    named = {"type": "json_schema", "json_schema": {"name": "word", "schema": schema}}
    made = client.chat_completion(CHAT, response_format=named, max_tokens=30)  # type: ignore[arg-type]
    assert json.loads(made.choices[0].message.content or "") in schema["enum"]


def test_what_is_not_there_is_refused_by_name(writing_server: ProtocolServer) -> None:
    client = client_of(writing_server)
    for given, says in (
        ({"best_of": 2}, "parameters.best_of"),
        ({"truncate": 5}, "parameters.truncate"),
        ({"typical_p": 0.5}, "parameters.typical_p"),
        ({"watermark": True}, "parameters.watermark"),
        ({"grammar": {"type": "regex", "value": {}}}, "parameters.grammar"),
        ({"grammar": {"type": "json"}}, "parameters.grammar"),
        ({"adapter_id": "other"}, "parameters.adapter_id"),
        ({"grammar": {"type": "json", "value": {"not": {}}}}, "parameters.grammar.value.not: "),
        ({"grammar": {"type": "regex", "value": "a{9}"}, "max_new_tokens": 1}, "raise parameters.max_new_"),
        ({"max_new_tokens": 511}, "do not fit into the 512.* or lower parameters.max_new_tokens"),
        ({"top_k": 2**40}, "parameters.top_k"),
    ):
        for stream in (False, True):
            with pytest.raises(TextGenerationError, match=says):
                client.text_generation(PROMPT, **given, stream=stream)  # type: ignore[call-overload]
    with pytest.raises(TextGenerationError, match=r"inputs has \d+ tokens"):
        client.text_generation("a " * 600)
    with pytest.raises(TextGenerationError, match="no model"):
        client_of(writing_server, model="beta.one").text_generation(PROMPT)
    with pytest.raises(HfHubHTTPError, match="call no tools"):
        client.chat_completion(CHAT, tools=[{"type": "function", "function": {"name": "a"}}])  # type: ignore[list-item]


def test_the_calls_of_text_generation_inference(writing_server: ProtocolServer) -> None:
    wanted = writing_server.written(ONE, prompt=PROMPT, max_tokens=8)
    empty = writing_server.written(ONE, prompt="", max_tokens=8)
    for prompt, text in ((PROMPT, wanted["text"]), ("", empty["text"])):
        body = {"inputs": prompt, "parameters": {"max_new_tokens": 8}}
        assert writing_server.post(f"/hf/{ONE}/generate", body)["generated_text"] == text
    body["inputs"] = PROMPT
    request = urllib.request.Request(
        f"{writing_server.url}/hf/{ONE}/generate_stream",
        json.dumps(body).encode(),
        {"Authorization": f"Bearer {writing_server.key}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        events = answer.read().decode().strip().split("\n\n")
    assert json.loads(events[-1].removeprefix("data:"))["generated_text"] == wanted["text"]
