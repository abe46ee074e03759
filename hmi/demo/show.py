"""The demo's final table, its JSON, and an example call."""

from __future__ import annotations

import json
import os
import platform
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from hmi import __version__
from hmi.core import now
from hmi.demo.baseline import Dedicated, mean_ratio, ratio
from hmi.demo.client import DemoClient
from hmi.demo.folder import TenantFolder, read_rows
from hmi.demo.measure import TenantResult, inputs_of
from hmi.demo.steps import Steps
from hmi.model.files import write_json

_SHOWN_CHARACTERS = 160


def print_table(steps: Steps, rows: Sequence[TenantResult]) -> None:
    """Print a line for each tenant. Hits are shares of tokens answered by trigrams, bigrams and unigrams."""
    table = Table(title="Every tenant's test set, sent as requests")
    for title in ("tenant.model", "domain", "task", "what it answers"):
        table.add_column(title, overflow="fold")
    for title in ("score", "tri/bi/uni %", "p50 ms", "p95 ms", "KB", "answered"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        hits = "/".join(f"{100 * row.hits[order]:.0f}" for order in ("trigram", "bigram", "unigram"))
        score = f"{100 * row.value:.1f}{' F1' if row.task == 'tagging' else ''}"
        table.add_row(
            *(row.model, row.domain, row.task, row.about, score, hits),
            *(f"{row.p50_ms:.1f}", f"{row.p95_ms:.1f}", f"{row.bytes / 1000:.0f}"),
            f"{row.rows}/{row.rows + row.failed}",
        )
    steps.console.print(table)
    for row in rows:
        for error in row.errors:
            steps.say(f"{row.model} did not answer: {error}")


def print_baseline(steps: Steps, rows: Sequence[TenantResult], dedicated: Sequence[Dedicated]) -> None:
    """Print the tenants' scores, and their ratios to those of dedicated copies of the source model."""
    table = Table(title="Against a dedicated copy, fully fine-tuned on the same rows with the same seed")
    for title in ("tenant.model", "score", "dedicated", "ratio", "learning rate", "epoch", "MB of the copy"):
        table.add_column(title, justify="left" if title == "tenant.model" else "right")
    values = {row.model: row.value for row in rows}
    for copy in dedicated:
        table.add_row(
            *(copy.model, f"{100 * values[copy.model]:.1f}", f"{100 * copy.test:.1f}"),
            *(f"{ratio(values, copy):.3f}", f"{copy.lr:g}", str(copy.epoch), f"{copy.bytes / 1e6:.0f}"),
        )
    steps.console.print(table)
    steps.say(f"mean ratio {mean_ratio(values, dedicated):.3f}")


def save(path: Path, steps: Steps, rows: Sequence[TenantResult], dedicated: Sequence[Dedicated] = ()) -> None:
    """Write all figures to `path`."""
    values = {row.model: row.value for row in rows}
    body: dict[str, Any] = {
        "demo": __version__,
        "date": now(),
        "machine": {
            "cpus": os.cpu_count(),
            "processor": platform.machine(),
            "python": platform.python_version(),
        },
        "steps_s": steps.times,
        "tenants": [asdict(row) for row in rows],
    }
    if dedicated:
        copies = [{**asdict(copy), "ratio": round(ratio(values, copy), 4)} for copy in dedicated]
        body["baseline"] = {"mean_ratio": round(mean_ratio(values, dedicated), 4), "copies": copies}
    write_json(path, body)


def print_try(steps: Steps, client: DemoClient, tenant: TenantFolder, keys: Path) -> None:
    """Print the address, a curl command and its real answer."""
    body = {"inputs": _short(inputs_of(read_rows(tenant.test)[0]))}
    answer: Mapping[str, Any] = client.post(f"/infer/{tenant.id}", body)
    data = shlex.quote(json.dumps(body, ensure_ascii=False))
    steps.console.print(f"[bold]Serving on {client.address}[/bold]", highlight=False)
    steps.say(f"the tenants' keys are in {keys}; calls from this machine need no key, such as")
    steps.console.print(
        f"curl -s {client.address}/infer/{tenant.id} -H 'Content-Type: application/json' -d {data}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    steps.console.print(json.dumps(answer, ensure_ascii=False), highlight=False, markup=False, soft_wrap=True)


def _short(row: dict[str, Any]) -> Any:
    """Return an input that fits on a command line; a text is cut at a word."""
    if set(row) == {"text"}:
        text = str(row["text"])
        return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS].rsplit(" ", 1)[0]
    return [row]
