"""From results to native answers."""

from __future__ import annotations

from collections.abc import Sequence

from hmi.api.protocols.asks import AskResult
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
    WordOrder,
)
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
