"""What `scripts/ruler.py` asks, and how it compares: rows, calls drawn by a seed, differences.

All text lies in the tree of the old release: sentences of `docs/*.md`, and the files of `examples/`. A call
is a dict: `kind`; `who`, the name of a key, or "" for none; `method`; `path`; `headers`; `body`, a text or
None.
"""

from __future__ import annotations

import base64
import csv
import json
import random
import re
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Json = Any
VOLATILE = frozenset((
    "timing", "request_id", "since", "started", "points", "compute_ms", "last_used", "us_per_token",
    "measured_at", "planner", "anonymous", "files", "limit_bytes", "registry", "audit",
))  # fmt: skip
"""Fields that differ from run to run: left out of every answer when it is compared, at any depth."""
REQUEST = re.compile(r"[0-9a-f]{32}(\.\d+)?")
"""An `id` of this form names a request, and is left out, too."""
TOLERANCE = 1e-5
"""The greatest difference of two numbers that count as equal."""
ROOT, DOMAIN, TENANTS = "minilm", "minilm/docs", ("acme", "bolt")
LEARNT = {"epochs": "2", "batch": "8", "lr": "0.003"}
"""Enough training for answers that are not all the same."""
MODELS: tuple[dict[str, Any], ...] = (
    {"model": "acme.intent", "task": "classification", "form": "text", "options": {"lexical": "true"}},
    {"model": "acme.pages", "task": "pair", "form": "pair", "options": {"module.kind": "parallel"}},
    {"model": "acme.marks", "task": "multilabel", "form": "text", "options": {"module.kind": "houlsby"}},
    {"model": "acme.search", "task": "embedding", "form": "text", "options": {}},
    {"model": "bolt.orders", "task": "tagging", "form": "tokens", "options": {"max_length": "48"}},
    {"model": "bolt.length", "task": "regression", "form": "text", "options": {"module.kind": "sequential"}},
)
SENTENCE = re.compile(r"[A-Z][^|`\n]{30,280}[.:]")
ODD = (
    "\u200b", "é e\u0301 ﬁ Ａ", "数据 模型 です", "שלום עולם", "\U0001f469\u200d\U0001f52c\U0001f9ec",
    "\x00\x07", "a\u00a0b\u2028c", "\ufffd\ufeff", "ß" * 300, "x" * 5000, "....", "[CLS] [SEP] [MASK]",
    "<b>&amp;</b>", "1e-5 −3,5 %", "\U0001d518\U0001d52b\U0001d526", "a\nb\tc\r\n", "'\"\\{}",
)  # fmt: skip
BROKEN: tuple[Json, ...] = (
    {"inputs": []}, {"inputs": "  "}, {"inputs": [""]}, {"inputs": [3]}, {"inputs": [{"tokens": []}]}, {},
    [], "text", {"inputs": [{"tokens": ["a", " "]}]}, {"inputs": [{"text": "a", "text_pair": " "}]},
    {"inputs": "a", "more": 1}, {"inputs": "a", "parameters": {"return": ["all"]}},
    {"inputs": "a", "parameters": {"deadline_ms": 0}}, {"inputs": "\ud800"}, {"inputs": "a" * 100_001},
    {"inputs": [{"tokens": ["a"] * 10_001}]}, {"inputs": ["a"] * 1025},
    {"inputs": "a", "parameters": {"exact": "perhaps"}}, {"inputs": [{"text": 1}, {"words": "a"}]},
    {"inputs": "a", "parameters": {"utility": 2}},
)  # fmt: skip
READ = (
    "/manage/roots", "/manage/domains", "/manage/domains/minilm.docs", "/manage/domains/minilm.none",
    "/manage/tenants", "/manage/tenants/acme", "/manage/tenants/bolt", "/manage/tenants/nobody",
    "/manage/tenants/acme/usage", "/manage/tenants/bolt/usage", "/manage/tenants/acme/keys",
    "/manage/models", "/manage/models?limit=2", "/manage/models?limit=0", "/manage/models?task=pair",
    "/manage/models?after=acme.marks", "/manage/models/acme.none", "/manage/models/bolt.orders/exits",
    "/manage/models/acme.intent/cascade", "/manage/models/acme.intent/tokens", "/manage/jobs",
    "/manage/jobs?state=failed", "/manage/jobs/none", "/manage/backups", "/manage/stats", "/manage/nothing",
    "/v1/models", "/v1/models/acme.intent", "/v1/files", "/v1/fine_tuning/jobs?limit=1", "/v2",
    "/v2/health/ready", "/v2/models/acme.pages", "/v2/models/bolt.orders/config", "/v2/models/acme.none",
    "/info", "/health", "/healthz", "/readyz", "/infer/acme.intent",
    *(f"/manage/models/{m['model']}" for m in MODELS),
)  # fmt: skip
ONCE = ("/", "/dashboard", "/page/none.js", "/metrics", "/manage/overview", "/manage/audit?limit=3")
"""Read once with each key, since their answers are long."""
WRONG: tuple[tuple[str, str, str | None], ...] = (
    ("POST", "/manage/tenants", '{"tenant": "No Name"}'),
    ("POST", "/manage/tenants", '{"tenant": "acme"}'),
    ("POST", "/manage/models", '{"model": "acme.new", "domain": "minilm/none", "data": {"rows": []}}'),
    ("POST", "/manage/domains", '{"domain": "none/x", "corpus": {"rows": []}}'),
    ("PATCH", "/manage/models/acme.search", '{"objective": {"agreement": 0.9}}'),
    ("PATCH", "/manage/models/acme.intent", '{"objective": {"agreement": 2}}'),
    ("POST", "/manage/models/acme.intent/rollback", '{"version": 9}'),
    (
        "POST",
        "/manage/models/acme.intent/feedback",
        '{"items": [{"id": "none", "index": 0, "label": "refund"}]}',
    ),
    ("DELETE", "/manage/models/acme.none", None),
    ("DELETE", "/manage/jobs/none", None),
    ("PUT", "/manage/models", "{}"),
    ("POST", "/manage/check", '{"data": {"rows": [{"text": "a", "label": "x"}, {"text": "b"}]}}'),
    ("POST", "/v1/chat/completions", '{"model": "acme.intent", "messages": []}'),
    ("POST", "/v1/embeddings", '{"model": "acme.intent", "input": "a"}'),
    ("POST", "/v2/models/acme.intent/generate", '{"text_input": "a"}'),
    ("POST", "/v2/repository/models/acme.intent/unload", "{}"),
    ("POST", "/embed", '{"inputs": "a"}'),
    ("POST", "/nowhere", "{}"),
)
COMMANDS = (
    "root list --json", "root show minilm --json", "domain list --json", "domain show minilm/docs --json",
    "tenant list --json", "model list", "model list --json", "model show acme.intent --json",
    "model report acme.intent", "model report bolt.orders --json", "model report acme.none",
    "key list acme --json", "infer acme.intent where_is_my_parcel --json --scores",
    "infer acme.pages one --pair two --json", "infer bolt.orders a_kettle_to_Madrid", "infer acme.none a",
    "infer acme.intent a --tokens --json", "check examples/tickets.csv",
    "check examples/stores.csv --json", "check LICENSE", "store info --json", "settings --json",
    "config check", "model", "nonsense", "model create acme.new none.csv --domain minilm",
)  # fmt: skip
"""Read-only commands, and some that fail."""


