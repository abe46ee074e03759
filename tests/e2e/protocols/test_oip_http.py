"""The Open Inference Protocol over HTTP: Triton's and KServe's clients, unmodified, against a real server."""

from __future__ import annotations

import gzip
import json
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.error import HTTPError

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from tests.e2e.protocols.protocol_lab import EMBED, MOOD, OTHERS, PAIRS, TAGS, ProtocolServer

TEXTS = ["the market is good", "a cell is bad", "naïve gene good ✓"]
OCTETS = "application/octet-stream"
WORDS = [["cell", "gene", "market"], ["good"]]


@pytest.fixture(scope="module")
def client(protocol_server: ProtocolServer) -> Iterator[Any]:
    with triton.InferenceServerClient(protocol_server.address) as made:
        yield made


def key_of(server: ProtocolServer) -> dict[str, str]:
    return {"Authorization": f"Bearer {server.key}"}


def texts(name: str, given: Any, binary: bool = True) -> Any:
    """An input of BYTES, with the shape of `given`."""
    array = np.array(given, dtype=object)
    made = triton.InferInput(name, list(array.shape), "BYTES")
    made.set_data_from_numpy(array, binary_data=binary)
    return made


def decoded(array: Any) -> list[str]:
    return [each.decode() if isinstance(each, bytes) else each for each in array.ravel().tolist()]


@pytest.mark.parametrize("squeezed", [None, "gzip", "deflate"])
@pytest.mark.parametrize("binary", [True, False])
def test_labels_equal_those_of_infer(
    protocol_server: ProtocolServer, client: Any, binary: bool, squeezed: str | None
) -> None:
    for _ in range(2):  # a model's first requests may be computed in another way, with another last bit
        protocol_server.native(MOOD, TEXTS)
    wanted = [
        triton.InferRequestedOutput(name, binary_data=binary)
        for name in ("SCORES", "LABEL", "SCORE", "CLASSES", "KNOWN", "TRUNCATED")
    ]
    answer = client.infer(
        MOOD,
        [texts("TEXT", TEXTS, binary)],
        outputs=wanted,
        headers=key_of(protocol_server),
        request_id="call-7",
        request_compression_algorithm=squeezed,
        response_compression_algorithm=squeezed,
    )
    native = protocol_server.native(MOOD, TEXTS, **{"return": ["scores"]})
    given = answer.get_response()
    assert [each["name"] for each in given["outputs"]][:2] == ["SCORES", "LABEL"], "in the order asked for"
    assert (given["id"], given["model_name"], given["model_version"]) == ("call-7", MOOD, "2")
    assert decoded(answer.as_numpy("LABEL")) == [each["label"] for each in native["outputs"]]
    scores = answer.as_numpy("SCORES")
    assert scores.shape == (3, 2)
    assert scores.dtype == np.float32
    by_label = [list(each["scores"].values()) for each in native["outputs"]]
    assert (scores == np.array(by_label, np.float32)).all(), "to the last bit of FP32"
    assert decoded(answer.as_numpy("CLASSES")) == list(native["outputs"][0]["scores"])
    assert answer.as_numpy("SCORE").tolist() == scores.max(1).tolist()
    assert answer.as_numpy("TRUNCATED").tolist() == [False] * 3
    assert answer.as_numpy("KNOWN").tolist() == [True] * 3


def test_every_task(protocol_server: ProtocolServer, client: Any) -> None:
    headers = key_of(protocol_server)
    embedded = client.infer(EMBED, [texts("TEXT", [[text] for text in TEXTS])], headers=headers)
    native = [each["embedding"] for each in protocol_server.native(EMBED, TEXTS)["outputs"]]
    assert (embedded.as_numpy("EMBEDDING") == np.array(native, np.float32)).all()
    sides = [texts("TEXT", TEXTS), texts("TEXT_PAIR", TEXTS[::-1], binary=False)]
    paired = client.infer(PAIRS, sides, model_version="1", headers=headers)
    both = [{"text": a, "text_pair": b} for a, b in zip(TEXTS, TEXTS[::-1], strict=True)]
    native = protocol_server.native(PAIRS, both)["outputs"]
    assert decoded(paired.as_numpy("LABEL")) == [each["label"] for each in native]
    rows = [json.dumps(row) for row in WORDS]
    padded = [row + [""] * (3 - len(row)) for row in WORDS]
    native = protocol_server.native(TAGS, [{"tokens": row} for row in WORDS])["outputs"]
    for given in (rows, padded):
        tagged = client.infer(TAGS, [texts("TOKENS", given)], headers=headers)
        assert [json.loads(row) for row in decoded(tagged.as_numpy("TAGS"))] == [
            each["tags"] for each in native
        ]
        assert [json.loads(row) for row in decoded(tagged.as_numpy("TAG_SCORES"))] == [
            each["tag_scores"] for each in native
        ]


