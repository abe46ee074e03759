"""The `ollama` package, unmodified, against a real server whose models write."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import pytest

from tests.e2e.protocols.protocol_lab import ProtocolServer
from tests.hmi.labs.writing_lab import PROMPT

ollama: Any = pytest.importorskip("ollama", reason="the [peers] extra is not installed")
ONE = "acme.one"
CHAT = [{"role": "system", "content": "be good"}, {"role": "user", "content": PROMPT}]
ASKED = {"temperature": 0.9, "top_k": 50, "top_p": 0.95, "min_p": 0.01, "seed": 7}
OTHERS = {"presence_penalty": 0.3, "frequency_penalty": 0.2}


def client_of(server: ProtocolServer, key: str | None = None) -> Any:
    return ollama.Client(host=server.url, headers={"Authorization": f"Bearer {key or server.key}"})


def test_texts_are_those_of_generate(writing_server: ProtocolServer) -> None:
    """A prompt is a user's message unless it is raw, whole and line by line."""
    client = client_of(writing_server)
    options = {**ASKED, **OTHERS, "repeat_penalty": 1.2, "num_predict": 20, "num_ctx": 2048}
    same = {**ASKED, **OTHERS, "repetition_penalty": 1.2, "max_tokens": 20}
    for raw, given in (
        (True, {"prompt": PROMPT}),
        (False, {"messages": [{"role": "user", "content": PROMPT}]}),
    ):
        wanted = writing_server.written(ONE, **given, **same)
        asked = {"model": ONE, "prompt": PROMPT, "raw": raw, "options": options, "keep_alive": "5m"}
        made = client.generate(**asked)
        assert made.response == wanted["text"]
        assert (made.model, made.done) == (ONE, True)
        assert made.done_reason == ("length" if wanted["finish"] == "length" else "stop")
        assert made.prompt_eval_count == wanted["usage"]["prompt_tokens"]
        assert made.eval_count == wanted["usage"]["written_tokens"]
        spent = made.load_duration + made.prompt_eval_duration + made.eval_duration
        assert 1e5 < spent < made.total_duration < 60e9, "nanoseconds"
        *pieces, end = client.generate(**asked, stream=True)
        assert "".join(piece.response for piece in pieces) == wanted["text"]
        assert [piece.done for piece in pieces] == [False] * len(pieces)
        assert (end.response, end.done, end.done_reason) == ("", True, made.done_reason)
        assert end.eval_count == made.eval_count


def test_chats_are_those_of_generate(writing_server: ProtocolServer) -> None:
    client = client_of(writing_server)
    wanted = writing_server.written(ONE, messages=CHAT, max_tokens=20, **ASKED)
    asked = {"model": f"{ONE}:latest", "messages": CHAT, "options": {**ASKED, "num_predict": 20}}
    made = client.chat(**asked)
    assert (made.message.role, made.message.content) == ("assistant", wanted["text"])
    *pieces, end = client.chat(**asked, stream=True)
    assert "".join(piece.message.content for piece in pieces) == wanted["text"]
    assert (end.done, end.eval_count) == (True, wanted["usage"]["written_tokens"])


def test_defaults_and_stops(writing_server: ProtocolServer) -> None:
    client = client_of(writing_server)
    wanted = writing_server.written(ONE, prompt=PROMPT, temperature=0.8, top_k=40, top_p=0.9, seed=3)
    for most in ({}, {"num_predict": -1}):
        made = client.generate(ONE, PROMPT, raw=True, options={"seed": 3, **most})
        assert made.response == wanted["text"], "Ollama's defaults, and HMI's of max_tokens"
    drawn = {client.generate(ONE, PROMPT, raw=True, options={"seed": -1}).response for _ in range(3)}
    assert len(drawn) > 1
    greedy = writing_server.written(ONE, prompt=PROMPT, max_tokens=20)["text"]
    options = {"temperature": 0, "num_predict": 20, "stop": [greedy[6:9]]}
    *pieces, end = client.generate(ONE, PROMPT, raw=True, options=options, stream=True)
    assert "".join(piece.response for piece in pieces) == greedy[: greedy.index(greedy[6:9])]
    assert end.done_reason == "stop"


def test_formats_are_generates_forms(writing_server: ProtocolServer) -> None:
    pytest.importorskip("llguidance", reason="the [structured] extra is not installed")
    client, schema = client_of(writing_server), {"enum": ["good", "bad", "plot"]}
    options = {"temperature": 0, "num_predict": 30}
    wanted = writing_server.written(ONE, messages=CHAT, max_tokens=30, form={"json_schema": schema})
    assert client.chat(ONE, CHAT, format=schema, options=options).message.content == wanted["text"]
    plain = client.chat(ONE, CHAT, options=options).message.content
    assert client.chat(ONE, CHAT, format="", options=options).message.content == plain
    cut = {**options, "num_predict": 1}
    with pytest.raises(ollama.ResponseError, match=r"raise options\.num_predict") as failed:
        client.generate(ONE, PROMPT, format="json", options=cut)
    assert failed.value.status_code == 400
    with pytest.raises(ollama.ResponseError, match=r"raise options\.num_predict"):
        list(client.generate(ONE, PROMPT, format="json", options=cut, stream=True))