def sentences(tree: Path) -> dict[str, list[str]]:
    """The sentences of each page of `docs/`, by the page's name."""
    pages = {p.stem: p.read_text(encoding="utf-8") for p in sorted((tree / "docs").glob("*.md"))}
    found = {name: SENTENCE.findall(text) for name, text in pages.items()}
    return {name: lines for name, lines in found.items() if len(lines) >= 10}


def rows_of(tree: Path) -> dict[str, list[Json]]:
    """The rows of each task but embedding, always the same for the same tree."""
    draw, pages = random.Random(1), sentences(tree)
    with (tree / "examples/tickets.csv").open(encoding="utf-8", newline="") as file:
        tickets = list(csv.DictReader(file))
    blocks = (tree / "examples/orders.conll").read_text(encoding="utf-8").strip().split("\n\n")
    words = [[line.split() for line in block.splitlines()] for block in blocks]
    pairs = []
    for _ in range(96):
        here, there = draw.sample(sorted(pages), 2)
        label, second = draw.choice((("same", here), ("other", there)))
        one, other = draw.choice(pages[here]), draw.choice(pages[second])
        pairs.append({"text": one, "text_pair": other, "label": label})
    lines = draw.sample([line for found in pages.values() for line in found], 96)
    marks = {"long": r".{150}", "number": r"\d", "model": r"\b[Mm]odel", "list": r", .*, "}
    labels = [[name for name, mark in marks.items() if re.search(mark, line)] for line in lines]
    return {
        "classification": tickets,
        "pair": pairs,
        "multilabel": [{"text": t, "labels": each} for t, each in zip(lines, labels, strict=True)],
        "tagging": [{"tokens": [w for w, _ in row], "tags": [t for _, t in row]} for row in words],
        "regression": [{"text": line, "value": len(line.split()) / 10} for line in lines],
    }