def test_entities_of_a_text(protocol_server: ProtocolServer, client: Any) -> None:
    given = ["the cell and  the gene", "a naïve market ✓ gene"]
    answer = client.infer(TAGS, [texts("TEXT", given)], headers=key_of(protocol_server))
    entities = [json.loads(row) for row in decoded(answer.as_numpy("ENTITIES"))]
    native = protocol_server.native(TAGS, given)["outputs"]
    assert entities == [each["entities"] for each in native]
    assert any(entities)
    for text, found in zip(given, entities, strict=True):
        assert all(text[each["start"] : each["end"]] == each["text"] for each in found)


def test_alone_equals_batched(protocol_server: ProtocolServer, client: Any) -> None:
    headers = key_of(protocol_server)
    many = client.infer(MOOD, [texts("TEXT", TEXTS * 8)], headers=headers).as_numpy("SCORES")
    for i, text in enumerate(TEXTS):
        alone = client.infer(MOOD, [texts("TEXT", [text])], headers=headers).as_numpy("SCORES")
        assert np.allclose(many[i::3], alone, atol=1e-5)
    waiting = [client.async_infer(MOOD, [texts("TEXT", [text])], headers=headers) for text in TEXTS * 3]
    answers = [each.get_result().as_numpy("SCORES")[0] for each in waiting]
    assert np.allclose(answers, many[:9], atol=1e-5)


def test_parameters(protocol_server: ProtocolServer, client: Any) -> None:
    headers = key_of(protocol_server)
    options = {"exact": True, "calibrated": True, "utility": 0.5, "content_type": "str"}
    exact = client.infer(
        MOOD, [texts("TEXT", TEXTS)], headers=headers, parameters=options, priority=1, timeout=60_000_000
    )
    native = protocol_server.native(MOOD, TEXTS, exact=True, calibrated=True)
    assert np.allclose(exact.as_numpy("SCORE"), [each["score"] for each in native["outputs"]], atol=1e-5)
    with pytest.raises(InferenceServerException) as caught:
        client.infer(MOOD, [texts("TEXT", TEXTS * 60)], headers=headers, timeout=1)
    assert caught.value.status() == "504"
    with pytest.raises(InferenceServerException, match=r"parameters\.deadline_ms: is the text"):
        client.infer(MOOD, [texts("TEXT", TEXTS)], headers=headers, parameters={"deadline_ms": "soon"})


def test_metadata(protocol_server: ProtocolServer, client: Any) -> None:
    headers = key_of(protocol_server)
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.get_server_metadata()["name"] == "hmi"
    assert client.is_model_ready(MOOD, headers=headers)
    assert client.is_model_ready(MOOD, "2", headers=headers)
    assert not client.is_model_ready(MOOD, "1", headers=headers)
    assert not client.is_model_ready("acme.none", headers=headers)
    about = client.get_model_metadata(MOOD, headers=headers)
    assert about["versions"] == ["2"]
    assert about["inputs"] == [{"name": "TEXT", "datatype": "BYTES", "shape": [-1]}]
    assert {"name": "SCORES", "datatype": "FP32", "shape": [-1, 2]} in about["outputs"]
    embed = client.get_model_metadata(EMBED, "1", headers=headers)
    assert embed["outputs"][0] == {"name": "EMBEDDING", "datatype": "FP32", "shape": [-1, 32]}
    config = client.get_model_config(TAGS, headers=headers)
    assert [each["name"] for each in config["input"]] == ["TEXT", "TOKENS"]
    assert json.loads(config["parameters"]["labels"]["string_value"])
    answered = client.infer(MOOD, [texts("TEXT", TEXTS)], headers=headers).get_response()
    named = [each["name"] for each in about["outputs"]]
    assert [each["name"] for each in answered["outputs"]] == named, "all, in the order of the metadata"
    (stats,) = client.get_inference_statistics(MOOD, headers=headers)["model_stats"]
    assert stats["inference_count"] >= 3
    assert stats["inference_stats"]["compute_infer"]["ns"] > 0
    every = client.get_inference_statistics(headers=headers)["model_stats"]
    assert MOOD in {each["name"] for each in every}


