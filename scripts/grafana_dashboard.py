"""Writes deploy/grafana/hmi.json, a Grafana dashboard: python scripts/grafana_dashboard.py"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

FILE: Final = Path(__file__).parents[1] / "deploy" / "grafana" / "hmi.json"
SOURCE: Final = {"type": "prometheus", "uid": "${source}"}
WIDTH, HEIGHT = 8, 7
Panel = tuple[str, str, dict[str, str]]
"""A title, a unit of Grafana, and expressions by legend."""
JOB: Final = 'job=~"$job"'
RATE: Final = "[$__rate_interval]"


def _quantile(share: float, metric: str, by: str = "") -> str:
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, sum by ({labels}) (rate({metric}_bucket{{{JOB}}}{RATE})))"


def _rate(metric: str, by: str = "") -> str:
    group = f" by ({by})" if by else ""
    return f"sum{group} (rate({metric}{{{JOB}}}{RATE}))"


ROWS: Final[dict[str, list[Panel]]] = {
    "Requests": [
        ("Requests by outcome", "reqps", {"{{outcome}}": _rate("hmi_requests_total", "outcome")}),
        (
            "Time to answer, calls to infer",
            "s",
            {
                f"p{percent}": f"histogram_quantile({percent / 100}, sum by (le) "
                f'(rate(hmi_request_seconds_bucket{{{JOB}, route=~"/infer.*"}}{RATE})))'
                for percent in (50, 95, 99)
            },
        ),
        ("p95 by route", "s", {"{{route}}": _quantile(0.95, "hmi_request_seconds", "route")}),
        (
            "Refused and failed",
            "reqps",
            {
                "{{outcome}}": f"sum by (outcome) (rate(hmi_requests_total{{{JOB}, "
                f'outcome=~"quota_exceeded|unavailable|deadline_exceeded|internal|damaged|storage_full"}}{RATE}))'
            },
        ),
        ("Missed deadlines", "reqps", {"missed": _rate("hmi_deadline_misses_total")}),
        ("Release", "none", {"{{version}}": f"sum by (version) (hmi_info{{{JOB}}})"}),
    ],
    "Engine": [
        ("Time of a stage, p95", "s", {"{{stage}}": _quantile(0.95, "hmi_stage_seconds", "stage")}),
        (
            "Queue",
            "none",
            {"texts": f"sum(hmi_queue_texts{{{JOB}}})", "tokens": f"sum(hmi_queue_tokens{{{JOB}}})"},
        ),
        ("Oldest waiting text", "s", {"oldest": f"max(hmi_queue_oldest_seconds{{{JOB}}})"}),
        (
            "Streams in use",
            "percentunit",
            {"used": f"{_rate('hmi_batch_seconds_sum')} / sum(hmi_compute_streams{{{JOB}}})"},
        ),
        (
            "A batch has on average",
            "none",
            {
                what: f"{_rate(f'hmi_batch_{what}_sum')} / {_rate(f'hmi_batch_{what}_count')}"
                for what in ("inputs", "tenants")
            },
        ),
        (
            "PLOT look-ups by what answered",
            "percentunit",
            {
                "{{order}}": f"{_rate('hmi_plot_lookups_total', 'order')} / ignoring(order) group_left "
                f"{_rate('hmi_plot_lookups_total')}"
            },
        ),
        (
            "Texts with a stage on",
            "cps",
            {"{{stage}} {{setting}}": _rate("hmi_execution_stage_inputs_total", "stage, setting")},
        ),
        ("Batches by plan", "cps", {"{{kind}}": _rate("hmi_plan_batches_total", "kind")}),
        ("Texts that left early, by layer", "cps", {"layer {{site}}": _rate("hmi_exits_total", "site")}),
    ],
    "Texts that models write": [
        (
            "Time to the first token",
            "s",
            {
                f"p{percent}": _quantile(percent / 100, "hmi_writing_first_token_seconds")
                for percent in (50, 95)
            },
        ),
        ("Time between tokens, p95", "s", {"p95": _quantile(0.95, "hmi_writing_token_seconds")}),
        ("Tokens a second", "cps", {"{{kind}}": _rate("hmi_writing_tokens_total", "kind")}),
        ("Texts", "none", {"{{state}}": f"sum by (state) (hmi_writing_texts{{{JOB}}})"}),
        ("Set back, since pages ran out", "cps", {"set back": _rate("hmi_writing_set_back_total")}),
        ("Pages of keys and values", "none", {"{{state}}": f"sum by (state) (hmi_writing_pages{{{JOB}}})"}),
    ],
    "Tenants": [
        (
            "Requests of the busiest",
            "reqps",
            {"{{tenant}}": f"topk(10, {_rate('hmi_tenant_requests_total', 'tenant')})"},
        ),
        (
            "Tokens of the busiest",
            "cps",
            {"{{tenant}}": f"topk(10, {_rate('hmi_tenant_tokens_total', 'tenant')})"},
        ),
        (
            "Compute of the busiest",
            "percentunit",
            {"{{tenant}}": f"topk(10, {_rate('hmi_tenant_compute_seconds_total', 'tenant')})"},
        ),
    ],
    "Machine": [
        ("Memory", "bytes", {"{{tier}}": f"sum by (tier) (hmi_memory_bytes{{{JOB}}})"}),
        (
            "Modules in memory",
            "bytes",
            {
                "used": f"sum(hmi_adapter_pool_bytes{{{JOB}}})",
                "limit": f"sum(hmi_adapter_pool_limit_bytes{{{JOB}}})",
            },
        ),
        ("Modules: hits, misses, evictions", "cps", {"{{event}}": _rate("hmi_adapter_pool_total", "event")}),
        ("Processor", "percentunit", {"cores": _rate("process_cpu_seconds_total")}),
        (
            "Open files",
            "none",
            {"open": f"sum(process_open_fds{{{JOB}}})", "limit": f"sum(process_max_fds{{{JOB}}})"},
        ),
        ("Jobs", "none", {"{{state}}": f"sum by (state) (hmi_jobs{{{JOB}}})"}),
    ],
}


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    at = 0
    for title, row in ROWS.items():
        panels.append({"type": "row", "id": len(panels) + 1, "title": title, "gridPos": _place(at, 0, 24, 1)})
        at += 1
        for i, panel in enumerate(row):
            place = _place(at + i // 3 * HEIGHT, i % 3 * WIDTH, WIDTH, HEIGHT)
            panels.append(_panel(len(panels) + 1, panel, place))
        at += -(-len(row) // 3) * HEIGHT
    return {
        "uid": "hmi",
        "title": "HMI",
        "tags": ["hmi"],
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_source(), _jobs()]},
        "panels": panels,
    }


def _place(y: int, x: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    title, unit, expressions = panel
    return {
        "type": "timeseries",
        "id": number,
        "title": title,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + i), "datasource": SOURCE, "expr": expr, "legendFormat": legend}
            for i, (legend, expr) in enumerate(expressions.items())
        ],
    }


def _source() -> dict[str, Any]:
    return {"type": "datasource", "name": "source", "label": "Prometheus", "query": "prometheus"}


def _jobs() -> dict[str, Any]:
    """The choice among the jobs of Prometheus that scrape HMI."""
    return {
        "type": "query",
        "name": "job",
        "label": "Job",
        "datasource": SOURCE,
        "query": "label_values(hmi_info, job)",
        "refresh": 2,
        "multi": True,
        "includeAll": True,
    }


def text() -> str:
    """Return the file's text."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
