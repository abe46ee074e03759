"""Bodies and queries: what is refused, the field that the error names, and its words; metrics' labels."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest
from multidict import MultiDict

from hmi.api.body import json_text
from hmi.api.http.request_body import parse, parse_query
from hmi.api.http.route import Route
from hmi.api.protocols.errors import STATUS, Malformed, known
from hmi.api.protocols.native.schemas import InferBody, MixedBody, count_members
from hmi.api.routes.table import ROUTES
from hmi.api.schemas.models import CreateModel, ModelQuery
from hmi.api.schemas.tenants import CreateTenant
from hmi.errors import HmiError, InvalidInput
from hmi.metrics import Metrics
from tests.hmi.api.test_api_fuzz import DOCUMENT, draw


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
    assert STATUS[caught.value.kind] in (400, 422)


def test_every_kind_has_a_status() -> None:
    kinds, waiting = set(), [HmiError]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        # Error classes of a client have no kind of their own.
        if kind.__module__ in ("hmi.errors", "hmi.api.protocols.errors"):
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


OWN_NAMES = re.compile(r"'float'|check_embedding_ctx_length=False")
"""What a caller may give or pass: OpenAI's name of a form of embeddings, and an argument in Python."""
FOREIGN = re.compile(
    r"[Ii]nput should|[Vv]alue error|[Vv]alid (string|integer|array|dict|number|list|boolean|object)"
    r"|\b(array|dict|None|True|False|integer|boolean|float|str|int)\b"
    r"|pattern|\^\[|pydantic|Unable to|discriminator|unable to parse|EOF"
)
"""Words that only Python, pydantic or its JSON parser would use."""
INFER = [
    ({"inputs": {"text": "a"}}, 'must be a text or a list of inputs.*{"text": …}.*{"tokens"'),
    ({"inputs": 5}, "must be a text or a list of inputs"),
    ({"inputs": [5]}, r"^inputs\[0\]: is no input: an input is a text, "),
    ({"inputs": [["a"]]}, r"^inputs\[0\]: is no input"),
    ({"input": "a"}, "^input: is not a field here: did you mean 'inputs'. .and 1 more field.$"),
    ({"inputs": [{"txt": "a"}]}, r"^inputs\[0\].txt: .*did you mean 'text'"),
    ({"inputs": [{"tokens": ["a"], "pos": 1}]}, "the fields here are tokens$"),
    ({"inputs": "a", "parameters": {"returns": []}}, "did you mean 'return'"),
    ({"inputs": "a", "parameters": {"return": ["score"]}}, "did you mean 'scores'. It must be "),
    ({"inputs": "a", "parameters": {"deadline_ms": 1e9}}, "and must be at most 3600000$"),
    ({"inputs": "a", "parameters": {"utility": 0}}, "parameters.utility: .*must be more than 0$"),
    ({"inputs": "a", "parameters": {"utility": 1.5}}, "parameters.utility: .*must be at most 1$"),
    ({"inputs": "a", "parameters": {"utility": "high"}}, "parameters.utility: .*must be a number$"),
    ({"inputs": "a", "parameters": {"exact": 1}}, "is the number 1, and must be true or false"),
    ([], "^body: is a list, and must be an object with inputs, parameters$"),
]
CREATE = {"model": "acme.m", "domain": "tiny", "task": "pair"}
CREATE_CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"model": "Acme.m"}, "'Acme.m' is not a model's name: .*1 to 63 lower-case letters"),
    ({"domain": "a//b"}, "'a//b' is not a domain's name: .*root/branch.*lower-case letters"),
    ({"task": "clasification"}, "did you mean 'classification'"),
    ({"options": {"epoch": 3}}, "options.epoch: .*did you mean 'epochs'"),
    ({"options": {"module": {"rnak": 3}}}, "options.module.rnak: .*did you mean 'rank'"),
    ({"options": {"module": "lora"}}, "must be an object with kind, rank, sites, size"),
    ({"options": {"epochs": 2.5}}, "is the number 2.5, and must be a whole number"),
    ({"data": "rows.csv"}, "is the text 'rows.csv', and must be an object with path$"),
    ({"data": None, "dev": {"path": ""}}, "^dev.path: is empty"),
]
TENANT: list[tuple[dict[str, Any], str]] = [
    ({"tenant": "Acme Ltd"}, "'Acme Ltd' is not a name: use 1 to 63 lower-case letters .a-z."),
    ({"tenant": "a" * 10_000_000}, "^.{,200}$"),
    ({"a" * 10_000_000: 1}, "^.{,200}$"),
    ({str(i): 1 for i in range(50_000)}, "^body: 50001 values in it are wrong"),
]


