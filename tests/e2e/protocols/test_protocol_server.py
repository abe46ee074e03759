"""The server that the protocols' tests share answers every kind of model that they need."""

from __future__ import annotations

from tests.e2e.protocols.protocol_lab import EMBED, MOOD, PAIRS, TAGS, ProtocolServer


def test_it_answers_every_task(protocol_server: ProtocolServer) -> None:
    words = ["cell", "gene", "market"]
    for model, sent, field, version in (
        (MOOD, "the market is good", "label", 2),
        (PAIRS, {"text": "one", "text_pair": "other"}, "label", 1),
        (TAGS, {"tokens": words}, "tags", 1),
        (EMBED, "the market", "embedding", 1),
    ):
        answer = protocol_server.native(model, [sent])
        assert answer["version"] == version
        assert answer["outputs"][0][field]
