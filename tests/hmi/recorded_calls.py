"""The calls that `tests.hmi.recorded` sends: drawn by a seed from the models and texts of a data folder.

Of all tasks and tenants, single and mixed, with 1 to 32 inputs that are real, short, very long or odd, exact
or not, with every field of `return`; some are broken, and what is stored is read first.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

Json = Any
ODD = (
    "\u200b",
    "é e\u0301 ﬁ Ａ",
    "数据 模型 です",
    "שלום עולם",
    "\U0001f469\u200d\U0001f52c\U0001f9ec",
    "\x00\x07",
    "a\u00a0b\u2028c",
    "\ufffd\ufeff",
    "ß" * 300,
    "x" * 5000,
    "....",
    "[CLS] [SEP] [MASK]",
    "<b>&amp;</b>",
    "1e-5 −3,5 %",
    "\U0001d518\U0001d52b\U0001d526",
    "a\nb\tc\r\n",
    "'\"\\{}",
)
BROKEN: tuple[Json, ...] = (
    {"inputs": []},
    {"inputs": "  "},
    {"inputs": [""]},
    {"inputs": [3]},
    {"inputs": [{"tokens": []}]},
    {},
    [],
    "text",
    {"inputs": [{"tokens": ["a", " "]}]},
    {"inputs": [{"text": "a", "text_pair": " "}]},
    {"inputs": "a", "more": 1},
    {"inputs": "a", "parameters": {"return": ["all"]}},
    {"inputs": "a", "parameters": {"deadline_ms": 0}},
    {"inputs": "\ud800"},
    {"inputs": "a" * 100_001},
    {"inputs": [{"tokens": ["a"] * 10_001}]},
    {"inputs": ["a"] * 1025},
    {"inputs": "a", "parameters": {"exact": "perhaps"}},
    {"inputs": [{"text": 1}, {"words": "a"}]},
)
STORED = ("roots", "domains", "domains/minilm.papers", "tenants", "models?limit=1000", "jobs?limit=1000")


def requests(known: Json, count: int, seed: int) -> Iterator[tuple[str, str, str, str | None]]:
    """`count` calls as (kind, method, path, body); equal for equal `known`, count and seed."""
    draw = random.Random(seed)
    stored = [f"/manage/{path}" for path in STORED] + [
        f"/manage/models/{m['model']}" for m in known["models"]
    ]
    for path in stored[:count]:
        yield "stored", "GET", path, None
    for _ in range(count - len(stored)):
        kind = draw.choices(("single", "mixed", "broken"), (70, 24, 6))[0]
        models = draw.sample(known["models"], draw.randint(2, 6))
        sizes = ((1, 1), (2, 4), (5, 12), (13, 32))
        most = draw.randint(*draw.choices(sizes, (55, 28, 12, 5))[0])
        one = models[0]
        if kind == "mixed":
            each = [_body(draw, known, model, max(1, most // len(models))) for model in models]
            body: Json = [
                {"model": model["model"], **asked} for model, asked in zip(models, each, strict=True)
            ]
            yield "+".join(model["task"] for model in models), "POST", "/infer", json.dumps(body)
        elif kind == "single":
            yield one["task"], "POST", f"/infer/{one['model']}", json.dumps(_body(draw, known, one, most))
        else:
            yield "broken", "POST", *_broken(draw, known, models, most)


def _broken(draw: random.Random, known: Json, models: list[Json], most: int) -> tuple[str, str]:
    """A path and a body with one mistake; in a mixed call, it stands among sound requests."""
    bad, other = (
        draw.choice(BROKEN),
        draw.choice([m for m in known["models"] if m["form"] != models[0]["form"]]),
    )
    first, way = models[0]["model"], draw.randrange(6)
    sound = [{"model": m["model"], **_body(draw, known, m, 2)} for m in models]
    if way == 0:  # an input of another task's form, often after sound ones
        body = _body(draw, known, models[0], most)
        rows = body["inputs"] if isinstance(body["inputs"], list) else [body["inputs"]]
        rows.insert(draw.randint(0, len(rows)), _one(draw, known, other["form"]))
        return f"/infer/{first}", json.dumps({**body, "inputs": rows})
    if way == 1:
        return f"/infer/{draw.choice(('acme.none', 'none.pair', 'No Name', first + '.x'))}".replace(
            " ", "%20"
        ), '{"inputs": "a"}'
    if way == 2:
        return f"/infer/{first}", json.dumps({"inputs": "some text"})[: draw.randint(0, 20)]
    if way == 3 and isinstance(bad, dict):
        sound.insert(draw.randint(0, len(sound)), {"model": first, **bad})
        return "/infer", json.dumps(sound)
    if way == 4:
        sound.insert(
            draw.randint(0, len(sound)),
            {"model": draw.choice(("acme.none", "none.pair", "x")), "inputs": "a"},
        )
        return "/infer", json.dumps(sound)
    return f"/infer/{first}", json.dumps(bad)


def _body(draw: random.Random, known: Json, model: Json, most: int) -> Json:
    """A sound body with at most `most` inputs."""
    parameters: Json = {"return": draw.sample(("scores", "provenance"), draw.randint(0, 2))}
    if draw.random() < 0.15:
        parameters["exact"] = True
    if draw.random() < 0.1:
        parameters["deadline_ms"] = 3_000_000
    inputs: Json = [_one(draw, known, model["form"]) for _ in range(most)]
    if isinstance(inputs[0], str) and most == 1 and draw.random() < 0.5:
        inputs = inputs[0]
    return {"inputs": inputs, "parameters": parameters} if draw.random() < 0.9 else {"inputs": inputs}


def _one(draw: random.Random, known: Json, form: str) -> Json:
    """An input: real, short, very long, or odd."""
    kind = draw.choices(("real", "short", "long", "odd"), (68, 18, 4, 10))[0]
    found: list[str] = list(draw.choice(known["texts"][form]))
    at = draw.randrange(len(found))
    if kind == "short":
        found = found[:2] if form == "tokens" else [" ".join(part.split()[:3]) for part in found]
    elif kind == "long" and form == "tokens":
        found = [word for words in draw.sample(known["texts"][form], draw.randint(5, 40)) for word in words]
    elif kind == "long":
        found[at] = " ".join(parts[0] for parts in draw.sample(known["texts"][form], draw.randint(5, 60)))
    elif kind == "odd":
        found[at] = " ".join(draw.sample(ODD, draw.randint(1, 3))) + draw.choice(("", found[at]))
    if form == "text":
        return found[0] if draw.random() < 0.6 else {"text": found[0]}
    return {"tokens": found} if form == "tokens" else {"text": found[0], "text_pair": found[1]}
