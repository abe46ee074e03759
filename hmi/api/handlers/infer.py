"""Inference: one model, or a list of requests to several."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import Any

from hmi.api.errors import over
from hmi.api.loop import OFF_LOOP_BYTES, OFF_LOOP_VALUES, off_loop
from hmi.api.protocols.native.schemas import (
    InferAnswer,
    InferBody,
    LabelScore,
    MixedItem,
    Output,
    Provenance,
    TokensInput,
    Versions,
)
from hmi.api.route import Call, Reply
from hmi.config import Settings
from hmi.core import ModelId
from hmi.engine import InferRequest, InferResult
from hmi.engine import request as engine
from hmi.errors import HmiError, InvalidInput, NotFound

Placed = tuple[str, InferRequest]
"""Where an input stands in the body, and what the engine gets of it."""
_ENGINE_FIELD = re.compile(r"inputs\[(\d+)\](.*)")
Raw = str | tuple[str, str] | list[str]


async def infer(call: Call) -> Reply:
    """POST /infer/{model}"""
    body: InferBody = call.body
    model = call.model()
    placed = await off_loop(call.size > OFF_LOOP_BYTES, _requests, model, body, call, "")
    results = await _run(call, placed)
    large = _is_large(results)
    return Reply(await off_loop(large, _answer, model, results, call), large=large)


async def infer_mixed(call: Call) -> Reply:
    """POST /infer: all requests at once, so that the engine batches them together. All or none."""
    items: list[MixedItem] = call.body
    models = [_reached(call, item, place) for place, item in enumerate(items)]
    sizes = [1 if isinstance(item.inputs, str) else len(item.inputs) for item in items]
    _check_count(call.services.settings, sum(sizes), "body")

    def requests() -> list[Placed]:
        groups = zip(models, items, strict=True)
        return [p for i, (model, item) in enumerate(groups) for p in _requests(model, item, call, f"[{i}].")]

    try:
        results = await _run(call, await off_loop(call.size > OFF_LOOP_BYTES, requests))
    except NotFound as error:
        missing = [i for i, model in enumerate(models) if repr(str(model)) in error.message]
        # As for a model of another tenant, which must not be told from one that does not exist.
        error.details.update({"field": f"[{missing[0]}].model"} if missing else {})
        raise
    large = _is_large(results)

    def answers() -> list[InferAnswer]:
        rest = iter(results)
        return [_answer(m, list(islice(rest, size)), call) for m, size in zip(models, sizes, strict=True)]

    return Reply(await off_loop(large, answers), large=large)


def _reached(call: Call, item: MixedItem, place: int) -> ModelId:
    model = ModelId.parse(item.model)
    if not call.caller.reaches(model.tenant):
        raise NotFound(f"there is no model {item.model!r}: check the name", field=f"[{place}].model")
    return model


def _requests(model: ModelId, body: InferBody, call: Call, prefix: str) -> list[Placed]:
    settings = call.services.settings
    one = isinstance(body.inputs, str)
    inputs = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    _check_count(settings, len(inputs), f"{prefix}inputs")
    wanted = set(body.parameters.return_)
    deadline = body.parameters.deadline_ms
    placed = []
    for i, item in enumerate(inputs):
        place = f"{prefix}inputs" if one else f"{prefix}inputs[{i}]"
        request = InferRequest(
            model=model,
            text=_text(item, place, settings.max_text_bytes),
            exact=body.parameters.exact,
            scores="scores" in wanted,
            provenance="provenance" in wanted,
            deadline=None if deadline is None else call.arrived + deadline / 1000,
        )
        placed.append((place, request))
    return placed


def _check_count(settings: Settings, count: int, field: str) -> None:
    if count > settings.max_inputs:
        raise over(field, settings.max_inputs, "inputs", "send several requests")


def _text(item: Any, field: str, limit: int) -> Raw:
    """The engine's form of one input. Raises TooLarge and InvalidInput naming the field."""
    if isinstance(item, str):
        return _checked(item, field, limit)
    if isinstance(item, TokensInput):
        return _checked_tokens(item.tokens, f"{field}.tokens", limit)
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


def _checked_tokens(tokens: list[str], field: str, limit: int) -> list[str]:
    if sum(len(token.encode()) for token in tokens) > limit:
        raise over(field, limit, "bytes", "send shorter texts")
    if not all(map(str.strip, tokens)):
        blank = f"{field}[{next(i for i, token in enumerate(tokens) if not token.strip())}]"
        raise InvalidInput(f"{blank} is blank: send some text", field=blank)
    return tokens


def _is_large(results: Sequence[InferResult]) -> bool:
    return sum(1 + len(r.scores or ()) + len(r.tags or ()) + len(r.embedding or ()) for r in results) > OFF_LOOP_VALUES


async def _run(call: Call, placed: Sequence[Placed]) -> Sequence[InferResult]:
    try:
        return await call.services.engine.infer([request for _, request in placed])
    except HmiError as error:
        _replace(error, [place for place, _ in placed])
        raise


def _replace(error: HmiError, places: Sequence[str]) -> None:
    """The engine counts inputs over the whole call: name the field as the client sent it."""
    field = error.details.get("field")
    match = _ENGINE_FIELD.match(field) if isinstance(field, str) else None
    if match:
        place = places[int(match[1])]
        error.details["field"] = place + match[2]
        error.message = error.message.replace(match[0], place + match[2])


def _answer(model: ModelId, results: Sequence[InferResult], call: Call) -> InferAnswer:
    call.services.metrics.usage.add(model.tenant, requests=1)
    return InferAnswer(
        model=str(model),
        version=results[0].version,
        outputs=[_output(r) for r in results],
        timing={**_timing(results), "total_ms": round((time.monotonic() - call.arrived) * 1000, 3)},
        provenance=_provenance([r.provenance for r in results if r.provenance is not None]),
    )


def _output(result: InferResult) -> Output:
    return Output(
        label=result.label,
        score=result.score,
        scores=result.scores,
        labels=None if result.labels is None else [LabelScore(label=n, score=p) for n, p in result.labels],
        value=result.value,
        tags=result.tags,
        tag_scores=result.tag_scores,
        embedding=result.embedding,
        truncated=result.truncated,
    )


def _timing(results: Sequence[InferResult]) -> dict[str, float]:
    """For each stage the longest time among the inputs, since these run side by side."""
    names = sorted({name for r in results for name in r.timing})
    return {name: round(max(r.timing.get(name, 0.0) for r in results), 3) for name in names}


def _provenance(parts: Sequence[engine.Provenance]) -> Provenance | None:
    """Counts of all inputs added up. The rest is one model's, pinned for the whole call: the same for each input."""
    if not parts:
        return None
    plot: Counter[str] = Counter()
    for part in parts:
        plot.update(part.plot)
    one = parts[0]
    versions = Versions(**vars(one.versions))
    return Provenance(plot=dict(plot), layers=one.layers, exact=one.exact, versions=versions)
