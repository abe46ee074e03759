"""The part of the route table that speaks OpenAI's protocol."""

from __future__ import annotations

from functools import partial

from hmi.api.handlers.protocols import infer, openai_files, openai_jobs, openai_models, write
from hmi.api.http.route import Route
from hmi.api.protocols.openai import OPENAI
from hmi.api.protocols.openai.jobs import (
    CheckpointList,
    CreateFineTuning,
    EventQuery,
    FineTuningEventList,
    FineTuningJob,
    FineTuningJobList,
    FineTuningQuery,
)
from hmi.api.protocols.openai.models import (
    Deleted,
    FileForm,
    OpenAIFile,
    OpenAIFileList,
    OpenAIFileQuery,
    OpenAIModel,
    OpenAIModelList,
    OpenAIModelQuery,
)
from hmi.api.protocols.openai.writing import WRITING

_Route = partial(Route, dialect=OPENAI)
MODELS, FILES, TUNING = "/v1/models", "/v1/files", "/v1/fine_tuning/jobs"
MODEL, FILE, JOB = f"{MODELS}/{{id}}", f"{FILES}/{{file}}", f"{TUNING}/{{job}}"

OPENAI_MODELS = (
    _Route(
        "GET",
        MODELS,
        openai_models.list_models,
        "List the models that the key reaches (OpenAI).",
        OpenAIModelList,
        "infer",
        query=OpenAIModelQuery,
    ),
    _Route("GET", MODEL, openai_models.show_model, "A model (OpenAI).", OpenAIModel, "infer"),
    _Route("DELETE", MODEL, openai_models.delete_model, "Delete a model (OpenAI).", Deleted, "manage"),
)
OPENAI_FILES = (
    _Route(
        "POST",
        FILES,
        openai_files.upload_file,
        "Keep a file of rows for fine-tuning (OpenAI).",
        OpenAIFile,
        "manage",
        body=FileForm,
        files={"file": True},
        form=True,
        creates=True,
    ),
    _Route(
        "GET",
        FILES,
        openai_files.list_files,
        "List files (OpenAI).",
        OpenAIFileList,
        "manage",
        query=OpenAIFileQuery,
        kinds=("not_found",),
    ),
    _Route("GET", FILE, openai_files.show_file, "A file (OpenAI).", OpenAIFile, "manage"),
    _Route(
        "GET",
        f"{FILE}/content",
        openai_files.read_file,
        "The content of a file (OpenAI).",
        None,
        "manage",
        media="application/octet-stream",
        cancellable=True,
        kinds=("damaged",),
    ),
    _Route("DELETE", FILE, openai_files.delete_file, "Delete a file (OpenAI).", Deleted, "manage"),
)
OPENAI_JOBS = (
    _Route(
        "POST",
        TUNING,
        openai_jobs.create_job,
        "Fine-tune a model (OpenAI).",
        FineTuningJob,
        "manage",
        body=CreateFineTuning,
        creates=True,
        kinds=("conflict", "damaged", "invalid_data", "not_found", "storage_full"),
    ),
    _Route(
        "GET",
        TUNING,
        openai_jobs.list_jobs,
        "List fine-tuning jobs, newest first (OpenAI).",
        FineTuningJobList,
        "manage",
        query=FineTuningQuery,
    ),
    _Route("GET", JOB, openai_jobs.show_job, "A fine-tuning job (OpenAI).", FineTuningJob, "manage"),
    _Route(
        "POST",
        f"{JOB}/cancel",
        openai_jobs.cancel_job,
        "Cancel a fine-tuning job (OpenAI).",
        FineTuningJob,
        "manage",
        kinds=("conflict",),
    ),
    _Route(
        "GET",
        f"{JOB}/events",
        openai_jobs.job_events,
        "The events of a fine-tuning job, newest first (OpenAI).",
        FineTuningEventList,
        "manage",
        query=EventQuery,
    ),
    _Route(
        "GET",
        f"{JOB}/checkpoints",
        openai_jobs.job_checkpoints,
        "The checkpoints of a fine-tuning job: none (OpenAI).",
        CheckpointList,
        "manage",
    ),
)
OPENAI_ROUTES: tuple[Route, ...] = (
    *infer.routes_of(OPENAI),
    *OPENAI_MODELS,
    *write.routes_of(OPENAI, WRITING),
    *OPENAI_FILES,
    *OPENAI_JOBS,
)