class Calls:
    """Draws calls from a seed; equal for an equal tree and seed."""

    def __init__(self, tree: Path, seed: int) -> None:
        self.draw = random.Random(seed)
        rows, pages = rows_of(tree), sentences(tree)
        self.texts = [r["text"] for r in rows["classification"]] + [t for p in pages.values() for t in p]
        self.words = [row["tokens"] for row in rows["tagging"]]

    def all(self, count: int) -> list[Json]:
        """`count` calls: first every read with every key, then drawn ones."""
        reads = [_call("read", who, "GET", path) for path in READ + ONCE for who in ("admin", *TENANTS, "")]
        found = reads[:count]
        ways = (self.single, self.mixed, self.tei, self.openai, self.hub, self.oip, self.read, self.broken)
        while len(found) < count:
            found.append(self.draw.choices(ways, (42, 8, 10, 8, 6, 8, 8, 10))[0]())
        return found

    def single(self) -> Json:
        model = self.model()
        return self.to(model, "infer", f"/infer/{model['model']}", self.asked(model))

    def mixed(self) -> Json:
        models = self.draw.sample(MODELS, self.draw.randint(2, 4))
        body = [{"model": model["model"], **self.asked(model, 4)} for model in models]
        return _call("mixed", "admin", "POST", "/infer", body)

    def tei(self) -> Json:
        if self.draw.random() < 0.6:
            path = self.draw.choice(("/embed", "/embed", "/similarity", "/rerank"))
            texts: Json = self.many()
            first = self.text()
            query = {"source_sentence": first, "sentences": texts}
            bodies = {"/embed": {"inputs": texts}, "/similarity": {"inputs": query}}
            body = bodies.get(path, {"query": first, "texts": texts})
            return self.to(MODELS[3], "tei", path, body, {"X-Model": "acme.search"})
        model = self.model("classification", "pair", "multilabel", "regression")
        inputs = [[self.text() for _ in range(1 + (model["form"] == "pair"))] for _ in range(self.size())]
        body = {"inputs": inputs, "raw_scores": self.draw.random() < 0.2}
        return self.to(model, "tei", "/predict", body, {"X-Model": model["model"]})

    def openai(self) -> Json:
        body = {"model": "acme.search", "input": self.many()}
        if self.draw.random() < 0.3:
            body["encoding_format"] = "base64"
        return self.to(MODELS[3], "openai", "/v1/embeddings", body)

    def hub(self) -> Json:
        model = self.model("classification", "multilabel", "tagging", "embedding")
        inputs = self.many()
        return self.to(model, "hub", f"/hf/{model['model']}", {"inputs": inputs})

    def oip(self) -> Json:
        model, size = self.model(), self.size()
        columns = ("TEXT", "TEXT_PAIR") if model["form"] == "pair" else ("TEXT",)
        data = {name: [self.text() for _ in range(size)] for name in columns}
        if model["form"] == "tokens" and self.draw.random() < 0.5:
            data = {"TOKENS": [json.dumps(self.draw.choice(self.words)) for _ in range(size)]}
        tensors = [
            {"name": name, "shape": [size], "datatype": "BYTES", "data": of} for name, of in data.items()
        ]
        return self.to(model, "oip", f"/v2/models/{model['model']}/infer", {"inputs": tensors})

    def read(self) -> Json:
        return _call("read", self.draw.choice(("admin", "admin", *TENANTS)), "GET", self.draw.choice(READ))

    def broken(self) -> Json:
        """A call with one mistake: of its body, its path, its key, or its model among sound ones."""
        model, way = self.model(), self.draw.randrange(6)
        path, bad = f"/infer/{model['model']}", self.draw.choice(BROKEN)
        if way == 0:
            who = self.draw.choice(("", "unknown", next(t for t in TENANTS if not self.owns(t, model))))
            return _call("broken", who, "POST", path, self.asked(model))
        if way == 1:
            method, path, text = self.draw.choice(WRONG)
            return _call("broken", "admin", method, path, text)
        if way == 2:
            text = json.dumps(self.asked(model))
            return _call("broken", "admin", "POST", path, text[: self.draw.randrange(len(text))])
        if way == 3:
            body = [{"model": m["model"], **self.asked(m, 2)} for m in self.draw.sample(MODELS, 2)]
            other = {"model": self.draw.choice(("acme.none", "none.pair", "x")), "inputs": "a"}
            body.insert(
                self.draw.randrange(3), {"model": model["model"], **bad} if isinstance(bad, dict) else other
            )
            return _call("broken", "admin", "POST", "/infer", body)
        if way == 4:
            body = self.asked(model)
            other = self.draw.choice([m for m in MODELS if m["form"] != model["form"]])
            body["inputs"].insert(self.draw.randint(0, len(body["inputs"])), self.one(other["form"]))
            return _call("broken", "admin", "POST", path, body)
        return _call("broken", "admin", "POST", path, bad)

    def asked(self, model: Json, most: int = 8) -> Json:
        """A sound body of `/infer` with 1 to `most` inputs."""
        returned = self.draw.sample(("scores", "provenance", "words"), self.draw.randint(0, 2))
        parameters: Json = {"return": returned}
        for name, value, chance in (
            ("exact", True, 0.1),
            ("calibrated", True, 0.1),
            ("priority", "low", 0.05),
            ("deadline_ms", 3_000_000, 0.05),
        ):
            if self.draw.random() < chance:
                parameters[name] = value
        inputs = [self.one(model["form"]) for _ in range(min(most, self.size()))]
        return {"inputs": inputs, "parameters": parameters}

    def one(self, form: str) -> Json:
        if form == "pair":
            return {"text": self.text(), "text_pair": self.text()}
        if form == "tokens" and self.draw.random() < 0.6:
            return {"tokens": self.draw.choice(self.words)}
        return self.text() if self.draw.random() < 0.6 else {"text": self.text()}

    def text(self) -> str:
        """A text: real, short, very long, or odd."""
        kind = self.draw.choices(("real", "short", "long", "odd"), (70, 18, 3, 9))[0]
        found: str = self.draw.choice(self.texts)
        if kind == "short":
            return " ".join(found.split()[:3])
        if kind == "long":
            return " ".join(self.draw.sample(self.texts, self.draw.randint(5, 30)))
        return " ".join((*self.draw.sample(ODD, 2), found)) if kind == "odd" else found

    def many(self) -> list[str]:
        return [self.text() for _ in range(self.size())]

    def size(self) -> int:
        return self.draw.choices((1, 2, 3, 4, 5, 6, 7, 8), (45, 15, 10, 10, 5, 5, 5, 5))[0]

    def model(self, *tasks: str) -> Json:
        return self.draw.choice([m for m in MODELS if not tasks or m["task"] in tasks])

    def owns(self, tenant: str, model: Json) -> bool:
        return bool(model["model"].startswith(tenant + "."))

    def to(
        self, model: Json, kind: str, path: str, body: Json, headers: dict[str, str] | None = None
    ) -> Json:
        """A call with the key of the model's tenant, or, one in five, the administrator's."""
        who = "admin" if self.draw.random() < 0.2 else model["model"].split(".")[0]
        return _call(kind, who, "POST", path, body, headers)


