"""The `openai` package, unmodified, against a real server: models, embeddings, refusals of generation."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.e2e.protocols.protocol_lab import EMBED, MOOD, OTHERS, ProtocolServer

TEXTS = ["the market is good", "cell gene protein", "bad stock price"]


def client_of(server: ProtocolServer, key: str | None = None) -> openai.OpenAI:
    """A client that does not repeat refused requests, so that a test sees the first answer."""
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key or server.key, max_retries=0)


@pytest.fixture
def client(protocol_server: ProtocolServer) -> Iterator[openai.OpenAI]:
    with client_of(protocol_server) as client:
        yield client


def natively(server: ProtocolServer, texts: list[str]) -> list[list[float]]:
    return [output["embedding"] for output in server.native(EMBED, texts)["outputs"]]


@pytest.mark.parametrize("form", ["float", "base64", None])
def test_embeddings_are_those_of_infer(
    protocol_server: ProtocolServer, client: openai.OpenAI, form: Any
) -> None:
    given = {} if form is None else {"encoding_format": form}
    made = client.embeddings.create(model=EMBED, input=TEXTS, **given)
    vectors = [item.embedding for item in made.data]
    if form == "base64":  # the client decodes it only if the form was left to it
        assert all(isinstance(vector, str) for vector in vectors)
        return
    for vector, wanted in zip(vectors, natively(protocol_server, TEXTS), strict=True):
        assert vector == pytest.approx(wanted, abs=1e-6)
    assert [item.index for item in made.data] == [0, 1, 2]
    assert made.usage.prompt_tokens == made.usage.total_tokens
    alone = client.embeddings.create(model=EMBED, input=TEXTS[0], **given)
    assert alone.data[0].embedding == pytest.approx(vectors[0], abs=1e-5)
    twice = client.embeddings.create(model=EMBED, input=[TEXTS[0]] * 2, **given)
    assert twice.usage.total_tokens == 2 * alone.usage.total_tokens
    longer = client.embeddings.create(model=EMBED, input=f"{TEXTS[0]} stock", **given)
    assert longer.usage.total_tokens > alone.usage.total_tokens, "tokens are counted, not texts"


async def test_the_asynchronous_client(protocol_server: ProtocolServer) -> None:
    async with openai.AsyncOpenAI(
        base_url=f"{protocol_server.url}/v1", api_key=protocol_server.key
    ) as client:
        made = await client.embeddings.create(model=EMBED, input=TEXTS)
        names = [model.id async for model in client.models.list()]
    assert [item.embedding for item in made.data] == [
        pytest.approx(wanted, abs=1e-6) for wanted in natively(protocol_server, TEXTS)
    ]
    assert EMBED in names


@pytest.mark.parametrize(
    ("given", "error", "code", "param", "says"),
    [
        ({"input": [1, 2, 3]}, openai.BadRequestError, "invalid_input", "input", "tokens are not read"),
        ({"input": [[1, 2], [3]]}, openai.BadRequestError, "invalid_input", "input", "ctx_length=False"),
        ({"input": "a", "dimensions": 7}, openai.BadRequestError, "invalid_input", "dimensions", "leave"),
        ({"input": ["a", " "]}, openai.BadRequestError, "invalid_input", "input[1]", "blank"),
        ({"input": "a", "model": "gpt-4o"}, openai.NotFoundError, "model_not_found", "model", "tenant.model"),
        ({"input": "a", "model": OTHERS}, openai.NotFoundError, "model_not_found", "model", "no model"),
        ({"input": "a", "model": "acme.none"}, openai.NotFoundError, "model_not_found", "model", "no model"),
        ({"input": "a", "model": MOOD}, openai.BadRequestError, "invalid_input", "model", "classification"),
        ({"input": ["a"] * 1025}, openai.APIStatusError, "too_large", "input", "1024 inputs"),
    ],
)
def test_what_cannot_be_embedded_says_why(
    client: openai.OpenAI,
    given: dict[str, Any],
    error: type[openai.APIStatusError],
    code: str,
    param: str,
    says: str,
) -> None:
    with pytest.raises(error) as caught:
        client.embeddings.create(**{"model": EMBED, **given})
    assert (caught.value.code, caught.value.param) == (code, param)
    assert says in caught.value.message
    assert caught.value.type == "invalid_request_error"


def test_generation_is_refused_with_what_to_use_instead(client: openai.OpenAI) -> None:
    said = [{"role": "user", "content": "hello"}]
    with pytest.raises(openai.BadRequestError, match=f"not a generative model.*POST /infer/{MOOD}"):
        client.chat.completions.create(model=MOOD, messages=said, temperature=0.5, stream=True)  # type: ignore[call-overload]
    with pytest.raises(openai.BadRequestError, match=r"not a generative model.*POST /v1/embeddings"):
        client.completions.create(model=EMBED, prompt="hello")
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-4o", messages=said)  # type: ignore[arg-type]
    assert caught.value.code == "model_not_found"


def test_models_are_listed_shown_and_deleted(protocol_server: ProtocolServer, client: openai.OpenAI) -> None:
    listed = {model.id: model for model in client.models.list()}
    assert {MOOD, EMBED} <= listed.keys()
    assert OTHERS not in listed
    assert listed[MOOD].owned_by == "acme"
    assert client.models.retrieve(MOOD) == listed[MOOD]
    for unseen in (OTHERS, "acme.none", "gpt-4o"):
        for call in (client.models.retrieve, client.models.delete):
            with pytest.raises(openai.NotFoundError) as caught:
                call(unseen)
            assert caught.value.code == "model_not_found"
    with client_of(protocol_server, protocol_server.infer_key) as reader:
        with pytest.raises(openai.PermissionDeniedError):
            reader.models.delete(MOOD)
    with client_of(protocol_server, protocol_server.admin_key) as admin:
        assert {MOOD, OTHERS} <= {model.id for model in admin.models.list()}
    with client_of(protocol_server, "hmi_wrong") as stranger:
        with pytest.raises(openai.AuthenticationError) as refused:
            stranger.models.list()
    assert refused.value.code == "invalid_api_key"


def test_unknown_paths_and_methods_answer_in_openais_shape(protocol_server: ProtocolServer) -> None:
    for method, path, status in (("GET", "/v1/assistants", 404), ("PUT", "/v1/models", 405)):
        request = urllib.request.Request(f"{protocol_server.url}{path}", method=method)
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request)
        assert caught.value.code == status
        assert set(json.load(caught.value)["error"]) == {"message", "type", "param", "code"}
