"""The Open Inference Protocol's extension for texts, against a real server whose models write."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import pytest
import tritonclient.http as triton

from tests.e2e.protocols.protocol_lab import ProtocolServer
from tests.hmi.labs.writing_lab import PROMPT

MODEL = "/v2/models/acme.one"
DRAWN = {"max_tokens": 12, "temperature": 1.0, "seed": 4}


def post(server: ProtocolServer, path: str, body: Any) -> tuple[int, str, str]:
    """The status, media type and text of an answer."""
    headers = {"Authorization": f"Bearer {server.key}", "Content-Type": "application/json"}
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.headers.get_content_type(), answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers.get_content_type(), error.read().decode()


@pytest.mark.parametrize("version", ["", "/versions/1"])
def test_texts_are_those_of_generate(writing_server: ProtocolServer, version: str) -> None:
    wanted = writing_server.written("acme.one", prompt=PROMPT, **DRAWN)
    about = {"model_name": "acme.one", "model_version": "1", "id": "mine"}
    for body in ({"parameters": DRAWN}, DRAWN, {**DRAWN, "seed": 5, "parameters": {"seed": 4}}):
        asked = {"text_input": PROMPT, "id": "mine", **body}
        status, media, text = post(writing_server, f"{MODEL}{version}/generate", asked)
        assert (status, media) == (200, "application/json")
        assert json.loads(text) == {"text_output": wanted["text"], "choices": None, **about}
    status, media, text = post(writing_server, f"{MODEL}{version}/generate_stream", asked)
    assert (status, media) == (200, "text/event-stream")
    pieces = [json.loads(event.removeprefix("data: ")) for event in text.strip().split("\n\n")]
    assert "".join(piece["text_output"] for piece in pieces) == wanted["text"]
    assert [piece["done"] for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert all(piece.items() >= about.items() for piece in pieces)


def test_a_form_is_kept(writing_server: ProtocolServer) -> None:
    pytest.importorskip("llguidance", reason="the [structured] extra is not installed")
    form = {"choices": ["good film", "bad plot"]}
    asked = {"text_input": PROMPT, "parameters": {"form": form}}
    answer = json.loads(post(writing_server, f"{MODEL}/generate", asked)[2])
    assert answer["text_output"] in form["choices"]


def test_defaults(writing_server: ProtocolServer) -> None:
    for prompt in (PROMPT, ""):
        wanted = writing_server.written("acme.one", prompt=prompt, max_tokens=20)
        asked = {"text_input": prompt, "stream": False}
        answer = json.loads(post(writing_server, f"{MODEL}/generate", asked)[2])
        assert answer["text_output"] == wanted["text"]


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        (f"{MODEL}/generate", {}, 422, "text_input is missing"),
        (f"{MODEL}/generate_stream", {"text_input": PROMPT, "parameters": {"best_of": 2}}, 422, "best_of"),
        (f"{MODEL}/generate", {"text_input": PROMPT, "parameters": {"top_p": 2}}, 422, "parameters.top_p: "),
        (f"{MODEL}/generate", {"text_input": PROMPT, "top_k": 2**40}, 422, "top_k: "),
        (f"{MODEL}/generate", {"text_input": PROMPT, "max_tokens": 511}, 422, "512 that acme.one reads and"),
        (f"{MODEL}/generate", {"text_input": PROMPT, "max_tokens": 511}, 422, "or lower max_tokens"),
        (
            f"{MODEL}/generate",
            {"text_input": PROMPT, "parameters": {"max_tokens": 511}},
            422,
            "or lower parameters.max_tokens",
        ),
        (f"{MODEL}/generate", {"text_input": "a " * 600}, 422, "text_input has"),
        (
            f"{MODEL}/generate",
            {"text_input": PROMPT, "parameters": {"form": {"choices": []}}},
            422,
            "parameters.form.choices must have",
        ),
        (f"{MODEL}/generate", {"text_input": PROMPT, "form": {}}, 422, "form needs one of"),
        (f"{MODEL}/versions/9/generate", {"text_input": PROMPT}, 404, "no version"),
        ("/v2/models/beta.one/generate", {"text_input": PROMPT}, 404, "no model"),
        (
            f"{MODEL}/infer",
            {"inputs": [{"name": "TEXT", "shape": [1], "datatype": "BYTES", "data": ["a"]}]},
            422,
            "generate",
        ),
    ],
)
def test_what_cannot_be_written_says_why(
    writing_server: ProtocolServer, path: str, body: Any, status: int, says: str
) -> None:
    got, media, text = post(writing_server, path, body)
    assert (got, media, list(json.loads(text))) == (status, "application/json", ["error"])
    assert says in json.loads(text)["error"]


def test_a_model_that_writes_is_described(writing_server: ProtocolServer) -> None:
    client = triton.InferenceServerClient(writing_server.url.removeprefix("http://"))
    headers = {"authorization": f"Bearer {writing_server.key}"}
    about = client.get_model_metadata("acme.one", headers=headers)
    assert about["inputs"] == [{"name": "text_input", "datatype": "BYTES", "shape": [1]}]
    assert about["outputs"] == [{"name": "text_output", "datatype": "BYTES", "shape": [1]}]
    assert client.get_model_config("acme.one", headers=headers)["parameters"]["task"]
    assert "generate" in client.get_server_metadata()["extensions"]
    client.close()
