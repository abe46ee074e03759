"""The Open Inference Protocol over gRPC: Triton's client, unmodified, against a real server."""

from __future__ import annotations

import json
import queue
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from hmi.api.protocols.errors import STATUS
from hmi.api.rpc.admission import code_of
from tests.e2e.protocols.protocol_lab import EMBED, MOOD, OTHERS, PAIRS, TAGS, ProtocolServer
from tests.e2e.protocols.test_oip_http import TEXTS, WORDS, decoded


@pytest.fixture(scope="module")
def client(protocol_server: ProtocolServer) -> Iterator[Any]:
    with triton.InferenceServerClient(protocol_server.grpc) as made:
        yield made


def key_of(server: ProtocolServer) -> dict[str, str]:
    return {"authorization": f"Bearer {server.key}"}


def texts(name: str, given: Any) -> Any:
    array = np.array(given, dtype=object)
    made = triton.InferInput(name, list(array.shape), "BYTES")
    made.set_data_from_numpy(array)
    return made


@pytest.mark.parametrize("squeezed", [None, "gzip", "deflate"])
def test_labels_equal_those_of_infer(
    protocol_server: ProtocolServer, client: Any, squeezed: str | None
) -> None:
    wanted = [triton.InferRequestedOutput(name) for name in ("SCORES", "LABEL", "KNOWN")]
    answer = client.infer(
        MOOD,
        [texts("TEXT", TEXTS)],
        outputs=wanted,
        headers=key_of(protocol_server),
        request_id="call-7",
        compression_algorithm=squeezed,
        parameters={"calibrated": False, "utility": 0.5, "deadline_ms": 60_000},
    )
    native = protocol_server.native(MOOD, TEXTS, **{"return": ["scores"]})["outputs"]
    given = answer.get_response()
    assert (given.id, given.model_name, given.model_version) == ("call-7", MOOD, "2")
    assert [each.name for each in given.outputs] == ["SCORES", "LABEL", "KNOWN"]
    assert decoded(answer.as_numpy("LABEL")) == [each["label"] for each in native]
    by_label = [list(each["scores"].values()) for each in native]
    assert (answer.as_numpy("SCORES") == np.array(by_label, np.float32)).all()
    assert answer.as_numpy("KNOWN").tolist() == [True] * 3


def test_every_task(protocol_server: ProtocolServer, client: Any) -> None:
    headers = key_of(protocol_server)
    embedded = client.infer(EMBED, [texts("TEXT", [[text] for text in TEXTS])], headers=headers)
    native = [each["embedding"] for each in protocol_server.native(EMBED, TEXTS)["outputs"]]
    assert (embedded.as_numpy("EMBEDDING") == np.array(native, np.float32)).all()
    paired = client.infer(PAIRS, [texts("TEXT", TEXTS), texts("TEXT_PAIR", TEXTS[::-1])], headers=headers)
    both = [{"text": a, "text_pair": b} for a, b in zip(TEXTS, TEXTS[::-1], strict=True)]
    native = protocol_server.native(PAIRS, both)["outputs"]
    assert decoded(paired.as_numpy("LABEL")) == [each["label"] for each in native]
    tagged = client.infer(TAGS, [texts("TOKENS", [json.dumps(row) for row in WORDS])], headers=headers)
    native = protocol_server.native(TAGS, [{"tokens": row} for row in WORDS])["outputs"]
    assert [json.loads(row) for row in decoded(tagged.as_numpy("TAGS"))] == [each["tags"] for each in native]


def test_alone_equals_batched_also_in_a_stream(protocol_server: ProtocolServer, client: Any) -> None:
    headers = key_of(protocol_server)
    many = client.infer(MOOD, [texts("TEXT", TEXTS * 8)], headers=headers).as_numpy("SCORES")
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()

    def keep(result: Any, error: Any) -> None:
        answers.put((result, error))

    for text in TEXTS:
        client.async_infer(MOOD, [texts("TEXT", [text])], keep, headers=headers, request_id=text[:5])
    client.start_stream(keep, headers=headers)
    for text in (*TEXTS, " ", TEXTS[0]):
        client.async_stream_infer(MOOD, [texts("TEXT", [text])], request_id=text[:5])
    client.stop_stream()
    found = [answers.get(timeout=60) for _ in range(8)]
    scores = {
        result.get_response().id: result.as_numpy("SCORES")[0] for result, error in found if error is None
    }
    for text, row in zip(TEXTS, many, strict=False):
        assert np.allclose(scores[text[:5]], row, atol=1e-5)
    (error,) = [error for _, error in found if error is not None]
    assert "TEXT[0] is blank" in str(error), "an error does not end the stream"


