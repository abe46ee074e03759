"""The schemas' strictness, the paths that errors name, and metrics."""

from __future__ import annotations

import pytest

from hmi.api.body import parse
from hmi.api.errors import STATUS, Malformed, known, status_of
from hmi.api.schemas_infer import InferBody, MixedBody
from hmi.api.schemas_manage import CreateModel
from hmi.errors import HmiError, InvalidInput
from hmi.metrics import Metrics


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"inputs": [{"text": 1}]}', "inputs[0].text"),
        (b'{"inputs": ["a", {"text": "a", "other": 1}]}', "inputs[1].other"),
        (b'{"inputs": ["a", {"tokens": ["a", ""]}]}', "inputs[1].tokens[1]"),
        (b'{"inputs": ["a", {"tokens": []}]}', "inputs[1].tokens"),
        (b'{"inputs": []}', "inputs"),
        (b'{"inputs": ""}', "inputs"),
        (b"{}", "inputs"),
        (b"[]", "body"),
        (b'{"inputs": "a", "parameters": {"deadline_ms": 0}}', "parameters.deadline_ms"),
        (b'{"inputs": "a", "parameters": {"return": ["all"]}}', "parameters.return[0]"),
    ],
)
def test_names_the_field(body: bytes, field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse(InferBody, body)
    assert caught.value.details["field"] == field
    assert caught.value.details["fields"][0]["field"] == field


def test_names_each_field() -> None:
    with pytest.raises(InvalidInput) as caught:
        parse(CreateModel, b'{"model": "Acme", "domain": "a//b", "task": "x", "options": {"epochs": "3"}}')
    fields = {f["field"] for f in caught.value.details["fields"]}
    assert fields == {"model", "domain", "task", "options.epochs"}
    with pytest.raises(InvalidInput) as caught:
        parse(MixedBody, b'[{"model": "a.b", "inputs": "x"}, {"model": "a.b", "inputs": [{"text": ""}]}]')
    assert caught.value.details["field"] == "[1].inputs[0].text"


@pytest.mark.parametrize("body", [b"", b"{", b'"\\ud800"', b"\xff", b"{'a': 1}", b"NaN"])
def test_what_is_no_json_is_malformed(body: bytes) -> None:
    with pytest.raises((Malformed, InvalidInput)) as caught:
        parse(InferBody, body)
    assert status_of(caught.value) in (400, 422)


def test_every_kind_has_a_status() -> None:
    kinds, waiting = set(), [HmiError]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        # A client's own error class has no kind of its own.
        if kind.__module__ in ("hmi.errors", "hmi.api.errors"):
            kinds.add(kind.kind)
    assert kinds == set(STATUS)
    assert known(OSError(28, "No space left on device")).kind == "storage_full"  # type: ignore[union-attr]
    assert known(ZeroDivisionError()) is None


def test_tenant_labels_are_bounded() -> None:
    metrics = Metrics()
    for i in range(50):
        metrics.usage.add(f"t{i}", requests=i + 1, tokens=10)
    metrics.usage.add("other", requests=1000)
    text = metrics.render().decode()
    lines = [line for line in text.splitlines() if line.startswith("hmi_tenant_requests_total{")]
    assert len(lines) == 21
    assert 'hmi_tenant_requests_total{tenant="other"} 1000.0' in lines
    total = sum(float(line.rpartition(" ")[2]) for line in lines)
    assert total == 1000 + 50 * 51 / 2