@pytest.mark.parametrize(
    ("model", "body", "said"),
    [
        *((InferBody, body, said) for body, said in INFER),
        (MixedBody, [{"inputs": "a", "modle": "a.b"}], r"^\[0\].modle: .*did you mean 'model'"),
        *((CreateModel, CREATE | changes, said) for changes, said in CREATE_CHANGES),
        *((CreateTenant, body, said) for body, said in TENANT),
    ],
)
def test_says_what_is_wrong_in_words(model: Any, body: Any, said: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse(model, json.dumps(body).encode())
    assert re.search(said, caught.value.message), caught.value.message
    assert not FOREIGN.search(caught.value.message)
    assert len(caught.value.details.get("fields", ())) <= 20


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "ends too early .line 1, column 0"),
        (b'{"inputs": "a"', "ends too early"),
        (b'{"inputs": "a",}', "comma with nothing after it"),
        (b"{'inputs': 1}", "in double quotes"),
        (b'{"inputs": "a"} x', "text after its end"),
        (b'{"inputs": "a\nb"}', "line break"),
        (b"[" * 1000, "nested too deeply"),
        (b"nothing", "is not JSON"),
        (b'{"inputs": "\\q"}', "a backslash begins no JSON escape .*: write a backslash as two"),
        (b'{"inputs": 01}', "a number is not written as JSON requires"),
        (b'{"inputs": "a\xff"}', "not UTF-8"),
        (b'{"inputs": "\\ud800', "ends within a string"),
        (b'{"inputs": "\\ud800\\u', "ends within a string"),
        (b"\0", "is not JSON"),
        (b'\xef\xbb\xbf{"inputs": "a"}', "begins with a byte-order mark: leave out its first three bytes"),
        *(
            ('{"inputs": "a"}'.encode(wide), "is UTF-16 or UTF-32: send UTF-8")
            for wide in ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be")
        ),
    ],
)
def test_says_why_a_body_is_no_json(body: bytes, said: str) -> None:
    with pytest.raises(Malformed, match=said) as caught:
        parse(InferBody, body)
    assert not FOREIGN.search(caught.value.message)
    assert caught.value.details == {"field": "body"}


HALF = (
    "half of a surrogate pair stands alone .line 1, column [0-9]+.: write both halves, or the "
    "character itself$"
)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (rb'{"inputs": "\ud800"}', "inputs"),
        (rb'{"inputs": "\udc00"}', "inputs"),
        (rb'{"inputs": ["a", {"text": "\ud83d\ude00 \ud83d", "text_pair": "\udc00"}]}', "inputs[1].text"),
        (rb'{"inputs": "a", "parameters": {"x": "\ud800\ud800"}}', "parameters.x"),
        (rb'{"\ud800": "a"}', "body"),
        (rb'"\ud800"', "body"),
        (b'["\\ud800", ' + b"[" * 5000, "body"),
        (b'{"inputs": "\\ud800", "\xff": 1}', "body"),
        (b'["\\ud800", ' + b"[" * 900 + b"]" * 900 + b"]", "[0]"),
    ],
)
def test_half_a_surrogate_pair_is_called_so(body: bytes, field: str) -> None:
    with pytest.raises(Malformed, match=HALF) as caught:
        parse(InferBody, body)
    assert caught.value.details == {"field": field}
    caught.value.message.encode()
    assert parse(InferBody, rb'{"inputs": "\ud83d\ude00"}').inputs == "😀"