def test_about_models(protocol_server: ProtocolServer, client: Any) -> None:
    headers = key_of(protocol_server)
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.get_server_metadata().name == "hmi"
    assert client.is_model_ready(MOOD, "2", headers=headers)
    about = client.get_model_metadata(MOOD, headers=headers)
    assert list(about.versions) == ["2"]
    assert [(each.name, list(each.shape)) for each in about.outputs][:3] == [
        ("LABEL", [-1]),
        ("SCORE", [-1]),
        ("SCORES", [-1, 2]),
    ]
    config = client.get_model_config(TAGS, headers=headers).config
    assert [(each.name, each.data_type, each.optional) for each in config.input] == [
        ("TEXT", 13, True),
        ("TOKENS", 13, True),
    ]
    assert config.parameters["task"].string_value == "tagging"
    client.infer(MOOD, [texts("TEXT", TEXTS)], headers=headers)
    (stats,) = client.get_inference_statistics(MOOD, headers=headers).model_stats
    assert stats.inference_count >= 3
    assert stats.inference_stats.compute_infer.ns > 0
    index = client.get_model_repository_index(headers=headers).models
    assert (MOOD, "1", "UNAVAILABLE") in {(each.name, each.version, each.state) for each in index}
    assert {each.name.partition(".")[0] for each in index} == {"acme"}
    client.load_model(MOOD, headers=headers)
    with pytest.raises(InferenceServerException, match="leave memory by themselves"):
        client.unload_model(MOOD, headers=headers)


@pytest.mark.parametrize(
    ("model", "version", "inputs", "status", "message"),
    [
        ("acme.none", "", {"TEXT": TEXTS}, "NOT_FOUND", "there is no model 'acme.none'"),
        (OTHERS, "", {"TEXT": TEXTS}, "NOT_FOUND", "there is no model 'globex.mood'"),
        ("none", "", {"TEXT": TEXTS}, "INVALID_ARGUMENT", "is not of the form tenant.model"),
        (MOOD, "1", {"TEXT": TEXTS}, "FAILED_PRECONDITION", "only version 2 answers"),
        (MOOD, "7", {"TEXT": TEXTS}, "NOT_FOUND", "acme.mood has no version '7'"),
        (MOOD, "", {"TEXT": ["a", " "]}, "INVALID_ARGUMENT", r"TEXT\[1\] is blank"),
        (MOOD, "", {"TEXT": ["a", b"\xff"]}, "INVALID_ARGUMENT", r"TEXT\[1\] is not UTF-8"),
        (MOOD, "", {"TEXT": ["a"] * 2000}, "INVALID_ARGUMENT", "inputs is over the limit of 1024"),
        (MOOD, "", {"TEXT": ["x" * (5 << 20)]}, "RESOURCE_EXHAUSTED", "larger than max"),
        (MOOD, "", {}, "INVALID_ARGUMENT", "inputs is empty"),
    ],
)
def test_errors(
    protocol_server: ProtocolServer,
    client: Any,
    model: str,
    version: str,
    inputs: dict[str, Any],
    status: str,
    message: str,
) -> None:
    given = [texts(name, value) for name, value in inputs.items()]
    with pytest.raises(InferenceServerException, match=message) as caught:
        client.infer(model, given, version, headers=key_of(protocol_server))
    assert caught.value.status() == f"StatusCode.{status}"


def test_a_long_id_is_refused(protocol_server: ProtocolServer, client: Any) -> None:
    with pytest.raises(InferenceServerException, match="id has more than 256 characters") as caught:
        client.infer(MOOD, [texts("TEXT", TEXTS)], request_id="x" * 257, headers=key_of(protocol_server))
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"


def test_parameters_and_deadlines(protocol_server: ProtocolServer, client: Any) -> None:
    headers = key_of(protocol_server)
    with pytest.raises(InferenceServerException, match="deadline_ms: is the text 'soon'"):
        client.infer(MOOD, [texts("TEXT", TEXTS)], headers=headers, parameters={"deadline_ms": "soon"})
    for limits in ({"timeout": 1}, {"client_timeout": 0.001}):
        with pytest.raises(InferenceServerException) as caught:
            client.infer(MOOD, [texts("TEXT", TEXTS * 100)], headers=headers, **limits)
        assert caught.value.status() == "StatusCode.DEADLINE_EXCEEDED"


def test_keys(protocol_server: ProtocolServer, client: Any) -> None:
    for headers, status in (
        ({}, "UNAUTHENTICATED"),
        ({"authorization": "Bearer wrong"}, "UNAUTHENTICATED"),
        ({"authorization": f"Bearer {protocol_server.other_key}"}, "NOT_FOUND"),
    ):
        with pytest.raises(InferenceServerException) as caught:
            client.infer(MOOD, [texts("TEXT", TEXTS)], headers=headers)
        assert caught.value.status() == f"StatusCode.{status}"


def test_bytes_that_are_no_message(protocol_server: ProtocolServer) -> None:
    """Any bytes get a status that says what is wrong, with the kind of the error and the request's id."""
    own = (("authorization", f"Bearer {protocol_server.key}"), ("x-request-id", "mine"))
    with grpc.insecure_channel(protocol_server.grpc) as channel:
        for method, data in (("ModelInfer", b"\xff\xff"), ("ModelMetadata", b"\x0a\xff")):
            call = channel.unary_unary(f"/inference.GRPCInferenceService/{method}")
            with pytest.raises(grpc.RpcError) as caught:
                call(data, metadata=own)
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert ("hmi-error-kind", "malformed") in caught.value.trailing_metadata()
            assert ("x-request-id", "mine") in caught.value.trailing_metadata()
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary("/inference.GRPCInferenceService/LogSettings")(b"", metadata=own)
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_every_kind_of_error_has_a_code() -> None:
    internal = {kind for kind in STATUS if code_of(kind) == grpc.StatusCode.INTERNAL}
    assert internal == {"internal"}
