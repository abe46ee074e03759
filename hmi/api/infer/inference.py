"""Inference without HTTP: from asks to results. Every protocol and the command line use it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from hmi.api.access.caller import Caller
from hmi.api.access.rates import Rates
from hmi.api.in_thread import off_loop
from hmi.api.infer.call_counts import CallCounter
from hmi.api.protocols.asks import Ask, AskResult, Input, text_id
from hmi.api.protocols.errors import over_limit
from hmi.api.protocols.texts import Texts, Write, written_together
from hmi.config import Settings
from hmi.core import DeletedParts, ModelId
from hmi.engine import TextRequest, TextResult
from hmi.engine.texts.request import AnswerProvenance
from hmi.engine.writing.request import WriteRequest, WrittenText
from hmi.errors import InvalidInput
from hmi.telemetry.tracing import span

if TYPE_CHECKING:
    from hmi.model.text.tokenizer import Text
    from hmi.stages.cascade.report import CascadeReport
    from hmi.stages.early_exit.evidence import Audits
    from hmi.stages.early_exit.report import Exits


class TokenAudits(Protocol):
    """Tells what audits of merged texts have found."""

    def audits(self, model: ModelId, artefact: str) -> Mapping[int, Audits]:
        """Return the audits of a model's merged texts since the server started, by γ."""
        ...


class InferenceEngine(Protocol):
    """What the edge needs of the engine."""

    async def start(self) -> None: ...

    async def stop(self, *, drain: bool = True) -> None: ...

    async def infer(self, requests: list[TextRequest]) -> Sequence[TextResult]:
        """Answer all requests, in their order, or raise."""
        ...

    def admitted(self, wants: Sequence[WriteRequest]) -> AbstractContextManager[Write]:
        """Context manager: a call is under way in the block, which gets what lets its texts be written. See
        `Engine.admitted`."""
        ...

    def wait_s(self, tenant: str | None) -> float:
        """Predicted seconds that a text of the tenant would wait; that all texts take, for None."""
        ...

    async def load(self, models: Sequence[ModelId]) -> int:
        """Load models before their first texts come. Returns how many could be loaded."""
        ...

    def forget(self, gone: DeletedParts) -> None:
        """Give back the memory of what has been deleted. May be called on any thread."""
        ...

    def cascade_report(
        self, model: ModelId, artefact: str, small_artefact: str, agreement: float | None
    ) -> CascadeReport | None:
        """Return what a cascade did under an agreement; None if none of its texts came under it. Called on
        the event loop's thread.

        model: the large level. artefact, small_artefact: the levels'. agreement: the model's own; None: it
        has none.
        """
        ...

    def ready(self) -> bool:
        """Return whether it accepts requests."""
        ...

    @property
    def exits(self) -> Exits | None:
        """The early exits of all models: their reports, and labels that come later. None: it has none."""
        ...

    @property
    def tokens(self) -> TokenAudits | None:
        """The audits of token adaptation. None: it has no such stage."""
        ...

    def trouble(self) -> str | None:
        """Why it is not ready although it was started; None if nothing is wrong."""
        ...


