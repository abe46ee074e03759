"""The base of the server's answers, which are frozen objects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict


class Answer(BaseModel):
    """The base of all answers."""

    model_config = ConfigDict(frozen=True, extra="allow", protected_namespaces=())

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Leave fields without a value out when the answer is shown: a task fills only its own."""
        return ((name, value) for name, value in super().__repr_args__() if value is not None)
