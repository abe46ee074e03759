"""The protocol of huggingface_hub's InferenceClient: one call, whose answer depends on the model's task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hmi.api.protocols.asks import Ask, AskResult
from hmi.api.protocols.base import Endpoint, Failure, Where
from hmi.api.protocols.huggingface.schemas import (
    Comparison,
    HubAnswer,
    HubBody,
    HubEntity,
    HubError,
    HubParameters,
    Label,
    TextPair,
)
from hmi.api.protocols.inputs import Pair, TextInputs
from hmi.api.protocols.results import LABELLED, live_of, ranked, refuse_truncated, similarities
from hmi.core import ModelId, Task
from hmi.engine import TextResult
from hmi.errors import InvalidInput

_OF_LABELS = ("top_k", "function_to_apply")
_OF_ENTITIES = ("aggregation_strategy", "ignore_labels")
_OF_EMBEDDINGS = ("normalize", "truncate", "truncation_direction")
_OF_TEXTS = (
    "max_new_tokens",
    "do_sample",
    "temperature",
    "top_k",
    "top_p",
    "repetition_penalty",
    "frequency_penalty",
    "seed",
    "stop",
    "return_full_text",
    "details",
    "best_of",
    "decoder_input_details",
    "watermark",
    "top_n_tokens",
    "typical_p",
    "grammar",
)
PARAMETERS: Mapping[Task, tuple[str, ...]] = {
    **dict.fromkeys(LABELLED, _OF_LABELS),
    "tagging": _OF_ENTITIES,
    "embedding": _OF_EMBEDDINGS,
    "generation": _OF_TEXTS,
}
"""The parameters of each task."""
_NEVER = {
    "candidate_labels": "zero-shot classification is not served: a model knows the labels of its training "
    "rows only; call text_classification",
    "stride": "long texts are read in overlapping windows of a fixed stride: leave stride out",
    "prompt_name": "models have no prompts: leave prompt_name out",
}
"""Parameters that no task has, and what to do instead."""


def decode(body: HubBody, where: Where) -> list[Ask]:
    """Raises NotFound, and InvalidInput for inputs or parameters that the model's task does not have."""
    model = ModelId.parse(where.path["model"])
    task = live_of(where, model, tuple(PARAMETERS), "the call").task
    given, inputs = body.given, body.inputs
    check_parameters(given, task)
    if body.stream:
        raise InvalidInput(f"stream: {model} writes no text: leave it out", field="stream")
    if isinstance(inputs, Comparison):
        live_of(where, model, ("embedding",), "sentence similarity")
        texts = [inputs.source_sentence, *inputs.sentences]
        return [Ask(model, TextInputs(texts, "inputs.sentences"))]
    many = inputs if isinstance(inputs, list) else [inputs]
    raw = given.function_to_apply is not None
    return [
        Ask(
            model,
            TextInputs(
                [_text(item) for item in many],
                "inputs",
                listed=isinstance(inputs, list),
                pair_names=(".text", ".text_pair"),
            ),
            scores=task in LABELLED,
            raw=raw,
            early=not raw,  # early exits and cascades have no outputs of the full model's head
            normalise=given.normalize,
            aggregation=given.aggregation_strategy or "simple",
        )
    ]


def encode(results: Sequence[AskResult], body: HubBody, where: Where) -> HubAnswer:
    """The answer in the shape of the model's task."""
    (result,) = results
    given, outputs = body.given, result.outputs
    if given.truncate is False:
        refuse_truncated(result, "inputs")
    if isinstance(body.inputs, Comparison):
        return HubAnswer.model_construct(similarities(outputs))
    if outputs[0].embedding is not None:
        return HubAnswer.model_construct([output.embedding or [] for output in outputs])
    if outputs[0].entities is not None:
        found = [_entities(output, given) for output in outputs]
        return HubAnswer.model_construct(found if isinstance(body.inputs, list) else found[0])
    return HubAnswer.model_construct([_labels(output, given) for output in outputs])


def _labels(output: TextResult, given: HubParameters) -> list[Label]:
    best = ranked(output, given.function_to_apply)[: given.top_k]
    return [Label(label=label, score=score) for label, score in best]


def _entities(output: TextResult, given: HubParameters) -> list[HubEntity]:
    ignored, single = given.ignore_labels or (), given.aggregation_strategy == "none"
    return [
        HubEntity(
            entity=entity.label if single else None,
            entity_group=None if single else entity.label,
            score=entity.score,
            word=entity.text,
            start=entity.start,
            end=entity.end,
        )
        for entity in output.entities or ()
        if entity.label not in ignored
    ]


def _text(item: str | TextPair) -> str | Pair:
    if isinstance(item, str):
        return item
    return item.text if item.text_pair is None else (item.text, item.text_pair)


def check_parameters(given: HubParameters, task: Task) -> None:
    """Raise InvalidInput for a parameter that is given and that models of this task do not have."""
    named = given.model_dump(exclude_none=True)
    for name, cure in _NEVER.items():
        if name in named:
            raise InvalidInput(f"parameters.{name}: {cure}", field=f"parameters.{name}")
    for name in named:
        if name not in PARAMETERS[task]:
            raise InvalidInput(
                f"parameters.{name}: models of the task {task} do not have it; they have "
                f"{', '.join(PARAMETERS[task])}",
                field=f"parameters.{name}",
            )
    if given.truncation_direction == "Left":
        raise InvalidInput(
            "parameters.truncation_direction: only the end of a text can be cut: use Right",
            field="parameters.truncation_direction",
        )


@dataclass(frozen=True)
class HuggingFace:
    """The `Dialect` of Hugging Face's inference API."""

    endpoints: Sequence[Endpoint] = (
        Endpoint(
            "/hf/{model}",
            "Infer with one model (huggingface_hub's InferenceClient). POST /infer/{model} does the same for "
            "clients whose User-Agent names hf_hub.",
            HubBody,
            HubAnswer,
            decode,
            encode,
            "inputs",
        ),
    )
    error: Any = HubError
    prefixes: Sequence[str] = ("/hf",)
    statuses: Mapping[str, int] = field(default_factory=dict)

    def encode_error(self, failure: Failure) -> dict[str, Any]:
        """A `HubError` as JSON values."""
        return {"error": failure.message, "error_type": failure.kind}


HUGGINGFACE = HuggingFace()


def from_hub_client(headers: Mapping[str, str]) -> bool:
    """Return whether a request comes from huggingface_hub, which names itself in every request."""
    return "hf_hub/" in headers.get("User-Agent", "")