def _call(
    kind: str, who: str, method: str, path: str, body: Json = None, headers: dict[str, str] | None = None
) -> Json:
    text = body if body is None or (isinstance(body, str) and body != "text") else json.dumps(body)
    return {"kind": kind, "who": who, "method": method, "path": path, "headers": headers or {}, "body": text}


def commands() -> Iterator[list[str]]:
    """The words of each command; an underscore in COMMANDS stands for a space of a text."""
    for line in COMMANDS:
        yield [word.replace("_", " ") for word in line.split(" ")]


def bare(answer: Json) -> Json:
    """An answer without its volatile fields; an embedding in base64 becomes a list of floats."""
    if isinstance(answer, list):
        return [bare(each) for each in answer]
    if isinstance(answer, dict):
        kept = {name: value for name, value in answer.items() if name not in VOLATILE}
        if REQUEST.fullmatch(str(kept.get("id"))):
            del kept["id"]
        if isinstance(packed := kept.get("embedding"), str):
            kept["embedding"] = list(array("f", base64.b64decode(packed)))
        return {name: bare(value) for name, value in kept.items()}
    return answer


def parsed(text: str) -> Json:
    try:
        return json.loads(text)
    except ValueError:
        return text


def metrics(text: str) -> Json:
    """The names and types of the metrics of a page; their values differ from run to run."""
    return sorted(line for line in text.splitlines() if line.startswith("# TYPE"))


