"""Requests to language models, and their answers. This module imports no torch."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

from hmi.core import ModelId, Task
from hmi.errors import InvalidInput
from hmi.model.text.form import Form
from hmi.model.text.sampling import Sampling

Finish = Literal["end", "stop", "length"]
"""The reason why a text ends. `end`: the model ended it, or its form is complete. `stop`: a stop string came.
`length`: the text has the most tokens that it may have."""
DEFAULT_MOST = 256
"""The most tokens that are written if a request does not say."""
CHARACTERS_A_TOKEN = 4
"""The estimate of a prompt's tokens before it is tokenised."""


@dataclass(frozen=True)
class TokenIds:
    """A prompt as tokens of the root's own vocabulary, which counts from 0."""

    ids: tuple[int, ...]


@dataclass(frozen=True)
class UserTurn:
    """A prompt that is a user's message if the root has a chat template, and else a text to continue."""

    text: str


@dataclass(frozen=True)
class WriteRequest:
    """A request for one text."""

    model: ModelId
    prompt: str | TokenIds | UserTurn | Sequence[Mapping[str, str]]
    """A text, tokens, or a chat: messages with `role` and `content`. An empty prompt is the begin token
    alone."""
    most: int | None = None
    """The most tokens to write. None: DEFAULT_MOST, or fewer if the context has no room for so many."""
    sampling: Sampling = field(default_factory=Sampling)
    stops: tuple[str, ...] = ()
    """The text ends before the first of these."""
    form: Form | None = None
    """The text keeps this form. Reading a text that ends before it does so raises CutShort."""
    deadline: float | None = None
    """The `time.monotonic()` at which the work is dropped. None: never."""
    index: int = 0
    """The index of the text among those of its call."""
    names: Mapping[str, str] = field(default_factory=dict)
    """The caller's names of the fields prompt, messages, max_tokens and stop, where they differ. Errors have
    them."""

    ask: ClassVar[int] = 0
    """A call counts as one request, however many texts it has (`hmi.api.access.rates`)."""

    def name(self, field: str) -> str:
        """The caller's name of a field."""
        return self.names.get(field, field)

    @property
    def place(self) -> str:
        """The caller's name of the field that holds the prompt."""
        return self.name("prompt" if isinstance(self.prompt, str | TokenIds | UserTurn) else "messages")

    @property
    def characters(self) -> int:
        """About the characters of the prompt and of what may be written, for an estimate of the tokens."""
        if self.form is not None and self.form.probabilities:
            written = sum(CHARACTERS_A_TOKEN + len(choice) for choice in self.form.choices or ())
        else:
            written = CHARACTERS_A_TOKEN * (self.most or DEFAULT_MOST)
        return self._prompt_size(len) + written

    @property
    def prompt_bytes(self) -> int:
        """The bytes of the prompt's texts in UTF-8; of tokens an estimate."""
        return self._prompt_size(lambda text: len(text.encode()))

    def _prompt_size(self, size: Callable[[str], int]) -> int:
        given = self.prompt
        if isinstance(given, TokenIds):
            return CHARACTERS_A_TOKEN * len(given.ids)
        given = given.text if isinstance(given, UserTurn) else given
        return sum(map(size, [given] if isinstance(given, str) else [m["content"] for m in given]))


@dataclass(frozen=True)
class TokenScore:
    """A token with its natural log-probability, and the best tokens at its position with theirs."""

    text: str
    logprob: float
    best: Sequence[tuple[str, float]] = ()
    id: int = 0
    """The token's id in the root's own vocabulary, which counts from 0."""
    special: bool = False
    """True for a special token. Texts leave these out."""


@dataclass(frozen=True)
class WrittenPiece:
    """The text since the piece before, and the scores of its tokens if they were asked for."""

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
    """The tokens of the prompt that were not computed, since an earlier text of this version began alike."""
    written_tokens: int
    """The tokens of the text, and the token that ended it."""
    scores: Sequence[TokenScore] = ()
    timing: Mapping[str, float] = field(default_factory=dict)
    """Milliseconds by stage. `queue_ms` is the time from tokenising to the first step, `first_token_ms` that
    from tokenising to the first token, and `rest_ms` that from the first token to the last."""
    plot: Mapping[str, int] = field(default_factory=dict)
    """The number of tokens by what their look-up found."""
    choices: Sequence[tuple[str, float]] = ()
    """The form's choices, each with its probability; empty unless the form asks for probabilities."""

    @property
    def tokens(self) -> int:
        """The tokens that are charged: those of the prompt and those that were written."""
        return self.prompt_tokens + self.written_tokens


class WrittenPieces(Protocol):
    """A text that is being written."""

    @property
    def number(self) -> int:
        """The number of the model's version that writes the text."""
        ...

    @property
    def tokens(self) -> int:
        """The tokens that are charged so far: those of the prompt and those that were written. A text that
        failed costs 0, unless its deadline passed or it was cut short."""
        ...

    def __aiter__(self) -> AsyncIterator[WrittenPiece | WrittenText]:
        """Iterate over the pieces as they come; the whole text is the last item. Raises HmiError."""
        ...


def writes_no_text(model: ModelId, task: Task, instead: str) -> InvalidInput:
    """The error for a model that does not write. instead: the call that asks it."""
    return InvalidInput(f"{model} is not a generative model, but one of {task}: use {instead}", field="model")
