"""OpenAI's calls that let models write: completions and chat completions."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, ClassVar

from pydantic_core import to_json

from hmi.api.protocols.errors import over_limit
from hmi.api.protocols.openai.answers import (
    AssistantMessage,
    CachedTokens,
    ChatChoice,
    ChatCompletion,
    ChatLogprobs,
    ChatTokenLogprob,
    ChatTopLogprob,
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    Reason,
    WritingUsage,
)
from hmi.api.protocols.openai.names import model_named
from hmi.api.protocols.openai.requests import COMPLETION_TOKENS, MOST_TEXTS, ChatBody, CompletionBody, Wanted
from hmi.api.protocols.texts import Texts
from hmi.api.protocols.writing import Event, WritingCall, WritingEndpoint, check_writes, sampling_of, stops_of
from hmi.core import ModelId, Task
from hmi.engine.writing.request import Finish, TokenIds, TokenScore, WriteRequest, WrittenPiece, WrittenText

DONE = Event("[DONE]")
_REASONS: dict[Finish, Reason] = {"end": "stop", "stop": "stop", "length": "length"}


class OpenAIWriting(ABC):
    """What both calls share. It implements `Codec`."""

    error_event: ClassVar[str | None] = None

    def __init__(self, call: WritingCall) -> None:
        body: Wanted = call.body
        self.call, self.streams, self.n = call, bool(body.stream), body.n or 1
        model, prompts = self.model(), self.prompts()
        check_writes(call.where, model, lambda task: _instead(model, task))
        body.check()
        if len(prompts) * self.n > MOST_TEXTS:
            field = "prompt" if len(prompts) > MOST_TEXTS else "n"
            raise over_limit(field, MOST_TEXTS, "texts in a call", "send several requests")
        temperature = 1.0 if body.temperature is None else body.temperature
        sampling = sampling_of(body, temperature=temperature, logprobs=self.logprobs())
        form = None if body.response_format is None else body.response_format.form("response_format")
        self.wants = [
            WriteRequest(
                model,
                prompts[index // self.n],
                self.most(),
                replace(sampling, seed=(sampling.seed + index % self.n) % 2**64),
                stops_of(body.stop),
                form,
                deadline=call.deadline(body.deadline_ms),
                index=index,
                names=self.names(index // self.n),
            )
            for index in range(len(prompts) * self.n)
        ]
        self.head: dict[str, Any] = {
            "id": f"{self.prefix}-{call.id}",
            "created": int(time.time()),
            "model": str(model),
        }

    prefix: ClassVar[str]
    """The beginning of an answer's id."""
    chunk_object: ClassVar[str]
    """The `object` of a chunk."""
    answer: ClassVar[Any]
    """The type of a whole answer: Completion or ChatCompletion."""

    def model(self) -> ModelId:
        """The model: of the path if that names one, as `hmi.api.protocols.huggingface` has it."""
        given: str | None = self.call.where.path.get("model")
        return model_named(self.call.body.model) if given is None else ModelId.parse(given)

    @abstractmethod
    def prompts(self) -> Sequence[Any]:
        """The prompts, each as `WriteRequest.prompt`."""

    @abstractmethod
    def names(self, prompt: int) -> dict[str, str]:
        """See `WriteRequest`. prompt: the index of the text's prompt."""

    @abstractmethod
    def most(self) -> int | None:
        """See `WriteRequest`."""

    @abstractmethod
    def logprobs(self) -> int | None:
        """See `Sampling`."""

    @abstractmethod
    def choice(self, index: int, text: WrittenText) -> CompletionChoice | ChatChoice:
        """A text in an answer."""

    def whole(self, texts: Sequence[WrittenText]) -> Any:
        """See `Codec`."""
        return self.answer(
            **self.head,
            choices=[self.choice(index, text) for index, text in enumerate(texts)],
            usage=self.usage(texts),
            system_fingerprint=f"v{texts[0].version}",
        )

    @abstractmethod
    def pieces(self, index: int, piece: WrittenPiece | WrittenText) -> Iterator[dict[str, Any]]:
        """The choices of a piece of a text, or of its end: one for each chunk."""

    async def events(self, texts: Texts) -> AsyncGenerator[Event]:
        """The chunks of a stream: the pieces of each text and its end, those of all texts mixed."""
        options = self.call.body.stream_options
        usage: dict[str, Any] = {"usage": None} if options is not None and options.include_usage else {}

        def chunk(*choices: dict[str, Any]) -> Event:
            shared = {**self.head, "object": self.chunk_object, "system_fingerprint": f"v{texts.version}"}
            return Event(to_json({**shared, "choices": choices, **usage}, inf_nan_mode="null").decode())

        async for index, piece in texts:
            for choice in self.pieces(index, piece):
                yield chunk(choice)
        if usage:
            usage["usage"] = self.usage(texts.ordered)
            yield chunk()
        yield DONE

    def usage(self, texts: Sequence[WrittenText]) -> WritingUsage:
        """The tokens of all texts, in the order of `wants`."""
        firsts = texts[:: self.n]
        read, written = sum(t.prompt_tokens for t in firsts), sum(t.written_tokens for t in texts)
        return WritingUsage(
            prompt_tokens=read,
            completion_tokens=written,
            total_tokens=read + written,
            prompt_tokens_details=CachedTokens(cached_tokens=sum(t.cached_tokens for t in firsts)),
        )