def test_repository(protocol_server: ProtocolServer, client: Any) -> None:
    headers = key_of(protocol_server)
    index = client.get_model_repository_index(headers=headers)
    states = {(each["name"], each["version"]): each["state"] for each in index}
    assert states[MOOD, "1"] == "UNAVAILABLE"
    assert states[MOOD, "2"] == "READY"
    assert {name.partition(".")[0] for name, _ in states} == {"acme"}, "no other tenant's"
    client.load_model(MOOD, headers=headers)
    with pytest.raises(InferenceServerException, match="cannot be replaced"):
        client.load_model(MOOD, headers=headers, config="{}")
    with pytest.raises(InferenceServerException, match="leave memory by themselves"):
        client.unload_model(MOOD, headers=headers)


@pytest.mark.parametrize(
    ("model", "version", "inputs", "outputs", "status", "message"),
    [
        ("acme.none", "", {"TEXT": TEXTS}, [], "404", "there is no model 'acme.none'"),
        (OTHERS, "", {"TEXT": TEXTS}, [], "404", "there is no model 'globex.mood'"),
        (MOOD, "1", {"TEXT": TEXTS}, [], "409", "version 1 of acme.mood exists, but only version 2 answers"),
        (MOOD, "7", {"TEXT": TEXTS}, [], "404", "acme.mood has no version '7'"),
        (MOOD, "", {"text": TEXTS}, [], "422", "input 'text' is unknown: send TEXT"),
        (MOOD, "", {"TEXT_PAIR": TEXTS}, [], "422", "TEXT is missing"),
        (MOOD, "", {"TEXT": TEXTS, "TEXT_PAIR": TEXTS}, [], "422", "a text"),
        (PAIRS, "", {"TEXT": TEXTS, "TEXT_PAIR": TEXTS[:1]}, [], "422", "TEXT_PAIR has 1 row"),
        (MOOD, "", {"TEXT": [["a", "b"]]}, [], "422", r"one text a row, \[n\] or \[n, 1\]"),
        (MOOD, "", {"TEXT": ["a", " "]}, [], "422", r"TEXT\[1\] is blank"),
        (MOOD, "", {"TEXT": ["a", b"\xff"]}, [], "422", r"TEXT\[1\] is not UTF-8"),
        (MOOD, "", {"TEXT": ["a"] * 2000}, [], "413", "inputs is over the limit of 1024"),
        (TAGS, "", {"TOKENS": ["cell gene"]}, [], "422", r"TOKENS\[0\] is not a JSON list of words"),
        (TAGS, "", {"TOKENS": ['["\\ud800"]']}, [], "422", r"TOKENS\[0\] is not a JSON list of words"),
        (MOOD, "", {"TEXT": TEXTS}, ["EMBEDDING"], "422", "output 'EMBEDDING' is unknown: .* LABEL, SCORE"),
    ],
)
def test_errors(
    protocol_server: ProtocolServer,
    client: Any,
    model: str,
    version: str,
    inputs: dict[str, Any],
    outputs: list[str],
    status: str,
    message: str,
) -> None:
    given = [texts(name, value) for name, value in inputs.items()]
    wanted = [triton.InferRequestedOutput(name) for name in outputs]
    with pytest.raises(InferenceServerException, match=message) as caught:
        client.infer(model, given, version, outputs=wanted, headers=key_of(protocol_server))
    assert caught.value.status() == status


def test_keys(protocol_server: ProtocolServer, client: Any) -> None:
    for headers, status in (
        ({}, "401"),
        ({"Authorization": "Bearer wrong"}, "401"),
        ({"Authorization": f"Bearer {protocol_server.other_key}"}, "404"),
    ):
        with pytest.raises(InferenceServerException) as caught:
            client.infer(MOOD, [texts("TEXT", TEXTS)], headers=headers)
        assert caught.value.status() == status
    admin = {"Authorization": f"Bearer {protocol_server.admin_key}"}
    index = client.get_model_repository_index(headers=admin)
    assert {each["name"].partition(".")[0] for each in index} == {"acme", "globex"}


