"""Fine-tuning jobs in OpenAI's form: the request, the job, its events."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from hmi.api.protocols.openai.models import PAGE, Id
from hmi.api.protocols.openai.names import seconds
from hmi.api.schemas.shared import Answer, JobId, Query, Request
from hmi.core import JobRecord, JobState, Progress, Task
from hmi.jobs.options import FineTuneOptions

Auto = Literal["auto"]
Status = Literal["validating_files", "queued", "running", "succeeded", "failed", "cancelled"]
Metadata = dict[
    Annotated[str, StringConstraints(max_length=64)], Annotated[str, StringConstraints(max_length=512)]
]


class Hyperparameters(Request):
    """The settings of the training. With `auto` HMI chooses by task and rows."""

    n_epochs: Auto | Annotated[int, Field(ge=1, le=200)] = "auto"
    batch_size: Auto | Annotated[int, Field(ge=1, le=256)] = "auto"
    learning_rate_multiplier: Auto | float | int = Field(
        default="auto", description="Only `auto` or 1. To set the rate itself, use `options.lr`."
    )


class Supervised(Request):
    hyperparameters: Hyperparameters = Hyperparameters()


class Method(Request):
    type: Literal["supervised"] = Field(description="Preferences and rewards train generative models only.")
    supervised: Supervised = Supervised()


class CreateFineTuning(Request):
    """A fine-tuning job. `task` and `options` are not OpenAI's: its clients send them as `extra_body`."""

    model: Id = Field(
        description="A domain, root/branch: a new model is made on it. Or a model, tenant.model: with a "
        "suffix, a new model starts from it, without one it gets a new version."
    )
    training_file: Id = Field(
        description="Rows: HMI's own, or chats whose last message is the label, or is what a language "
        "model learns to write."
    )
    validation_file: Id | None = None
    suffix: str | None = Field(
        default=None,
        max_length=130,
        description="The new model's name; an administrator gives tenant.model. Default: a random name.",
    )
    method: Method | None = None
    hyperparameters: Hyperparameters | None = Field(default=None, description="The old place of `method`'s.")
    seed: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    metadata: Metadata | None = Field(default=None, max_length=16)
    integrations: list[Any] | None = Field(default=None, max_length=0, description="None are supported.")
    task: Task | None = Field(
        default=None,
        description="The new model's task. Default: generation on a domain of a language model; on "
        "others, what the columns of the training file show.",
    )
    options: FineTuneOptions = FineTuneOptions()

    @property
    def chosen(self) -> Hyperparameters:
        """The hyperparameters, wherever they were given."""
        return (
            self.method.supervised.hyperparameters
            if self.method
            else self.hyperparameters or Hyperparameters()
        )


class JobFailure(Answer):
    code: str
    message: str
    param: str | None


class HyperparametersView(Answer):
    n_epochs: Auto | int
    batch_size: Auto | int
    learning_rate_multiplier: Auto | float


class SupervisedView(Answer):
    hyperparameters: HyperparametersView


class MethodView(Answer):
    type: Literal["supervised"] = "supervised"
    supervised: SupervisedView


class FineTuningJob(Answer):
    """A job that trains a model. The same job is shown by `GET /manage/jobs/{job}`."""

    id: str
    object: Literal["fine_tuning.job"] = "fine_tuning.job"
    created_at: int
    finished_at: int | None
    estimated_finish: int | None
    status: Status
    model: str = Field(description="The domain or model that the training begins with.")
    fine_tuned_model: str | None = Field(description="The model's name, once the job has succeeded.")
    training_file: str = Field(description="Empty for a job that was not started by this call.")
    validation_file: str | None
    hyperparameters: HyperparametersView
    method: MethodView
    seed: int
    error: JobFailure | None
    trained_tokens: int | None = None
    organization_id: str = Field(description="The tenant; empty for an administrator.")
    result_files: list[str] = Field(default_factory=list, description="Always empty: see the model's report.")
    integrations: list[Any] = Field(default_factory=list)
    metadata: dict[str, str] | None
    user_provided_suffix: str | None


class FineTuningJobList(Answer):
    object: Literal["list"] = "list"
    data: list[FineTuningJob]
    has_more: bool


class FineTuningQuery(Query):
    after: JobId | None = None
    limit: int = Field(default=20, ge=1, le=PAGE)


class FineTuningEvent(Answer):
    id: str
    object: Literal["fine_tuning.job.event"] = "fine_tuning.job.event"
    created_at: int
    level: Literal["info", "warn", "error"]
    message: str
    type: Literal["message", "metrics"] = "message"
    data: dict[str, Any] = Field(default_factory=dict)


