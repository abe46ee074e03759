"""The result of a job that has published a model's version."""

from __future__ import annotations

from typing import Any

from hmi.core import ModelRecord
from hmi.jobs.options import Publish


def published_result(record: ModelRecord, job: str, publish: Publish | None = None) -> dict[str, Any]:
    """The result for the job's record. publish: when the version was to answer; None if it is no update."""
    version = next(v for v in record.versions if v.job == job)
    return {
        "model": f"{record.tenant}.{record.name}",
        "version": version.version,
        "task": version.task,
        "metrics": version.metrics,
        "bytes": version.bytes,
        "published": version.held_back is None,
        "reason": version.held_back,
        "publish": publish,
    }
