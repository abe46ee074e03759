"""The job that merges the small segments left by a domain's updates.

The new version holds the same n-grams and vectors. Readers and models keep using the old version
meanwhile. A build on the same domain takes precedence: this job then gives up.
"""

from __future__ import annotations

import os
import time
from typing import Any, Final

from hmi.core import DomainId
from hmi.jobs.runtime.context import JobContext
from hmi.jobs.specs import CompactPlotSpec
from plot_store import Conflict

ASK_EVERY_S: Final = 0.5
NICE: Final = 10


class _Overtaken(Exception):
    """A build on the domain that is being compacted is queued or running."""


def run(ctx: JobContext) -> dict[str, Any]:
    """Run the job. The result says whether segments were merged, and if not, why."""
    spec = CompactPlotSpec.of(ctx.job)
    domain, most = str(DomainId.parse(spec.domain)), spec.max_segments
    target = 2 * ctx.settings.compact_small_bytes  # the store counts segments below half of it as small
    os.nice(NICE)
    before = ctx.plots.version(domain)
    try:
        made = ctx.plots.compact(domain, max_segments=most, target_bytes=target, progress=_Watch(ctx, domain))
    except (_Overtaken, Conflict):
        return {"domain": domain, "compacted": False, "reason": "a build on this domain came first"}
    ctx.share(domain)  # also what an earlier attempt published
    if made is None:
        return {"domain": domain, "compacted": False, "reason": "there is nothing to merge"}
    return {
        "domain": domain,
        "compacted": True,
        "version": made.id,
        "segments": {"before": len(before.segments), "after": len(made.segments)},
        "bytes": {"before": before.bytes, "after": made.bytes},
    }


class _Watch:
    """Passes the store's progress on to the job. Every ASK_EVERY_S it looks for a build on the domain."""

    def __init__(self, ctx: JobContext, domain: str) -> None:
        self._ctx, self._domain = ctx, domain
        self._asked = float("-inf")

    def __call__(self, done: int, total: int) -> None:
        at = time.monotonic()
        if at - self._asked >= ASK_EVERY_S:
            self._asked = at
            if builds_on(self._ctx, self._domain):
                raise _Overtaken
        self._ctx.progress(done, total, phase="compacting")


def builds_on(ctx: JobContext, domain: str) -> bool:
    """Return whether a build on the domain is queued or running."""
    return any(j.kind == "build_plot" and j.spec.get("domain") == domain for j in ctx.registry.live_jobs())
