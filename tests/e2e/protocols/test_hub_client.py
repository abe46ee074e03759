"""huggingface_hub's InferenceClient, unmodified, against a real server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from huggingface_hub import InferenceClient, constants
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import reset_sessions

from tests.e2e.protocols.protocol_lab import EMBED, MOOD, OTHERS, PAIRS, TAGS, ProtocolServer
from tests.tiny import random_texts

TEXT = "the market is good"
PATHS = ("hf", "infer")
"""The client works with both addresses of a model."""


@pytest.fixture(autouse=True)
def online(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the client connect. The tests run with the hub switched off, and that also refuses loopback."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    reset_sessions()
    yield
    reset_sessions()


def client_of(
    server: ProtocolServer, model: str, path: str = "hf", key: str | None = None
) -> InferenceClient:
    return InferenceClient(model=f"{server.url}/{path}/{model}", token=key or server.key)


@pytest.mark.parametrize("path", PATHS)
def test_text_classification(protocol_server: ProtocolServer, path: str) -> None:
    client = client_of(protocol_server, MOOD, path)
    (wanted,) = protocol_server.native(MOOD, [TEXT], **{"return": ["scores"]})["outputs"]
    found = client.text_classification(TEXT)
    assert {item.label: item.score for item in found} == pytest.approx(wanted["scores"], abs=1e-5)
    assert found[0].label == wanted["label"]
    assert [item.label for item in client.text_classification(TEXT, top_k=1)] == [wanted["label"]]
    softmax = client.text_classification(TEXT, function_to_apply="softmax")
    assert softmax[0].score == pytest.approx(wanted["score"], abs=1e-5)
    raw = client.text_classification(TEXT, function_to_apply="none")
    sigmoid = client.text_classification(TEXT, function_to_apply="sigmoid")
    assert [item.label for item in raw] == [item.label for item in found]
    for logit, squashed in zip(raw, sigmoid, strict=True):
        assert squashed.score == pytest.approx(1 / (1 + 2.718281828459045**-logit.score), abs=1e-5)


@pytest.mark.parametrize("path", PATHS)
def test_feature_extraction_and_similarity(protocol_server: ProtocolServer, path: str) -> None:
    client = client_of(protocol_server, EMBED, path)
    texts = [TEXT, "cell gene protein"]
    wanted = [output["embedding"] for output in protocol_server.native(EMBED, texts)["outputs"]]
    assert client.feature_extraction(TEXT).tolist() == [pytest.approx(wanted[0], abs=1e-6)]
    many = client.feature_extraction(texts)  # type: ignore[arg-type]
    assert many.tolist() == [pytest.approx(vector, abs=1e-6) for vector in wanted]
    plain = client.feature_extraction(TEXT, normalize=False, truncate=True, truncation_direction="Right")
    assert (plain**2).sum() != pytest.approx(1, abs=1e-3)
    cosine = sum(a * b for a, b in zip(*wanted, strict=True))
    assert client.sentence_similarity(TEXT, texts) == [
        pytest.approx(1, abs=1e-5),
        pytest.approx(cosine, abs=1e-5),
    ]


@pytest.mark.parametrize("path", PATHS)
def test_pairs_have_the_form_of_pipelines(protocol_server: ProtocolServer, path: str) -> None:
    client = client_of(protocol_server, PAIRS, path)
    pair = {"text": TEXT, "text_pair": "cell gene"}
    (wanted,) = protocol_server.native(PAIRS, [pair])["outputs"]
    found = client.text_classification(pair)  # type: ignore[arg-type]
    assert (found[0].label, found[0].score) == (wanted["label"], pytest.approx(wanted["score"], abs=1e-5))


@pytest.mark.parametrize("strategy", [None, "none", "simple", "first", "average", "max"])
def test_token_classification(protocol_server: ProtocolServer, strategy: Any) -> None:
    # The tiny model finds something in few texts. Offsets count characters, not bytes or UTF-16 units.
    texts = [f"\u00e9 \U0001f9ec {text}" for text in random_texts(200, seed=7)]
    outputs = protocol_server.native(TAGS, texts, aggregation=strategy or "simple")["outputs"]
    text, output = max(zip(texts, outputs, strict=True), key=lambda pair: len(pair[1]["entities"]))
    client = client_of(protocol_server, TAGS)
    found = client.token_classification(text, aggregation_strategy=strategy)
    assert [
        {
            "label": item.entity if strategy == "none" else item.entity_group,
            "start": item.start,
            "end": item.end,
            "text": item.word,
            "score": pytest.approx(item.score, abs=1e-5),
        }
        for item in found
    ] == output["entities"]
    assert found, "the model finds something"
    assert all(text[item.start : item.end] == item.word for item in found)
    labels = {entity["label"] for entity in output["entities"]}
    assert client.token_classification(text, aggregation_strategy=strategy, ignore_labels=list(labels)) == []


def test_what_cannot_be_answered_says_why(protocol_server: ProtocolServer) -> None:
    mood, embed = client_of(protocol_server, MOOD), client_of(protocol_server, EMBED)
    with pytest.raises(HfHubHTTPError, match="zero-shot classification is not served"):
        mood.zero_shot_classification(TEXT, ["a", "b"])
    with pytest.raises(HfHubHTTPError, match="do not have it; they have top_k"):
        mood.feature_extraction(TEXT, normalize=True)
    with pytest.raises(HfHubHTTPError, match="for models of the task embedding"):
        mood.sentence_similarity(TEXT, [TEXT])
    with pytest.raises(HfHubHTTPError, match="use Right"):
        embed.feature_extraction(TEXT, truncation_direction="Left")
    with pytest.raises(HfHubHTTPError, match="prompt_name"):
        embed.feature_extraction(TEXT, prompt_name="query")
    with pytest.raises(HfHubHTTPError, match="is longer than the"):
        embed.feature_extraction("cell " * 900, truncate=False)
    with pytest.raises(HfHubHTTPError, match="stride"):
        client_of(protocol_server, TAGS).token_classification(TEXT, stride=3)
    for path in PATHS:
        for model in (OTHERS, "acme.none"):
            with pytest.raises(HfHubHTTPError, match="no model") as missing:
                client_of(protocol_server, model, path).text_classification(TEXT)
            assert missing.value.response.status_code == 404
        with pytest.raises(HfHubHTTPError, match="this key is unknown"):
            client_of(protocol_server, MOOD, path, "hmi_wrong").text_classification(TEXT)
