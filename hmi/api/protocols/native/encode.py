"""From results to native answers."""

from __future__ import annotations

from collections.abc import Sequence

from hmi.api.asks import AskResult
from hmi.api.protocols.base import Where
from hmi.api.protocols.native.schemas import (
    EntityOutput,
    InferAnswer,
    InferBody,
    InputProvenance,
    LabelScore,
    MixedItem,
    Output,
    Provenance,
    Versions,
)
from hmi.engine import TextResult
from hmi.engine.request import Provenance as EngineProvenance


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
