"""Turns results into output tensors."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import chain

from hmi.api.protocols.asks import AskResult
from hmi.api.protocols.oip.about import OUTPUTS
from hmi.api.protocols.oip.tensors import ResultTensor
from hmi.engine import TextResult
from hmi.errors import Conflict

Results = Sequence[TextResult]


def outputs_made(result: AskResult, wanted: Sequence[str], version: str) -> list[ResultTensor]:
    """The outputs of one ask: those in `wanted`, or, if there are none, all that the results have.

    version: the version that the request named; "" if it named none. Raises Conflict if another version
    answered, since it was published meanwhile.
    """
    if version not in ("", str(result.version)):
        raise Conflict(
            f"version {result.version} of {result.model} was published meanwhile: leave the version out",
            field="version",
        )
    names = wanted or _names(result.outputs[0])
    return [_MAKERS[name](name, result.outputs) for name in names]


def _names(first: TextResult) -> Sequence[str]:
    """The outputs that results have, by the first of them."""
    if first.tags is not None or first.entities is not None:
        has = {"ENTITIES": first.entities, "TAGS": first.tags, "TAG_SCORES": first.tag_scores}
        return [name for name in OUTPUTS["tagging"] if has.get(name, ()) is not None]
    if first.labels is not None:
        return OUTPUTS["multilabel"]
    if first.value is not None:
        return OUTPUTS["regression"]
    return OUTPUTS["classification" if first.embedding is None else "embedding"]


def _texts(of: Callable[[TextResult], str]) -> Callable[[str, Results], ResultTensor]:
    return lambda name, results: ResultTensor(name, "BYTES", (len(results),), [of(each) for each in results])


def _floats(of: Callable[[TextResult], float | None]) -> Callable[[str, Results], ResultTensor]:
    return lambda name, results: ResultTensor(
        name, "FP32", (len(results),), [of(each) or 0.0 for each in results]
    )


def _flags(of: Callable[[TextResult], bool]) -> Callable[[str, Results], ResultTensor]:
    return lambda name, results: ResultTensor(name, "BOOL", (len(results),), [of(each) for each in results])


def _json(of: Callable[[TextResult], object]) -> Callable[[str, Results], ResultTensor]:
    return _texts(lambda each: json.dumps(of(each), ensure_ascii=False, separators=(",", ":")))


def _matrix(of: Callable[[TextResult], Sequence[float]]) -> Callable[[str, Results], ResultTensor]:
    def made(name: str, results: Results) -> ResultTensor:
        rows = [of(each) for each in results]
        return ResultTensor(name, "FP32", (len(rows), len(rows[0])), list(chain.from_iterable(rows)))

    return made


def _classes(name: str, results: Results) -> ResultTensor:
    labels = list(results[0].scores or ())
    return ResultTensor(name, "BYTES", (len(labels),), labels)


_MAKERS: dict[str, Callable[[str, Results], ResultTensor]] = {
    "LABEL": _texts(lambda each: each.label or ""),
    "SCORE": _floats(lambda each: each.score),
    "SCORES": _matrix(lambda each: list((each.scores or {}).values())),
    "CLASSES": _classes,
    "LABELS": _json(lambda each: [{"label": n, "score": p} for n, p in each.labels or ()]),
    "VALUE": _floats(lambda each: each.value),
    "TAGS": _json(lambda each: each.tags),
    "TAG_SCORES": _json(lambda each: each.tag_scores),
    "ENTITIES": _json(lambda each: None if each.entities is None else [vars(e) for e in each.entities]),
    "EMBEDDING": _matrix(lambda each: each.embedding or ()),
    "KNOWN": _flags(lambda each: each.known is not False),
    "TRUNCATED": _flags(lambda each: each.truncated),
}
"""The function that makes each output of the results, by name."""
