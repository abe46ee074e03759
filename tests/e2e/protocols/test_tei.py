"""The documented calls of text-embeddings-inference against a real server."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.e2e.protocols.protocol_lab import EMBED, MOOD, OTHERS, PAIRS, TAGS, ProtocolServer

TEXTS = ["the market is good", "cell gene protein"]


@pytest.fixture
def http(protocol_server: ProtocolServer) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {protocol_server.key}"}
    with httpx.Client(base_url=protocol_server.url, headers=headers) as http:
        yield http


def asked(http: httpx.Client, path: str, model: str | None, **body: Any) -> Any:
    """The answer to a call that succeeds."""
    answer = http.post(path, json=body, headers={} if model is None else {"X-Model": model})
    assert answer.status_code == 200, answer.text
    return answer.json()


def best_first(scores: dict[str, float]) -> list[dict[str, Any]]:
    """The predictions that these scores make. Another batch may round the last digits otherwise."""
    pairs = sorted(scores.items(), key=lambda pair: -pair[1])
    return [{"score": pytest.approx(score, abs=1e-5), "label": label} for label, score in pairs]


def test_embed(protocol_server: ProtocolServer, http: httpx.Client) -> None:
    wanted = [output["embedding"] for output in protocol_server.native(EMBED, TEXTS)["outputs"]]
    found = asked(http, "/embed", EMBED, inputs=TEXTS, truncate=True, truncation_direction="right")
    assert found == [pytest.approx(vector, abs=1e-6) for vector in wanted]
    (alone,) = asked(http, "/embed", EMBED, inputs=TEXTS[0])
    assert alone == pytest.approx(wanted[0], abs=1e-6)
    (plain,) = asked(http, "/embed", EMBED, inputs=TEXTS[0], normalize=False)
    length = sum(x * x for x in plain) ** 0.5
    assert length != pytest.approx(1, abs=1e-3)
    assert [x / length for x in plain] == pytest.approx(alone, abs=1e-6)


def test_predict_one_a_pair_and_a_batch(protocol_server: ProtocolServer, http: httpx.Client) -> None:
    outputs = protocol_server.native(MOOD, TEXTS, **{"return": ["scores"]})["outputs"]
    wanted = [best_first(output["scores"]) for output in outputs]
    assert asked(http, "/predict", MOOD, inputs=[[text] for text in TEXTS]) == wanted
    for one in (TEXTS[0], TEXTS[:1]):
        assert asked(http, "/predict", MOOD, inputs=one) == wanted[0]
    pair = {"text": TEXTS[0], "text_pair": TEXTS[1]}
    (answer,) = protocol_server.native(PAIRS, [pair], **{"return": ["scores"]})["outputs"]
    assert asked(http, "/predict", PAIRS, inputs=TEXTS) == best_first(answer["scores"])
    assert asked(http, "/predict", PAIRS, inputs=[TEXTS]) == [best_first(answer["scores"])]


def test_raw_scores_are_the_logits(http: httpx.Client) -> None:
    plain = asked(http, "/predict", MOOD, inputs=TEXTS[0])
    raw = asked(http, "/predict", MOOD, inputs=TEXTS[0], raw_scores=True)
    assert [item["label"] for item in raw] == [item["label"] for item in plain]
    odds = plain[0]["score"] / plain[1]["score"]
    assert raw[0]["score"] - raw[1]["score"] == pytest.approx(math.log(odds), abs=1e-3)


def test_rerank_and_similarity_compare_embeddings(http: httpx.Client) -> None:
    texts = ["cell gene protein", "the market is good", "stock"]
    sentences = {"source_sentence": TEXTS[0], "sentences": texts}
    alike = asked(http, "/similarity", EMBED, inputs=sentences)
    assert alike[1] == pytest.approx(1, abs=1e-5)
    ranks = asked(http, "/rerank", EMBED, query=TEXTS[0], texts=texts, return_text=True)
    assert ranks[0]["text"] == TEXTS[0]
    assert [rank["index"] for rank in ranks] == sorted(range(3), key=lambda i: -alike[i])
    assert [rank["score"] for rank in ranks] == pytest.approx(sorted(alike, reverse=True), abs=1e-6)


def test_info_and_health(http: httpx.Client) -> None:
    info = http.get("/info", headers={"X-Model": MOOD}).json()
    assert info["model_id"] == MOOD
    assert set(info["model_type"]["classifier"]["label2id"]) == {"neg", "pos"}
    assert http.get("/info", headers={"X-Model": EMBED}).json()["model_type"] == {
        "embedding": {"pooling": "mean"}
    }
    assert http.get("/health").status_code == 200


@pytest.mark.parametrize(
    ("path", "model", "body", "status", "says"),
    [
        ("/embed", MOOD, {"inputs": "a"}, 422, "of the task classification"),
        ("/predict", EMBED, {"inputs": "a"}, 422, "of the task embedding"),
        ("/predict", TAGS, {"inputs": "a"}, 422, "of the task tagging"),
        ("/rerank", PAIRS, {"query": "a", "texts": ["b"]}, 422, "of the task pair"),
        ("/predict", MOOD, {"inputs": ["a", "b"]}, 422, "give a text"),
        ("/predict", MOOD, {"inputs": ["a", "b", "c"]}, 413, "2 items"),
        ("/predict", MOOD, {"inputs": [1, 2]}, 422, "batch"),
        ("/predict", MOOD, {"inputs": []}, 422, "empty"),
        ("/embed", EMBED, {"inputs": [[1, 2]]}, 422, "tokens are not read"),
        ("/embed", EMBED, {"inputs": "a", "truncation_direction": "Left"}, 422, "use Right"),
        ("/embed", EMBED, {"inputs": "a", "prompt_name": "query"}, 422, "prompt_name"),
        ("/embed", EMBED, {"inputs": "a", "dimensions": 3}, 422, "leave dimensions out"),
        ("/embed", EMBED, {"inputs": "cell " * 900, "truncate": False}, 413, "is longer than the"),
        ("/embed", EMBED, {"inputs": " "}, 422, "blank"),
        ("/embed", OTHERS, {"inputs": "a"}, 404, "no model"),
        ("/embed", "nonsense", {"inputs": "a"}, 422, "tenant.model"),
        ("/embed", None, {"inputs": "a"}, 422, "X-Model"),
    ],
)
def test_errors_have_the_shape_of_the_protocol(
    http: httpx.Client, path: str, model: str | None, body: Any, status: int, says: str
) -> None:
    answer = http.post(path, json=body, headers={} if model is None else {"X-Model": model})
    assert answer.status_code == status, answer.text
    assert answer.json()["error_type"] == "Validation"
    assert says in answer.json()["error"]
