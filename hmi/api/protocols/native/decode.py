"""From native bodies, already checked against their schemas, to asks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hmi.api.protocols.asks import Ask, Input
from hmi.api.protocols.base import Where
from hmi.api.protocols.native.schemas import InferBody, MixedItem, TextInput, TokensInput
from hmi.core import ModelId


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
