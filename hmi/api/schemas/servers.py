"""The bodies and answers of the calls about servers that share a bucket."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hmi.api.schemas.overview import PoolView, UseView
from hmi.api.schemas.shared import Answer, ModelName, Request

Phase = Literal["compiling", "starting", "serving", "leaving", "draining"]


class ServerView(Answer):
    """How a server stands. Counts are since its start."""

    id: str = Field(description='The id of its data folder; "" if it shares no bucket.')
    primary: bool = Field(description="Whether it manages and runs jobs. True without a bucket.")
    phase: Phase
    ready: bool = Field(description="Whether it answers calls to infer.")
    version: str = Field(description="Its release.")
    started: str
    position: int = Field(description="How far it has followed the changes of all servers.")
    wait_s: float = Field(description="Seconds that all texts which wait are predicted to take.")
    in_flight: int = Field(description="Requests that it has not answered yet.")
    since_start: UseView
    passed: int = Field(description="Calls that it let another server answer.")
    answered: int = Field(description="Calls that it answered for another server.")
    models: int = Field(description="Models that answered here within the last hour, at most 10,000.")
    pool: PoolView | None


class ListedServer(Answer):
    id: str
    url: str
    view: ServerView | None = Field(
        description="Null if the server did not answer, refused the caller, or has another release, whose "
        "view this one cannot read."
    )


class ServerList(Answer):
    """The servers that share the bucket and answer for each other; none without a bucket."""

    primary: str | None = Field(description="The URL of the primary.")
    servers: list[ListedServer]


class ModelNames(Answer):
    models: list[str]


class LoadModels(Request):
    models: Annotated[list[ModelName], Field(max_length=10_000)]


class Loaded(Answer):
    loaded: int = Field(description="How many of the models are in memory now.")
