"""Answers as JSON values."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


def plain(body: Any) -> Any:
    """The models of an answer as JSON values."""
    if isinstance(body, list):
        return [plain(item) for item in body]
    assert isinstance(body, BaseModel)
    return body.model_dump(mode="json", by_alias=True)