@dataclass
class Differences:
    """What differs between two answers, by name; floats within the tolerance are only counted."""

    names: list[str] = field(default_factory=list)
    numbers: int = 0
    bit_equal: int = 0
    greatest: float = 0.0

    def look(self, a: Json, b: Json, place: str) -> None:
        if isinstance(a, float) and isinstance(b, float):
            self.numbers += 1
            self.bit_equal += a == b
            self.greatest = max(self.greatest, abs(a - b))
            if not abs(a - b) <= TOLERANCE:
                self.names.append(f"{place}: {a!r}, {b!r}")
        elif isinstance(a, dict) and isinstance(b, dict):
            for name in sorted(a.keys() | b.keys()):
                if name in a and name in b:
                    self.look(a[name], b[name], f"{place}.{name}")
                else:
                    self.names.append(f"{place}.{name}: {'gone' if name in a else 'new'}")
        elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
            for i, (one, other) in enumerate(zip(a, b, strict=True)):
                self.look(one, other, f"{place}[{i}]")
        elif type(a) is not type(b) or a != b:
            self.names.append(f"{place}: {repr(a)[:80]}, {repr(b)[:80]}")


def surface_differences(old: Json, new: Json) -> list[str]:
    """The differences of two surfaces by name, such as `hmi serve: + --flag` or `openapi.paths./x: gone`."""
    documents = Differences()
    documents.look(old["openapi"], new["openapi"], "openapi")
    names = sorted(documents.names)
    helps: tuple[dict[str, list[str]], dict[str, list[str]]] = old["commands"], new["commands"]
    for name in sorted(helps[0].keys() | helps[1].keys()):
        if name not in helps[0] or name not in helps[1]:
            names.append(f"{name}: {'gone' if name in helps[0] else 'new'}")
            continue
        before, after = (Counter(" ".join(line.split()) for line in each[name]) for each in helps)
        names += [f"{name}: - {line}" for line in before - after] + [
            f"{name}: + {line}" for line in after - before
        ]
    return names