class FineTuningEventList(Answer):
    """The events of a job, newest first."""

    object: Literal["list"] = "list"
    data: list[FineTuningEvent]
    has_more: bool


class EventQuery(Query):
    after: Id | None = None
    limit: int = Field(default=20, ge=1, le=100)


class CheckpointList(Answer):
    """Always empty: a job keeps no model but the best one, which it publishes."""

    object: Literal["list"] = "list"
    data: list[dict[str, Any]]
    has_more: Literal[False] = False
    first_id: None = None
    last_id: None = None


def is_fine_tuning(job: JobRecord) -> bool:
    """Return whether a job trains a model from rows, however it was started."""
    return job.kind == "fine_tune" and job.spec.get("mode") in ("create", "update")


def job_of(job: JobRecord, progress: Progress) -> FineTuningJob:
    """A job for which `is_fine_tuning` holds, in OpenAI's form."""
    asked: Mapping[str, Any] = job.spec.get("asked") or {}
    options: Mapping[str, Any] = job.spec.get("options") or {}
    numbers = HyperparametersView(
        n_epochs=options.get("epochs") or "auto",
        batch_size=options.get("batch") or "auto",
        learning_rate_multiplier="auto",
    )
    ended = None if job.ended is None else seconds(job.ended)
    return FineTuningJob(
        id=job.job,
        created_at=seconds(job.created),
        finished_at=ended,
        estimated_finish=_estimate(job, progress),
        status=_status(job.state, job.cancel_requested),
        model=asked.get("model") or job.spec["domain"],
        fine_tuned_model=job.spec["model"] if job.state == "succeeded" else None,
        training_file=asked.get("training_file") or "",
        validation_file=asked.get("validation_file"),
        hyperparameters=numbers,
        method=MethodView(supervised=SupervisedView(hyperparameters=numbers)),
        seed=options.get("seed") or 0,
        error=_failure(job),
        organization_id=job.tenant or "",
        metadata=asked.get("metadata"),
        user_provided_suffix=asked.get("suffix"),
    )


def events_of(job: JobRecord, progress: Progress) -> list[FineTuningEvent]:
    """Return the events of a job, newest first. Only the last of its progress is known."""
    told: list[tuple[str, Literal["info", "warn", "error"], str, dict[str, Any]]] = [
        (job.created, "info", f"Created fine-tuning job: {job.job}", {})
    ]
    if job.started is not None:
        told.append((job.started, "info", "Fine-tuning job started", {}))
        if progress.total:
            step = f"{progress.phase or 'training'}: step {progress.step} of {progress.total}"
            data = progress.model_dump(include={"phase", "step", "total", "loss"}, exclude_none=True)
            told.append((job.ended or job.started, "info", step, data))
    if job.ended is not None:
        told.append((job.ended, *_ending(job), {}))
    events = [
        FineTuningEvent(
            id=f"ftevent-{job.job}-{number}",
            created_at=seconds(at),
            level=level,
            message=message,
            type="metrics" if data else "message",
            data=data,
        )
        for number, (at, level, message, data) in enumerate(told)
    ]
    return events[::-1]


def _ending(job: JobRecord) -> tuple[Literal["info", "warn", "error"], str]:
    """The level and the message of a job's end."""
    if job.state == "failed":
        return "error", str((job.error or {}).get("message", "The job failed"))
    if job.state == "cancelled":
        return "warn", "The job was cancelled"
    if (job.result or {}).get("published") is False:
        return "warn", f"The new version does not answer: {(job.result or {}).get('reason')}"
    return "info", "The job has successfully completed"


def _status(state: JobState, cancelling: bool) -> Status:
    return "cancelled" if cancelling and state in ("queued", "running") else state


def _failure(job: JobRecord) -> JobFailure | None:
    if job.state != "failed" or job.error is None:
        return None
    field = job.error.get("field")
    param = {"data": "training_file", "dev": "validation_file"}.get(str(field), field)
    return JobFailure(
        code=job.error.get("kind", "internal"), message=job.error.get("message", ""), param=param
    )


def _estimate(job: JobRecord, progress: Progress) -> int | None:
    """Return the probable end of a job that runs, in seconds since 1970; None if it is unknown."""
    if job.state != "running" or progress.eta_ms is None:
        return None
    return int(time.time() + progress.eta_ms / 1000)
