"""Spans of a call's texts: how long they waited, and each batch that they ran in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from hmi.engine.texts.item import Item, Times
from hmi.telemetry.tracing import Trace, Value, trace

T = TypeVar("T")
MAX_BATCHES = 16
"""Batches beyond these have no spans of their own: a large call runs in hundreds."""


def add_spans(items: Sequence[Item], answers: T) -> T:
    """Add the spans of answered texts to the request's trace, if it has one. Returns `answers`."""
    found = trace()
    if found is not None:
        _add(found, items)
    return answers


def _add(found: Trace, items: Sequence[Item]) -> None:
    batches: dict[Times, list[Item]] = {}
    for item in items:
        for times in item.partial.batches:
            batches.setdefault(times, []).append(item)
    if not batches:
        return
    queued = min(item.queued for item in items)
    found.add("queue", queued, min(times.begun for times in batches), {"hmi.texts": len(items)})
    for times in sorted(batches, key=lambda times: times.begun)[:MAX_BATCHES]:
        mine = batches[times]
        retrieved = times.begun + times.retrieve_s
        about = _batch_attributes(mine)
        found.add("retrieve", times.begun, retrieved, _hits(mine))
        found.add("compute", retrieved, retrieved + times.compute_s, about)


def _batch_attributes(items: Sequence[Item]) -> dict[str, Value]:
    """Return the attributes that a batch's texts share: their number, versions and the stages' decisions."""
    first = items[0]
    version = first.bundle.version
    about: dict[str, Value] = {
        "hmi.texts": len(items),
        "hmi.tokens": sum(item.tokens for item in items),
        "hmi.version.model": version.version,
        "hmi.version.plot": version.plot_version,
        "hmi.domain": version.domain,
        "hmi.layers": max(item.partial.layers for item in items),
        "hmi.exact": first.request.exact,
    }
    for item in items:
        about.update({f"hmi.stage.{name}": setting for name, setting in item.partial.stages.items()})
        if item.partial.planner is not None:
            about["hmi.planner"] = item.partial.planner
    return about


def _hits(items: Sequence[Item]) -> dict[str, Value]:
    """Tokens of the texts by what answered their look-up. A text of several batches has the sum of all."""
    found: dict[str, Value] = {}
    for item in items:
        for order, count in item.partial.hits.items():
            name = f"hmi.plot.{order}"
            found[name] = int(found.get(name, 0)) + count
    return found
