"""Inference: one model, or a list of requests to several."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from hmi.api.errors import over
from hmi.api.route import Call, Reply
from hmi.api.schemas_infer import InferAnswer, InferBody, MixedItem, Output, TokensInput
from hmi.config import Settings
from hmi.core import ModelId
from hmi.engine import InferRequest, InferResult
from hmi.errors import HmiError, InvalidInput, NotFound
from hmi.metrics import Usage

Raw = str | tuple[str, str] | list[str]


async def infer(call: Call) -> Reply:
    """POST /infer/{model}"""
    body: InferBody = call.body
    model = call.model()
    requests = _requests(model, body, call, "")
    results = await _run(call, requests, [""] * len(requests))
    return Reply(_answer(model, results, call))


async def infer_mixed(call: Call) -> Reply:
    """POST /infer: all requests at once, so that the engine batches them together. All or none."""
    items: list[MixedItem] = call.body
    requests: list[InferRequest] = []
    where: list[str] = []
    models = [_reached(call, item, place) for place, item in enumerate(items)]
    for place, (model, item) in enumerate(zip(models, items, strict=True)):
        found = _requests(model, item, call, f"[{place}].")
        requests += found
        where += [f"[{place}]."] * len(found)
    _check_count(call.services.settings, len(requests), "body")
    results = iter(await _run(call, requests, where))
    answers = []
    for model, item in zip(models, items, strict=True):
        count = 1 if isinstance(item.inputs, str) else len(item.inputs)
        answers.append(_answer(model, [next(results) for _ in range(count)], call))
    return Reply(answers)


def _reached(call: Call, item: MixedItem, place: int) -> ModelId:
    model = ModelId.parse(item.model)
    if not call.caller.reaches(model.tenant):
        raise NotFound(f"there is no model {item.model!r}: check the name", field=f"[{place}].model")
    return model


def _requests(model: ModelId, body: InferBody, call: Call, prefix: str) -> list[InferRequest]:
    settings = call.services.settings
    one = isinstance(body.inputs, str)
    inputs = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    _check_count(settings, len(inputs), f"{prefix}inputs")
    wanted = set(body.parameters.return_)
    deadline = body.parameters.deadline_ms
    return [
        InferRequest(
            model=model,
            text=_text(item, f"{prefix}inputs" if one else f"{prefix}inputs[{i}]", settings.max_text_bytes),
            exact=body.parameters.exact,
            scores="scores" in wanted,
            provenance="provenance" in wanted,
            embedding="embedding" in wanted,
            deadline=None if deadline is None else call.arrived + deadline / 1000,
        )
        for i, item in enumerate(inputs)
    ]


def _check_count(settings: Settings, count: int, field: str) -> None:
    if count > settings.max_inputs:
        raise over(field, settings.max_inputs, "inputs", "send several requests")


def _text(item: Any, field: str, limit: int) -> Raw:
    """The engine's form of one input. Raises TooLarge and InvalidInput naming the field."""
    if isinstance(item, str):
        return _checked(item, field, limit)
    if isinstance(item, TokensInput):
        if sum(len(token.encode()) for token in item.tokens) > limit:
            raise over(f"{field}.tokens", limit, "bytes", "send shorter texts")
        return [_checked(token, f"{field}.tokens[{i}]", limit) for i, token in enumerate(item.tokens)]
    text = _checked(item.text, f"{field}.text", limit)
    if item.text_pair is None:
        return text
    return text, _checked(item.text_pair, f"{field}.text_pair", limit)


def _checked(text: str, field: str, limit: int) -> str:
    if len(text.encode()) > limit:
        raise over(field, limit, "bytes", "send a shorter text")
    if not text.strip():
        raise InvalidInput(f"{field} is blank: send some text", field=field)
    return text


async def _run(
    call: Call, requests: list[InferRequest], where: Sequence[str]
) -> Sequence[InferResult]:
    try:
        results = await call.services.engine.infer(requests)
    except HmiError as error:
        field = error.details.get("field")
        place = error.details.get("index")
        if isinstance(field, str) and isinstance(place, int):
            error.details["field"] = where[place] + field
        raise
    return results


def _answer(model: ModelId, results: Sequence[InferResult], call: Call) -> InferAnswer:
    _count(call.services.metrics.usage, model.tenant, results)
    hits = [r.provenance for r in results if r.provenance is not None]
    return InferAnswer(
        model=str(model),
        version=results[0].version,
        outputs=[_output(r) for r in results],
        timing={**_timing(results), "total_ms": round((time.monotonic() - call.arrived) * 1000, 3)},
        provenance=_merged(hits) if hits else None,
    )


def _output(result: InferResult) -> Output:
    return Output(
        label=result.label,
        score=result.score,
        scores=result.scores,
        tags=result.tags,
        tag_scores=result.tag_scores,
        embedding=result.embedding,
        truncated=result.truncated,
    )


def _timing(results: Sequence[InferResult]) -> dict[str, float]:
    """By stage, the longest among the inputs: they run side by side."""
    names = sorted({name for r in results for name in r.timing})
    return {name: round(max(r.timing.get(name, 0.0) for r in results), 3) for name in names}


def _merged(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Counts of all inputs added up; of anything else the first input's."""
    merged: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            old = merged.get(name)
            if isinstance(value, Mapping):
                merged[name] = _merged([old or {}, value])
            elif isinstance(value, int) and not isinstance(value, bool) and isinstance(old, int):
                merged[name] = old + value
            else:
                merged.setdefault(name, value)
    return merged


def _count(usage: Usage, tenant: str, results: Sequence[InferResult]) -> None:
    compute = sum(r.timing.get("compute_ms", 0.0) for r in results)
    usage.add(tenant, requests=1, inputs=len(results), compute_ms=compute)
