"""Hands a training's rows to the job `improve` that follows it.

The rows are linked into the folder of the new job before the training's job ends. So they are on the disk
once, and there is no moment in which they could be lost.
"""

from __future__ import annotations

from hmi.core import HEADLESS, Improvement, JobRecord, ModelRecord, ModelVersion, now
from hmi.errors import HmiError
from hmi.jobs.improving.sources import peaks_of
from hmi.jobs.runtime.context import JobContext
from hmi.jobs.runtime.folders import JobFolder, PinnedPlots, new_job_id
from hmi.jobs.runtime.process import after_end
from hmi.jobs.specs import FineTuneSpec, ImproveSpec
from hmi.model.sources.root import read_root_info

ROWS = ("data", "dev", "unlabelled")
"""The inputs that are handed over, as far as the job has them."""


def hand_over(ctx: JobContext, spec: FineTuneSpec, record: ModelRecord) -> str | None:
    """Queue the job that is to improve the version that this job has published, and return its id.

    None: there is none, since the version does not answer, improving is switched off, the model has no head,
    or the tenant has no room for the rows. What keeps a second version from being made must not fail the
    first one, so such errors are only logged.
    """
    tidy_superseded(ctx, record.improvement)
    mine = next((v for v in record.versions if v.job == ctx.job.job), None)
    if mine is None or mine.version != record.current or not may_improve(ctx, spec):
        return None
    if record.improvement is not None and record.improvement.version == mine.version:
        return record.improvement.job  # this job was killed after it had queued the other
    try:
        return _queued(ctx, spec, mine)
    except (HmiError, OSError) as error:
        ctx.log(f"no job to improve the model was queued: {error}")
        return None


def may_improve(ctx: JobContext, spec: FineTuneSpec) -> bool:
    """Return whether the server and the model's options let a model be improved."""
    return ctx.settings.improve and spec.options.improve is not False and spec.task not in HEADLESS


def tidy_superseded(ctx: JobContext, improvement: Improvement | None) -> None:
    """Delete the rows of an earlier job that this job's publication has ended."""
    if improvement is None:
        return
    folder = JobFolder(ctx.layout.jobs, improvement.job, ctx.bucket)
    if folder.path.exists():
        with folder.try_lock() as free:
            if free:
                after_end(ctx.registry, folder, improvement.job)


def _queued(ctx: JobContext, spec: FineTuneSpec, base: ModelVersion) -> str | None:
    job = new_job_id()
    folder = JobFolder(ctx.layout.jobs, job, ctx.bucket)
    inputs = [name for name in ROWS if (ctx.input / name).exists()]
    folder.link(ctx.input, inputs, PinnedPlots(plot=base.plot_version))
    try:
        made = ImproveSpec(**spec.model_dump(exclude={"asked", "publish", "version"}), version=base.version)
        shape = read_root_info(ctx.roots.folder(base.root, base.root_version)).shape
        own, larger = peaks_of(shape, ctx.settings)
        size = sum((ctx.input / name).stat().st_size for name in inputs)
        record = JobRecord(
            job=job,
            kind="improve",
            state="queued",
            created=now(),
            tenant=ctx.job.tenant,
            spec={
                **made.model_dump(mode="json"),
                "inputs": inputs,
                "row_bytes": size,
                "memory_bytes": own,
                "larger_bytes": larger,
            },
        )
        if ctx.registry.rooms.queue_improvement(record, spec.model_id, base.version):
            return job
    except BaseException:
        folder.remove()
        raise
    folder.remove()
    return None
