"""Small job bodies for the tests of the runner; the job's spec says what they do."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any

from hmi.core import ModelId, ModelVersion, ModuleSpec, now
from hmi.errors import InvalidData
from hmi.jobs.runtime.context import JobContext


def run(ctx: JobContext) -> dict[str, Any]:
    return globals()["do_" + ctx.job.spec["do"]](ctx)


def do_count(ctx: JobContext) -> dict[str, Any]:
    """Count to spec["steps"] with a checkpoint after each step; the trace shows where each attempt began."""
    checkpoint = ctx.folder / "checkpoint.json"
    start = json.loads(checkpoint.read_text()) if checkpoint.exists() else 0
    with (ctx.folder.parent.parent / f"trace-{ctx.job.job}").open("a") as trace:
        trace.write(f"{os.getpid()} {start}\n")
    steps = ctx.job.spec["steps"]
    for step in range(start + 1, steps + 1):
        time.sleep(ctx.job.spec.get("pause_s", 0.02))
        aside = checkpoint.with_suffix(".tmp")
        aside.write_text(json.dumps(step))
        aside.replace(checkpoint)
        ctx.keep(now=False)
        ctx.progress(step, steps, phase="counting", loss=1 / step)
    return {
        "counted": steps,
        "input": (ctx.input / "data").read_text() if (ctx.input / "data").exists() else None,
    }


def do_step_and_die(ctx: JobContext) -> dict[str, Any]:
    """Each attempt gets one step further, writes a checkpoint, and dies. From step spec["stuck"]
    on, no attempt gets further."""
    checkpoint = ctx.folder / "checkpoint.json"
    step = json.loads(checkpoint.read_text()) if checkpoint.exists() else 0
    if step == ctx.job.spec["steps"]:
        return {"steps": step}
    if step != ctx.job.spec.get("stuck"):
        checkpoint.write_text(json.dumps(step + 1))
        ctx.checkpointed()
        ctx.checkpointed()
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def do_fail(ctx: JobContext) -> dict[str, Any]:
    raise InvalidData("row 3: `label` is missing", field="data")


def do_die(ctx: JobContext) -> dict[str, Any]:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def do_publish_then_die(ctx: JobContext) -> dict[str, Any]:
    """Die right after the publication, at the first attempt only."""
    model = ModelId.parse(ctx.job.spec["model"])
    ctx.progress(0, 1, phase="training")
    record = ctx.registry.publish_model(model, version_by(ctx.job.job))
    if ctx.job.attempts == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"versions": len(record.versions)}


def version_by(job: str, **changes: Any) -> ModelVersion:
    fields: dict[str, Any] = {
        "version": 0,
        "artefact": "0" * 64,
        "domain": "tiny/news",
        "plot_version": "v" + "0" * 32,
        "root": "tiny",
        "root_version": "r1",
        "task": "classification",
        "labels": ("a", "b"),
        "module": ModuleSpec(),
        "max_length": 64,
        "metrics": {"accuracy": 0.9},
        "bytes": 10,
        "created": now(),
        "job": job,
    }
    return ModelVersion(**{**fields, **changes})


BODIES = {"import_root": run, "build_plot": run, "fine_tune": run, "improve": run, "shard_root": run}
