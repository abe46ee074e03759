"""The calls of OpenAI's API that make sense for models that are not generative. See docs/protocols.md."""

from __future__ import annotations

from hmi.api.protocols.openai.dialect import OPENAI

__all__ = ["OPENAI"]
