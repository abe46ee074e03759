"""The client of a server: `Client` for threads, `AsyncClient` for asyncio. See docs/client.md."""

from __future__ import annotations

from hmi.client.aio.client import AsyncClient
from hmi.client.aio.jobs import AsyncJob
from hmi.client.answers import GeneratedText, Inference, JobStatus, Model, Prediction, TextPiece
from hmi.client.errors import ApiError
from hmi.client.sync.client import Client
from hmi.client.sync.jobs import Job
from hmi.client.uploads import OnServer

__all__ = [
    "ApiError",
    "AsyncClient",
    "AsyncJob",
    "Client",
    "GeneratedText",
    "Inference",
    "Job",
    "JobStatus",
    "Model",
    "OnServer",
    "Prediction",
    "TextPiece",
]
