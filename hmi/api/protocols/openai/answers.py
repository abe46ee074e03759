"""The answers of OpenAI's calls that let models write."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from hmi.api.schemas.shared import Answer

Reason = Literal["stop", "length"]


class CachedTokens(Answer):
    cached_tokens: int = Field(description="Tokens of prompts that were known from an earlier text.")


class WritingUsage(Answer):
    prompt_tokens: int = Field(description="Each prompt counts once, however many texts it has.")
    completion_tokens: int = Field(description="Of all texts. The token that ended a text is included.")
    total_tokens: int
    prompt_tokens_details: CachedTokens


class CompletionLogprobs(Answer):
    """Natural log-probabilities of the model itself: without penalties or temperature."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]] = Field(description="The best tokens, and the one that was chosen.")
    text_offset: list[int] = Field(description="The characters of the tokens before.")


class CompletionChoice(Answer):
    index: int = Field(description="Prompt p's text i has the index p · n + i.")
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Reason


class Completion(Answer):
    """Texts that continue prompts."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: WritingUsage
    system_fingerprint: str = Field(description="The version of the model: v and its number.")


class ChatTopLogprob(Answer):
    token: str
    logprob: float
    bytes: list[int] | None = Field(description="In UTF-8; null if the token ends inside a character.")


class ChatTokenLogprob(ChatTopLogprob):
    top_logprobs: list[ChatTopLogprob]


class ChatLogprobs(Answer):
    """Natural log-probabilities of the model itself: without penalties or temperature."""

    content: list[ChatTokenLogprob]
    refusal: None = None


class AssistantMessage(Answer):
    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(Answer):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: Reason


class ChatCompletion(Answer):
    """Messages that answer a chat."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: WritingUsage
    system_fingerprint: str = Field(description="The version of the model: v and its number.")
