"""The measurement of the protocol's overhead runs, and has a figure for each form."""

from __future__ import annotations

import pytest

from bench.cases.protocols import NATIVE, measure
from hmi.errors import HmiError
from tests.e2e.protocol_lab import MOOD, ProtocolServer


def test_every_form_is_measured(protocol_server: ProtocolServer) -> None:
    url, address, key = protocol_server.url, protocol_server.grpc, protocol_server.key
    found = measure(url, address, MOOD, key, 3, 2)
    forms = ["HTTP JSON", "HTTP binary", "gRPC"]
    assert list(found) == [NATIVE, *forms, *(f"{form} less {NATIVE}" for form in forms)]
    assert all(found[name] > 0 for name in (NATIVE, *forms))
    with pytest.raises(HmiError, match=r"answered 404: .*there is no model"):
        measure(url, address, "acme.none", key, 1, 1)
