"""Models and files in OpenAI's form."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hmi.api.protocols.openai.names import seconds
from hmi.api.schemas.shared import Answer, ModelName, Name, Query, Request
from hmi.core import ModelRecord, Task
from hmi.tenancy import FileRecord

PAGE = 1000
"""Most models, files or jobs of one page."""
Id = Annotated[str, Field(max_length=200)]
_CALLS: dict[Task, list[str]] = {
    "generation": ["/v1/completions", "/v1/chat/completions"],
    "embedding": ["/v1/embeddings"],
}
"""OpenAI's calls that ask models, by task. Models of other tasks answer at /infer."""


class OpenAIModel(Answer):
    """A model that answers."""

    id: str = Field(description="tenant.model")
    object: Literal["model"] = "model"
    created: int = Field(description="When its oldest kept version was made, in seconds since 1970.")
    owned_by: str = Field(description="Its tenant.")
    task: Task = Field(description="What it was trained for. Not OpenAI's, like `calls`.")
    calls: list[str] = Field(description="The paths that ask it: /v1/chat/completions, for example.")


class OpenAIModelList(Answer):
    """A page of the models that the key reaches. OpenAI's clients ask for one page only."""

    object: Literal["list"] = "list"
    data: list[OpenAIModel]
    has_more: bool = Field(description="True: pass the last id as `after` for the next page.")


class OpenAIModelQuery(Query):
    after: ModelName | None = None
    limit: int = Field(default=PAGE, ge=1, le=PAGE)


class Deleted(Answer):
    id: str
    object: Literal["model", "file"]
    deleted: Literal[True] = True


class OpenAIFile(Answer):
    """A file that is kept for fine-tuning jobs."""

    id: str
    object: Literal["file"] = "file"
    bytes: int = Field(description="The size of the content, decompressed.")
    created_at: int
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"


class OpenAIFileList(Answer):
    object: Literal["list"] = "list"
    data: list[OpenAIFile]
    has_more: bool
    first_id: str | None
    last_id: str | None


class OpenAIFileQuery(Query):
    purpose: str | None = Field(default=None, max_length=64)
    after: Id | None = None
    limit: int = Field(default=PAGE, ge=1, le=10_000)
    order: Literal["asc", "desc"] = "desc"
    tenant: Name | None = Field(
        default=None, description="An administrator's: whose files to list. Default: the administrators' own."
    )


class FileForm(Request):
    """The parts of an upload beside `file`."""

    purpose: Literal["fine-tune"]


def model_of(record: ModelRecord) -> OpenAIModel:
    created = min(seconds(version.created) for version in record.versions)
    name, task = f"{record.tenant}.{record.name}", record.live.task
    return OpenAIModel(
        id=name,
        created=created,
        owned_by=record.tenant,
        task=task,
        calls=_CALLS.get(task, [f"/infer/{name}"]),
    )


def file_of(record: FileRecord) -> OpenAIFile:
    return OpenAIFile(
        id=record.file,
        bytes=record.bytes,
        created_at=seconds(record.created),
        filename=record.name,
        purpose=record.purpose,
    )
