"""Requests to language models, and their answers. This module imports no torch."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from hmi.core import ModelId
from hmi.model.text.form import Form
from hmi.model.text.sampling import Sampling

Finish = Literal["end", "stop", "length"]
"""Why a text ends. end: the model ended it, or its form is complete. stop: a stop string came. length:
it has the most tokens."""
DEFAULT_MOST = 256
"""The most tokens that are written if a request does not say."""


@dataclass(frozen=True)
class WriteRequest:
    """One prompt for one model. `deadline` is a `time.monotonic()` time, None = none."""

    model: ModelId
    prompt: str | Sequence[Mapping[str, str]]
    """A text, or a chat: messages with `role` and `content`."""
    most: int | None = None
    """The most tokens to write. None: DEFAULT_MOST, or as many as the context has room for."""
    sampling: Sampling = field(default_factory=Sampling)
    stops: tuple[str, ...] = ()
    """The text ends before the first of these."""
    form: Form | None = None
    """The text keeps it. One that ends before it does so raises CutShort."""
    deadline: float | None = None
    ask: int = 0
    """The index of the call's ask, as in `TextRequest`. It is always 0: a call counts as one request."""
    index: int = 0
    """The index of the text among those of its call."""

    @property
    def place(self) -> str:
        """The call's field that holds the prompt."""
        return "prompt" if isinstance(self.prompt, str) else "messages"

    @property
    def characters(self) -> int:
        """About the characters of the prompt and of what may be written, for an estimate of the tokens."""
        if self.form is not None and self.form.probabilities:
            written = sum(4 + len(choice) for choice in self.form.choices or ())
        else:
            written = 4 * (self.most or DEFAULT_MOST)
        return sum(map(len, self._texts)) + written

    @property
    def prompt_bytes(self) -> int:
        return sum(len(text.encode()) for text in self._texts)

    @property
    def _texts(self) -> list[str]:
        return [self.prompt] if isinstance(self.prompt, str) else [m["content"] for m in self.prompt]


@dataclass(frozen=True)
class TokenScore:
    """A token with its natural log-probability, and the best tokens at its place with theirs."""

    text: str
    logprob: float
    best: Sequence[tuple[str, float]] = ()
    id: int = 0
    """In the root's own vocabulary, which counts from 0."""
    special: bool = False
    """Whether it is one of the tokens that are left out of texts, such as the last one."""


@dataclass(frozen=True)
class WrittenPiece:
    """The text that is new, and the scores of its tokens if they were asked for."""

    text: str
    scores: Sequence[TokenScore] = ()


@dataclass(frozen=True)
class WrittenText:
    """A whole answer."""

    model: ModelId
    version: int
    text: str
    finish: Finish
    prompt_tokens: int
    cached_tokens: int
    """The tokens of the prompt that did not run, since an earlier text of this version began alike."""
    written_tokens: int
    """The token that ended the text is included."""
    scores: Sequence[TokenScore] = ()
    timing: Mapping[str, float] = field(default_factory=dict)
    """Milliseconds: queue_ms until its first step began, first_token_ms until its first token came, both
    since it was tokenised, and rest_ms from there to its last token."""
    plot: Mapping[str, int] = field(default_factory=dict)
    """The number of its tokens by what their look-up found."""
    choices: Sequence[tuple[str, float]] = ()
    """Each choice of its form with its probability, if they were asked for."""

    @property
    def tokens(self) -> int:
        """The tokens that count: those of the prompt and those that were written."""
        return self.prompt_tokens + self.written_tokens


class WrittenPieces(Protocol):
    """An answer that is being written."""

    @property
    def number(self) -> int:
        """The number of the model's version that writes it."""
        ...

    @property
    def tokens(self) -> int:
        """The tokens that it has cost so far: of its prompt and written. 0 if it failed by a fault that is
        not its caller's."""
        ...

    def __aiter__(self) -> AsyncIterator[WrittenPiece | WrittenText]:
        """The pieces as they come, then the whole answer. Raises HmiError."""
        ...
