"""The native protocol: its calls, and the shape of its errors, which all calls outside a protocol share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hmi.api.protocols.asks import Ask, AskResult, Input
from hmi.api.protocols.base import Endpoint, Failure, Where
from hmi.api.protocols.native.schemas import (
    EntityOutput,
    InferAnswer,
    InferBody,
    InputProvenance,
    LabelScore,
    MixedAnswer,
    MixedBody,
    MixedItem,
    Output,
    Provenance,
    TextInput,
    TokensInput,
    Versions,
    WordOrder,
    count_members,
)
from hmi.api.schemas.shared import ErrorAnswer
from hmi.core import ModelId
from hmi.engine import TextResult
from hmi.engine.texts.request import AnswerProvenance as EngineProvenance
from hmi.engine.texts.request import Word
from plot_store import ORDER_NAMES


def encode_one(results: Sequence[AskResult], body: InferBody, where: Where) -> InferAnswer:
    """The answer to POST /infer/{model}."""
    (result,) = results
    return _answer(result)


def encode_mixed(results: Sequence[AskResult], body: list[MixedItem], where: Where) -> list[InferAnswer]:
    """The answer to POST /infer: a list with one answer for each request of the body."""
    return [_answer(result) for result in results]


def _answer(result: AskResult) -> InferAnswer:
    return InferAnswer(
        id=result.id,
        model=str(result.model),
        version=result.version,
        outputs=[_output(output) for output in result.outputs],
        timing=dict(result.timing),
        provenance=None if result.provenance is None else _provenance(result.provenance, result.outputs),
    )


def _output(output: TextResult) -> Output:
    return Output(
        label=output.label,
        score=output.score,
        scores=output.scores,
        labels=None if output.labels is None else [LabelScore(label=n, score=p) for n, p in output.labels],
        value=output.value,
        tags=output.tags,
        tag_scores=output.tag_scores,
        embedding=output.embedding,
        entities=None if output.entities is None else [EntityOutput(**vars(e)) for e in output.entities],
        known=output.known,
        truncated=output.truncated,
        words=None if output.words is None else [_word(word) for word in output.words],
    )


def _word(word: Word) -> WordOrder:
    weakest = next((name for name in ORDER_NAMES if name in word.orders), None)  # they go from short to long
    return WordOrder(
        text=word.text,
        start=word.start,
        end=word.end,
        order=weakest or next(iter(word.orders), None),
        orders=list(word.orders),
        pair=word.pair,
    )


def _provenance(made_by: EngineProvenance, outputs: Sequence[TextResult]) -> Provenance:
    return Provenance(
        plot=dict(made_by.plot),
        layers=made_by.layers,
        exact=made_by.exact,
        versions=Versions(**vars(made_by.versions)),
        stages=dict(made_by.stages),
        confidence=made_by.confidence,
        level=made_by.level,
        planner=made_by.planner,
        inputs=[
            InputProvenance(
                layers=of.layers,
                confidence=of.confidence,
                level=of.level,
                stages=dict(of.stages),
                planner=of.planner,
            )
            for output in outputs
            if (of := output.provenance) is not None
        ],
    )


def decode_one(body: InferBody, where: Where) -> list[Ask]:
    """Decode POST /infer/{model}. Raises InvalidInput if the name of the model in the path is malformed."""
    return [_ask(ModelId.parse(where.path["model"]), body)]


def decode_mixed(body: list[MixedItem], where: Where) -> list[Ask]:
    """Decode POST /infer: one ask for each request of the body."""
    return [
        _ask(ModelId.parse(item.model), item, prefix=f"[{i}].", model_place=f"[{i}].model", place=i)
        for i, item in enumerate(body)
    ]


@dataclass(frozen=True)
class _BodyInputs:
    """The inputs of one body, created while they are iterated."""

    body: InferBody
    prefix: str
    """The beginning of the inputs' names."""

    def __len__(self) -> int:
        return 1 if isinstance(self.body.inputs, str) else len(self.body.inputs)

    def __iter__(self) -> Iterator[Input]:
        if isinstance(self.body.inputs, str):
            yield _input(self.body.inputs, f"{self.prefix}inputs")
            return
        for i, item in enumerate(self.body.inputs):
            yield _input(item, f"{self.prefix}inputs[{i}]")


def _ask(
    model: ModelId,
    body: InferBody,
    prefix: str = "",
    model_place: str | None = None,
    place: int | None = None,
) -> Ask:
    wanted = body.parameters.return_
    return Ask(
        model=model,
        inputs=_BodyInputs(body, prefix),
        model_place=model_place,
        exact=body.parameters.exact,
        scores="scores" in wanted,
        provenance="provenance" in wanted,
        words="words" in wanted,
        deadline_ms=body.parameters.deadline_ms,
        utility=body.parameters.utility,
        priority=body.parameters.priority,
        calibrated=body.parameters.calibrated,
        aggregation=body.parameters.aggregation,
        early=body.parameters.early,
        place=place,
    )


def _input(item: str | TextInput | TokensInput, place: str) -> Input:
    if isinstance(item, str):
        return Input(item, place, (place,))
    if isinstance(item, TokensInput):
        return Input(item.tokens, place, (f"{place}.tokens",))
    if item.text_pair is None:
        return Input(item.text, place, (f"{place}.text",))
    return Input((item.text, item.text_pair), place, (f"{place}.text", f"{place}.text_pair"))


@dataclass(frozen=True)
class Native:
    """The native `Dialect`."""

    endpoints: Sequence[Endpoint] = (
        Endpoint(
            "/infer/{model}",
            "Infer with one model.",
            InferBody,
            InferAnswer,
            decode_one,
            encode_one,
            "inputs",
            count_members,
        ),
        Endpoint(
            "/infer",
            "Infer with several models at once.",
            MixedBody,
            MixedAnswer,
            decode_mixed,
            encode_mixed,
            "body",
            count_members,
        ),
    )
    error: Any = ErrorAnswer
    prefixes: Sequence[str] = ()
    statuses: Mapping[str, int] = field(default_factory=dict)

    def encode_error(self, failure: Failure) -> dict[str, Any]:
        """An `ErrorAnswer` as JSON values."""
        return {
            "error": {
                "kind": failure.kind,
                "message": failure.message,
                "details": failure.details,
                "request_id": failure.request_id,
            }
        }


NATIVE = Native()
