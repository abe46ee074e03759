"""Sends all tenants' test rows as concurrent, mixed requests, and scores the answers."""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from hmi.client import Client
from hmi.demo.dataset import Row
from hmi.demo.folder import TenantFolder, read_rows
from hmi.demo.onboard import WRITING_ROOT, TenantKeyFile
from hmi.demo.steps import Steps
from hmi.errors import HmiError
from hmi.training.tasks.scoring import headline, score_labels, score_tags
from hmi.training.writing.scoring import score_written

CONCURRENCY = 8
MAX_TOKENS = 200
"""The most tokens that a model writes for a row."""
ORDERS = ("trigram", "bigram", "unigram", "miss")


@dataclass
class TenantAnswers:
    """The answers to one tenant's requests."""

    gold: list[Any] = field(default_factory=list)
    got: list[Any] = field(default_factory=list)
    times_ms: list[float] = field(default_factory=list)
    hits: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class TenantResult:
    """A tenant's line in the table. `value` is, on the test rows, accuracy; entity F1 of a tagging model; the
    share of texts that equal the completion of a model that writes."""

    model: str
    domain: str
    task: str
    about: str
    metric: str
    value: float
    rows: int
    failed: int
    hits: dict[str, float]
    """The fraction of tokens that each order answered."""
    p50_ms: float
    p95_ms: float
    bytes: int
    errors: tuple[str, ...] = ()


def measure(
    client: Client, tenants: Sequence[TenantFolder], keys: TenantKeyFile, steps: Steps
) -> list[TenantResult]:
    """Send every test row as its own request, tenants mixed, CONCURRENCY at a time."""
    at, limit = client.config.url, client.config.timeout_s
    requests = [(t, row) for t in tenants for row in read_rows(t.test)]
    random.Random(0).shuffle(requests)
    collected: dict[str, TenantAnswers] = defaultdict(TenantAnswers)
    start = time.monotonic()
    pool = ThreadPoolExecutor(CONCURRENCY)
    try:
        with steps.bar() as bar, ExitStack() as opened:
            clients = {
                t.tenant: opened.enter_context(Client(at, keys[t.tenant], timeout_s=limit)) for t in tenants
            }
            task = bar.add_task("requests", total=len(requests))
            for tenant, answer in pool.map(lambda r: (r[0], _ask(clients[r[0].tenant], *r)), requests):
                _collect(collected[tenant.id], answer)
                bar.advance(task)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    elapsed = time.monotonic() - start
    steps.say(f"{len(requests)} requests, {len(requests) / elapsed:.0f} a second, {CONCURRENCY} at a time")
    sizes = {model.model: model.bytes for model in client.models.list()}
    return [_measurement_of(t, collected[t.id], sizes.get(t.id, 0)) for t in tenants]


def inputs_of(row: Row) -> dict[str, Any]:
    """Return a row's inputs for the API, without its label."""
    return {name: row[name] for name in ("text", "text_pair", "tokens") if name in row}


def writing_body(tenant: TenantFolder, row: Row) -> dict[str, Any]:
    """Return what a model that writes is asked about a row. Its answer keeps the tenant's form."""
    form = {"form": tenant.form} if tenant.form else {}
    return {"prompt": row["prompt"], "max_tokens": MAX_TOKENS, **form}


@dataclass(frozen=True)
class _Answer:
    gold: Any
    got: Any
    plot: dict[str, int]
    time_ms: float
    error: str = ""


def _ask(client: Client, tenant: TenantFolder, row: Row) -> _Answer:
    gold = row["tags"] if tenant.task == "tagging" else str(row["completion" if tenant.writes else "label"])
    start = time.perf_counter()
    try:
        got, plot = _written(client, tenant, row) if tenant.writes else _predicted(client, tenant, row)
    except HmiError as error:
        return _Answer(gold, None, {}, 0.0, f"{error.kind}: {error.message}")
    return _Answer(gold, got, plot, 1000 * (time.perf_counter() - start))


def _predicted(client: Client, tenant: TenantFolder, row: Row) -> tuple[Any, dict[str, int]]:
    answer = client.call(tenant.id, [inputs_of(row)], returns=["provenance"])
    output = answer.predictions[0]
    return output.tags or output.label, (answer.provenance or {}).get("plot", {})


def _written(client: Client, tenant: TenantFolder, row: Row) -> tuple[str, dict[str, int]]:
    answer = client.generate(tenant.id, **writing_body(tenant, row))
    return answer.text, answer.plot


def _collect(answers: TenantAnswers, answer: _Answer) -> None:
    if answer.error:
        answers.errors.append(answer.error)
        return
    answers.gold.append(answer.gold)
    answers.got.append(answer.got)
    answers.times_ms.append(answer.time_ms)
    answers.hits.update(answer.plot)


def _measurement_of(tenant: TenantFolder, answers: TenantAnswers, size: int) -> TenantResult:
    metric, value = _score(tenant, answers)
    total = sum(answers.hits[order] for order in ORDERS)
    return TenantResult(
        model=tenant.id,
        domain=WRITING_ROOT if tenant.writes else tenant.domain,
        task=tenant.task,
        about=tenant.about,
        metric=metric,
        value=value,
        rows=len(answers.gold),
        failed=len(answers.errors),
        hits={order: round(answers.hits[order] / max(1, total), 4) for order in ORDERS},
        p50_ms=round(_percentile(answers.times_ms, 50), 2),
        p95_ms=round(_percentile(answers.times_ms, 95), 2),
        bytes=size,
        errors=tuple(sorted(set(answers.errors))[:3]),
    )


def _score(tenant: TenantFolder, answers: TenantAnswers) -> tuple[str, float]:
    """Return the name of a tenant's measure, and its value."""
    gold, got = answers.gold, answers.got
    if tenant.task == "tagging":
        return "entity F1", headline(score_tags(gold, got)) if gold else 0.0
    if tenant.writes:
        return "exact match", float(score_written(gold, got)["exact_match"])
    return "accuracy", headline(score_labels(gold, got, sorted({*gold, *got}))) if gold else 0.0


def _percentile(values: list[float], percent: int) -> float:
    if len(values) < 2:
        return values[0] if values else 0.0
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]
