"""HMI: serves thousands of tenants on one machine, each with its own language model."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hmi import client as client
    from hmi.client import ApiError as ApiError
    from hmi.client import AsyncClient as AsyncClient
    from hmi.client import AsyncJob as AsyncJob
    from hmi.client import Client as Client
    from hmi.client import Job as Job
    from hmi.client import OnServer as OnServer
    from hmi.client import Prediction as Prediction

__version__ = "0.1.0"
_OF_CLIENT = ("ApiError", "AsyncClient", "AsyncJob", "Client", "Job", "OnServer", "Prediction")


def __getattr__(name: str) -> Any:
    """Load the client when it is first used, so that `import hmi` stays cheap."""
    if name != "client" and name not in _OF_CLIENT:
        raise AttributeError(f"module 'hmi' has no attribute {name!r}")
    client = import_module("hmi.client")
    return client if name == "client" else getattr(client, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_OF_CLIENT, "client"})