class Completions(OpenAIWriting):
    """POST /v1/completions."""

    prefix, chunk_object, answer = "cmpl", "text_completion", Completion

    def __init__(self, call: WritingCall) -> None:
        self.body: CompletionBody = call.body
        super().__init__(call)
        self._told = Counter[int]()
        """The characters of the tokens that were told, by text."""

    def prompts(self) -> Sequence[Any]:
        given: Any = self.body.prompt if self._listed else [self.body.prompt]
        return [each if isinstance(each, str) else TokenIds(tuple(each)) for each in given]

    @property
    def _listed(self) -> bool:
        """True for a list of prompts. A list of numbers is one prompt."""
        given = self.body.prompt
        return isinstance(given, list) and not (given and isinstance(given[0], int))

    def names(self, prompt: int) -> dict[str, str]:
        return {"prompt": f"prompt[{prompt}]"} if self._listed else {}

    def most(self) -> int:
        return self.body.max_tokens or COMPLETION_TOKENS

    def logprobs(self) -> int | None:
        return self.body.logprobs

    def choice(self, index: int, text: WrittenText) -> CompletionChoice:
        scores = self._scores(index, text.scores)
        reason = _REASONS[text.finish]
        return CompletionChoice(index=index, text=text.text, logprobs=scores, finish_reason=reason)

    def pieces(self, index: int, piece: WrittenPiece | WrittenText) -> Iterator[dict[str, Any]]:
        if isinstance(piece, WrittenText):
            reason = _REASONS[piece.finish]
            yield {"index": index, "text": "", "logprobs": None, "finish_reason": reason}
        else:
            scores = self._scores(index, piece.scores)
            yield {"index": index, "text": piece.text, "logprobs": scores, "finish_reason": None}

    def _scores(self, index: int, scores: Sequence[TokenScore]) -> CompletionLogprobs | None:
        if self.body.logprobs is None:
            return None
        offsets = list(accumulate((len(each.text) for each in scores), initial=self._told[index]))
        self._told[index] = offsets.pop()
        return CompletionLogprobs(
            tokens=[each.text for each in scores],
            token_logprobs=[each.logprob for each in scores],
            top_logprobs=[{**dict(each.best), each.text: each.logprob} for each in scores],
            text_offset=offsets,
        )


class Chats(OpenAIWriting):
    """POST /v1/chat/completions."""

    prefix, chunk_object, answer = "chatcmpl", "chat.completion.chunk", ChatCompletion

    def __init__(self, call: WritingCall) -> None:
        self.body: ChatBody = call.body
        super().__init__(call)
        self._begun = set[int]()

    def prompts(self) -> Sequence[Any]:
        return [[message.plain for message in self.body.messages]]

    def names(self, prompt: int) -> dict[str, str]:
        return {} if self.body.max_completion_tokens is None else {"max_tokens": "max_completion_tokens"}

    def most(self) -> int | None:
        return self.body.max_completion_tokens or self.body.max_tokens

    def logprobs(self) -> int | None:
        return (self.body.top_logprobs or 0) if self.body.logprobs else None

    def choice(self, index: int, text: WrittenText) -> ChatChoice:
        return ChatChoice(
            index=index,
            message=AssistantMessage(content=text.text),
            logprobs=self._scores(text.scores),
            finish_reason=_REASONS[text.finish],
        )

    def pieces(self, index: int, piece: WrittenPiece | WrittenText) -> Iterator[dict[str, Any]]:
        def choice(
            delta: dict[str, str], reason: Reason | None = None, scores: ChatLogprobs | None = None
        ) -> dict[str, Any]:
            return {"index": index, "delta": delta, "logprobs": scores, "finish_reason": reason}

        if index not in self._begun:
            self._begun.add(index)
            yield choice({"role": "assistant", "content": ""})
        if isinstance(piece, WrittenText):
            yield choice({}, _REASONS[piece.finish])
        else:
            yield choice({"content": piece.text}, scores=self._scores(piece.scores))

    def _scores(self, scores: Sequence[TokenScore]) -> ChatLogprobs | None:
        if not self.body.logprobs:
            return None
        return ChatLogprobs(
            content=[
                ChatTokenLogprob(
                    token=each.text,
                    logprob=each.logprob,
                    bytes=_bytes(each.text),
                    top_logprobs=[ChatTopLogprob(token=t, logprob=x, bytes=_bytes(t)) for t, x in each.best],
                )
                for each in scores
            ]
        )


WRITING = (
    WritingEndpoint(
        "/v1/completions",
        "Continue prompts, in one answer or as server-sent events (OpenAI).",
        CompletionBody,
        Completion,
        Completions,
    ),
    WritingEndpoint(
        "/v1/chat/completions",
        "Answer a chat, in one answer or as server-sent events (OpenAI).",
        ChatBody,
        ChatCompletion,
        Chats,
    ),
)


def _instead(model: ModelId, task: Task) -> str:
    return "POST /v1/embeddings" if task == "embedding" else f"POST /infer/{model}"


def _bytes(token: str) -> list[int] | None:
    """The bytes of a token; None if it ends inside a character, which its text then only stands for."""
    return None if "\ufffd" in token else list(token.encode())
