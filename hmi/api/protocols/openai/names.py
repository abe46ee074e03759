"""Names and times in OpenAI's form."""

from __future__ import annotations

from datetime import datetime

from hmi.core import ModelId
from hmi.errors import InvalidInput, NotFound


def model_named(name: str, lists: str = "GET /v1/models") -> ModelId:
    """The model of this name. Raises NotFound for a name that no model here can have, such as `gpt-4o`.

    lists: the protocol's call that lists models.
    """
    try:
        return ModelId.parse(name)
    except InvalidInput as error:
        raise NotFound(
            f"there is no model {name[:130]!r}: name one of this server's models, tenant.model "
            f"({lists} lists them)",
            field="model",
        ) from error


def seconds(time: str) -> int:
    """A time in RFC 3339 as seconds since 1970."""
    return int(datetime.fromisoformat(time).timestamp())
