"""The Open Inference Protocol by KServe's clients, unmodified, against a real server."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np

from tests.e2e.protocols.protocol_lab import MOOD, ProtocolServer
from tests.hmi.labs.server_lab import REPO

TEXTS = ["the market is good", "a cell is bad", "naïve gene good ✓"]


def test_over_http_and_grpc(protocol_server: ProtocolServer) -> None:
    given = {
        "url": protocol_server.url,
        "grpc": protocol_server.grpc,
        "key": protocol_server.key,
        "model": MOOD,
        "texts": TEXTS,
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.e2e.protocols.kserve_calls"],
        cwd=REPO,
        input=json.dumps(given),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    http, grpc = json.loads(done.stdout)
    assert http["models"] == [True, False]
    assert grpc["models"] == [True]
    assert "there is no model 'acme.none': check the name" in http["error"]
    assert grpc["error"] == "NOT_FOUND there is no model 'acme.none': check the name"
    native = protocol_server.native(MOOD, TEXTS)["outputs"]
    for found in (http, grpc):
        assert found["live"] is True
        assert found["ready"] is True
        assert len(found["answers"]) == 2, "in JSON and as bytes"
        for answer in found["answers"]:
            assert (answer["id"], answer["model"]) == ("call-8", MOOD)
            assert answer["labels"] == [each["label"] for each in native]
            assert np.allclose(answer["scores"], [each["score"] for each in native])