@dataclass(frozen=True)
class Inference:
    """Checks asks and lets the engine answer them."""

    engine: InferenceEngine
    settings: Settings
    tally: CallCounter = field(default_factory=CallCounter)
    """Counts what each model answered."""
    rates: Rates = field(default_factory=Rates)
    answering: AbstractContextManager[None] = field(default_factory=nullcontext)
    """Is open while texts are answered, once for each call."""

    async def answer(
        self,
        asks: Sequence[Ask],
        caller: Caller,
        arrived: float,
        *,
        id: str = "",
        field: str = "inputs",
        large: bool = False,
    ) -> list[AskResult]:
        """Answer all asks, in their order, or none. The engine gets them together, so that it can batch them.

        arrived: the `time.monotonic()` from which deadlines and `total_ms` count. id: the call's. field: the
        field that the error about too many inputs names. large: check the inputs in a thread instead of on
        the event loop.

        Raises NotFound (a model that does not exist or that the caller does not reach), TooLarge and
        InvalidInput (each names the field), QuotaExceeded, Unavailable, DeadlineExceeded.
        """
        for ask in asks:
            caller.must_reach(ask.model.tenant, f"model {str(ask.model)!r}", field=ask.model_place)
        if sum(len(ask.inputs) for ask in asks) > self.settings.max_inputs:
            raise over_limit(field, self.settings.max_inputs, "inputs", "send several requests")
        requests = await off_loop(large, self._requests, asks, arrived, id)
        with self.answering, self.rates.charged(requests) as settle, span("engine"):
            answered = await self.engine.infer(requests)
            settle(answered)
        results = iter(answered)
        total_ms = round((time.monotonic() - arrived) * 1000, 3)
        made = [_result(ask, list(islice(results, len(ask.inputs))), total_ms, id) for ask in asks]
        for result in made:
            self.tally.add(result.model, result.version, len(result.outputs), result.timing)
        return made

    @asynccontextmanager
    async def write(self, wants: Sequence[WriteRequest], caller: Caller) -> AsyncIterator[Texts]:
        """Context manager: texts of one model are being written in the block, as `written_together` says. Its
        tenant is charged for what is written by the end of the block.

        Raises as `answer`, and TooLarge for a long prompt.
        """
        for want in wants:
            caller.must_reach(want.model.tenant, f"model {str(want.model)!r}", field="model")
            if want.prompt_bytes > self.settings.max_text_bytes:
                raise over_limit(want.place, self.settings.max_text_bytes, "bytes", "send a shorter text")
        with self.answering, self.rates.charged(wants) as settle, self.engine.admitted(wants) as write:
            async with written_together(write, wants) as texts:
                try:
                    yield texts
                finally:
                    settle(texts.costs)
                    if texts.done:
                        self.tally.add(wants[0].model, texts.version, len(texts.done), _timing(texts.ordered))

    def _requests(self, asks: Sequence[Ask], arrived: float, id: str) -> list[TextRequest]:
        return [
            request
            for number, ask in enumerate(asks)
            for request in self._requests_of(ask, number, arrived, ask.id_in(id) if id else "")
        ]

    def _requests_of(self, ask: Ask, number: int, arrived: float, id: str) -> Iterator[TextRequest]:
        deadline = None if ask.deadline_ms is None else arrived + ask.deadline_ms / 1000
        for index, given in enumerate(ask.inputs):
            yield TextRequest(
                model=ask.model,
                text=_checked(given, self.settings.max_text_bytes),
                exact=ask.exact,
                scores=ask.scores,
                raw=ask.raw,
                normalise=ask.normalise,
                provenance=ask.provenance,
                words=ask.words,
                deadline=deadline,
                utility=ask.utility,
                priority=ask.priority,
                calibrated=ask.calibrated,
                aggregation=ask.aggregation,
                early=ask.early,
                id=text_id(id, index) if id else "",
                ask=number,
                place=given.place,
                model_place=ask.model_place,
            )


def _checked(given: Input, limit: int) -> Text:
    """The text of an input. Raises TooLarge for a long and InvalidInput for a blank one.

    The engine checks whether the form of the input fits the model.
    """
    text = given.text
    if isinstance(text, list):
        _check_words(text, given.parts[0], limit)
        return text
    for part, name in zip((text,) if isinstance(text, str) else text, given.parts, strict=True):
        if len(part.encode()) > limit:
            raise over_limit(name, limit, "bytes", "send a shorter text")
        if not part.strip():
            raise _blank(name)
    return text


def _check_words(words: list[str], field: str, limit: int) -> None:
    if sum(len(word.encode()) for word in words) > limit:
        raise over_limit(field, limit, "bytes", "send shorter texts")
    for i, word in enumerate(words):
        if not word.strip():
            raise _blank(f"{field}[{i}]")


def _blank(field: str) -> InvalidInput:
    return InvalidInput(f"{field} is blank: send some text", field=field)


def _result(ask: Ask, outputs: list[TextResult], total_ms: float, call: str) -> AskResult:
    made_by = [output.provenance for output in outputs if output.provenance is not None]
    return AskResult(
        model=ask.model,
        version=outputs[0].version,
        outputs=outputs,
        timing={**_timing(outputs), "total_ms": total_ms},
        provenance=AnswerProvenance.together(made_by) if made_by else None,
        id=ask.id_in(call),
    )


def _timing(outputs: Sequence[TextResult | WrittenText]) -> dict[str, float]:
    """The longest time of any of them, by stage: they run side by side."""
    names = sorted({name for output in outputs for name in output.timing})
    return {name: round(max(output.timing.get(name, 0.0) for output in outputs), 3) for name in names}