TWO_RETURNS = b'{"inputs": "a", "parameters": {"return": [], "exact": true, "return": []}}'
TWO_RANKS = b'{"model": "a.b", "domain": "a", "task": "pair", "options": {"module": {"rank": 2, "rank": 3}}}'


@pytest.mark.parametrize(
    ("model", "body", "field"),
    [
        (InferBody, b'{"inputs": "a", "inputs": "b"}', "inputs"),
        (InferBody, rb'{"inputs": "a", "in\u0070uts": "a"}', "inputs"),
        (InferBody, b'{"inputs": ["a", {"text": "a", "text": "a"}]}', "inputs[1].text"),
        (InferBody, b'{"inputs": [{"tokens": ["a"], "tokens": ["a"]}]}', "inputs[0].tokens"),
        (InferBody, TWO_RETURNS, "parameters.return"),
        (MixedBody, b'[{"inputs": "a", "model": "a.b", "model": "a.c"}]', "[0].model"),
        (CreateModel, TWO_RANKS, "options.module.rank"),
    ],
)
@pytest.mark.parametrize("small", [True, False])
def test_a_member_is_not_given_twice(
    model: Any, body: bytes, field: str, small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_text, "SMALL_BYTES", 1 << 16 if small else 0)
    with pytest.raises(InvalidInput, match="is given 2 times: give it once") as caught:
        parse(model, body, None if model is CreateModel else count_members)
    assert caught.value.details["field"] == caught.value.details["fields"][0]["field"] == field


def test_a_large_body_is_not_read_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_text, "SMALL_BYTES", 0)
    monkeypatch.setattr(json_text, "json", None)
    rng = random.Random(7)
    for _ in range(300):
        one = draw({"$ref": "#/components/schemas/InferBody"}, rng, 0)
        several = [
            {**draw({"$ref": "#/components/schemas/InferBody"}, rng, 0), "model": "a.b"} for _ in range(3)
        ]
        for model, value in ((InferBody, one), (MixedBody, several)):
            text = json.dumps(value).replace("tiny", rng.choice(["tiny", 'a: \\"b\\":', "::"]))
            assert isinstance(parse(model, text.encode(), count_members), (InferBody, list))


def test_a_query_names_a_thing_once() -> None:
    (route,) = (r for r in ROUTES if r.query is ModelQuery)
    with pytest.raises(InvalidInput, match="limit is given more than once") as caught:
        parse_query(route, MultiDict([("limit", "1"), ("after", "a.b"), ("limit", "2")]))
    assert caught.value.details["field"] == "limit"


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"limit": "x"}, "must be a whole number"),
        ({"limit": "0"}, "at least 1"),
        ({"tasks": "pair"}, "did you mean 'task'"),
        ({"tenant": "A"}, "lower-case"),
        ({"colour": "red"}, "the fields here are tenant, domain, task, after, limit"),
    ],
)
def test_says_what_is_wrong_with_a_query(query: dict[str, str], said: str) -> None:
    (route,) = (r for r in ROUTES if r.query is ModelQuery)
    with pytest.raises(InvalidInput, match=said) as caught:
        parse_query(route, query)
    assert not FOREIGN.search(caught.value.message)


@pytest.mark.parametrize(
    "route",
    [r for r in ROUTES if r.body not in (None, bytes) and not r.form],
    ids=lambda r: f"{r.method} {r.path}",
)
def test_no_odd_body_is_answered_in_python(route: Route) -> None:
    operation = DOCUMENT["paths"][route.path][route.method.lower()]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    rng, refused = random.Random(6), 0
    for _ in range(150):
        try:
            parse(route.body, json.dumps(draw(schema, rng, rng.choice([0.2, 0.5, 1.0]))).encode())
        except HmiError as error:
            refused += 1
            told = [error.message, *(field["message"] for field in error.details.get("fields", ()))]
            assert not [message for message in told if FOREIGN.search(OWN_NAMES.sub("", message))]
    assert refused > 20