def raw(server: ProtocolServer, path: str, body: bytes | None = None, **headers: str) -> tuple[int, Any]:
    """A bare request: its status and JSON answer."""
    sent = {name.replace("_", "-"): value for name, value in {**key_of(server), **headers}.items()}
    try:
        with urllib.request.urlopen(urllib.request.Request(server.url + path, body, sent)) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        with error:
            return error.code, json.load(error)


def request(**changed: Any) -> bytes:
    tensor = {"name": "TEXT", "shape": [2], "datatype": "BYTES", "data": ["a", "b"], **changed}
    return json.dumps({"inputs": [tensor]}).encode()


@pytest.mark.parametrize(
    ("body", "headers", "status", "message"),
    [
        (request(), {"Inference_Header_Content_Length": "no"}, 400, "no number of bytes"),
        (request(), {"Inference_Header_Content_Length": "9999"}, 400, "no number of bytes"),
        (request(), {"Inference_Header_Content_Length": "3"}, 400, "not JSON"),
        (request() + b"x", {"Inference_Header_Content_Length": str(len(request()))}, 422, "1 bytes follow"),
        (request(datatype="FP32"), {}, 422, "inputs[0].datatype"),
        (request(shape=[3]), {}, 422, "TEXT has 2 elements, but its shape [3] says 3"),
        (request(shape=[]), {}, 422, "TEXT has the shape []"),
        (request(shape=[0]), {}, 422, "TEXT has the shape [0]"),
        (request(shape=[2, 1, 1]), {}, 422, "TEXT has the shape"),
        (request(data=["a", 7]), {}, 422, "inputs[0].data[1] is not a text"),
        (request(data=None), {}, 422, "TEXT has no data"),
        (request(parameters={"binary_data_size": 9}), {}, 422, "both data and binary_data_size"),
        (request(data=None, parameters={"binary_data_size": 9}), {}, 422, "ends within the bytes of TEXT"),
        (request(parameters={"shared_memory_region": "r"}), {}, 422, "shared memory"),
        (b'{"inputs": []}', {}, 422, "inputs"),
        (b"", {}, 400, "not JSON"),
        (gzip.compress(request(), mtime=0) + b"!", {"Content_Encoding": "gzip"}, 400, "not sound gzip"),
        (request(), {"Content_Type": "text/plain"}, 415, "application/json"),
    ],
)
def test_bodies_that_are_wrong(
    protocol_server: ProtocolServer, body: bytes, headers: dict[str, str], status: int, message: str
) -> None:
    given = {"Content_Type": OCTETS, **headers}
    got, answer = raw(protocol_server, f"/v2/models/{MOOD}/infer", body, **given)
    assert (got, list(answer)) == (status, ["error"])
    assert message in answer["error"]


def test_binary_tensors_that_are_wrong(protocol_server: ProtocolServer) -> None:
    for tail, message in (
        (b"\x01\x00\x00\x00a\x09\x00\x00\x00b", "TEXT ends within element 1 of 2"),
        (b"\x01\x00\x00\x00a\x01\x00\x00\x00bc", "TEXT has 1 more bytes"),
        (b"\x01\x00", "too few for the 2 texts"),
        (b"\x07\x00\x00\x00a\x01\x00\x00", "TEXT ends within element 0 of 2"),
    ):
        head = request(data=None, parameters={"binary_data_size": len(tail)})
        length = {"Inference_Header_Content_Length": str(len(head)), "Content_Type": OCTETS}
        status, answer = raw(protocol_server, f"/v2/models/{MOOD}/infer", head + tail, **length)
        assert status == 422
        assert message in answer["error"]


def test_paths_below_v2_have_errors_of_the_protocol(protocol_server: ProtocolServer) -> None:
    for path, body, status, message in (
        ("/v2/nothing", None, 404, "there is no '/v2/nothing' here"),
        (f"/v2/models/{MOOD}/infer", None, 405, "GET is not for this path"),
        (f"/v2/models/{MOOD}/generate", b'{"text_input": "hi"}', 422, "not a generative model"),
        (f"/v2/models/{MOOD}/versions/2/generate_stream", b"", 422, "not a generative model"),
        ("/v2/models/acme.none/generate", b"", 404, "there is no model"),
        ("/v2/models/none", None, 422, "is not of the form tenant.model"),
    ):
        given = {} if body is None else {"Content_Type": "application/json"}
        got, answer = raw(protocol_server, path, body, **given)
        assert (got, list(answer)) == (status, ["error"])
        assert message in answer["error"]
