"""The interface of a protocol's calls that let models write: each decodes to requests, and encodes texts
whole or as events. `hmi.api.handlers.protocols.write` serves them."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

from hmi.api.protocols.base import EVENTS, RawBody, Where
from hmi.api.protocols.texts import Texts
from hmi.core import ModelId, Task
from hmi.engine.writing.request import WriteRequest, WrittenText, writes_no_text
from hmi.model.text.sampling import Sampling


class Event(NamedTuple):
    """A piece of a stream: a server-sent event, or a line. `data` has no line breaks."""

    data: str
    name: str | None = None


@dataclass(frozen=True)
class WritingCall:
    """A call as a codec gets it."""

    body: Any
    where: Where
    id: str
    """The X-Request-Id of the answer."""
    arrived: float
    """When the call arrived, in seconds of `time.monotonic()`."""

    def deadline(self, ms: float | None) -> float | None:
        """The `time.monotonic()` so many milliseconds after the call arrived."""
        return None if ms is None else self.arrived + ms / 1000


class Codec(Protocol):
    """One call of a protocol. A codec is made from a `WritingCall`. It turns the call into requests for
    texts, and the written texts into the answer.

    Making it raises NotFound, and InvalidInput for what the protocol or the model does not have.
    """

    error_event: ClassVar[str | None]
    """The name of the event for an error in a stream that has begun."""

    @property
    def wants(self) -> Sequence[WriteRequest]:
        """One request for each text, in the order of their `index`."""
        ...

    @property
    def streams(self) -> bool:
        """True if the answer is a stream of events."""
        ...

    def whole(self, texts: Sequence[WrittenText]) -> Any:
        """Return the answer, an instance of `WritingEndpoint.answer`. texts: in the order of `wants`."""
        ...

    def events(self, texts: Texts) -> AsyncGenerator[Event]:
        """Yield the events of a stream while the texts are written."""
        ...


@dataclass(frozen=True)
class WritingEndpoint:
    """One call of a protocol that lets a model write: a POST with a JSON body."""

    path: str
    summary: str
    body: Any
    """The pydantic type of the body."""
    answer: Any
    """The pydantic type of a whole answer."""
    codec: Callable[[WritingCall], Codec]
    raw: RawBody | None = None
    """The reader of a body that is not simply JSON. `body` then only documents its JSON form."""
    media: str = EVENTS
    """The media type of a stream: EVENTS or LINES."""


_CHOOSING = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)


def sampling_of(given: Any, **others: Any) -> Sampling:
    """The settings that `given` has under HMI's names, with `others`. None stands for the default; a seed
    that is None is drawn."""
    named = {name: getattr(given, name, None) for name in _CHOOSING} | others
    seed = secrets.randbits(32) if given.seed is None else given.seed % 2**64
    return Sampling(**{name: value for name, value in named.items() if value is not None}, seed=seed)


def stops_of(given: str | Sequence[str] | None) -> tuple[str, ...]:
    """Stop strings as `WriteRequest` has them."""
    return (given,) if isinstance(given, str) else tuple(given or ())


def check_writes(where: Where, model: ModelId, instead: Callable[[Task], str]) -> None:
    """Raise InvalidInput for a model that does not write, and NotFound for one that the caller does not
    reach. instead: the call that asks a model of a task."""
    assert where.models is not None
    task = where.models.live(model).task
    if task != "generation":
        raise writes_no_text(model, task, instead(task))