def test_models_are_listed_and_shown_to_those_who_reach_them(writing_server: ProtocolServer) -> None:
    found = client_of(writing_server).list().models
    assert [model.model for model in found] == [ONE, "acme.two"]
    assert all(model.size and len(model.digest) == 64 and model.modified_at for model in found)
    everything = client_of(writing_server, writing_server.admin_key).list().models
    assert [model.model for model in everything] == [ONE, "acme.two", "beta.one"]
    shown = client_of(writing_server).show(ONE)
    assert (shown.capabilities, shown.details.parent_model) == (["completion"], "tiny")
    assert shown.modelinfo["hmi.version"] == 1
    with urllib.request.urlopen(f"{writing_server.url}/api/version") as answer:
        assert json.load(answer)["version"]


def test_a_tenant_reaches_its_own_models_alone(writing_server: ProtocolServer) -> None:
    client = client_of(writing_server)
    for model in ("beta.one", "llama3.2", "acme.none"):
        for ask in (client.show, lambda m: client.generate(m, PROMPT), lambda m: client.chat(m, CHAT)):
            with pytest.raises(ollama.ResponseError, match="there is no model") as failed:
                ask(model)
            assert failed.value.status_code == 404
    with pytest.raises(ollama.ResponseError) as failed:
        client_of(writing_server, "hmi_" + "a" * 43).list()
    assert failed.value.status_code == 401


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"system": "be good"}, r"system: is not served: send it as a message of POST /api/chat"),
        ({"template": "{{ .Prompt }}"}, r"template: is not served: .* raw"),
        ({"context": [1, 2]}, r"context: is not served: send the whole prompt"),
        ({"suffix": "end"}, r"suffix: is not served"),
        ({"images": [b"abcd"]}, r"images: is not served: models here read text only"),
        ({"think": True}, r"think: is not served"),
        ({"options": {"mirostat": 1}}, r"options\.mirostat"),
        ({"options": {"temperature": -1}}, r"options\.temperature"),
        ({"options": {"num_predict": 511}}, r"do not fit into the 512.* or lower options\.num_predict"),
        ({"format": {"not": {}}}, r"format\.not: .*'not' is not supported"),
        ({"prompt": "a <|end|> b"}, r"prompt holds the name of a special token"),
        ({"prompt": None}, r"prompt"),
        ({"think": False, "suffix": "", "system": "", "context": [], "keep_alive": 0}, None),
    ],
)
def test_what_is_not_there_is_refused_by_name(
    writing_server: ProtocolServer, given: dict[str, Any], says: str | None
) -> None:
    client, asked = client_of(writing_server), {"model": ONE, "prompt": PROMPT, **given}
    if says is None:
        assert client.generate(**asked).done
        return
    with pytest.raises(ollama.ResponseError, match=says) as failed:
        client.generate(**asked)
    assert failed.value.status_code == 400
    with pytest.raises(ollama.ResponseError, match=says):
        list(client.generate(**asked, stream=True))


def test_chats_refuse_tools(writing_server: ProtocolServer) -> None:
    client, called = client_of(writing_server), {"function": {"name": "a", "arguments": {}}}
    for given, says in (
        ({"tools": [{"type": "function", "function": {"name": "a"}}]}, "tools: is not served"),
        ({"messages": [{"role": "assistant", "tool_calls": [called]}]}, r"messages\[0\]\.tool_calls"),
        ({"messages": [{"role": "tool", "content": "1"}]}, r"messages\[0\]\.role"),
    ):
        with pytest.raises(ollama.ResponseError, match=says):
            client.chat(**{"model": ONE, "messages": CHAT, **given})


def test_a_stream_is_lines_of_json_and_an_error_has_ollamas_form(writing_server: ProtocolServer) -> None:
    """Without `stream`, a text is a stream."""

    def asked(body: dict[str, Any], path: str = "/api/generate") -> tuple[int, str, str]:
        headers = {"Authorization": f"Bearer {writing_server.key}", "Content-Type": "application/json"}
        request = urllib.request.Request(writing_server.url + path, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request) as answer:
                return answer.status, answer.headers["Content-Type"], answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.headers["Content-Type"], error.read().decode()

    status, media, text = asked({"model": ONE, "prompt": PROMPT, "options": {"num_predict": 5}})
    assert (status, media) == (200, "application/x-ndjson")
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    for body, path in (({"model": ONE}, "/api/generate"), ({"name": ONE}, "/api/pull")):
        status, media, text = asked(body, path)
        assert status == (400 if path == "/api/generate" else 404)
        assert json.loads(text).keys() == {"error"}
