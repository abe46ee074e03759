"""Turns bodies of text-embeddings-inference into asks, and results into its answers."""

from __future__ import annotations

from collections.abc import Sequence

from hmi.api.protocols.asks import Ask, AskResult
from hmi.api.protocols.base import Where
from hmi.api.protocols.inputs import Pair, TextInputs, inputs_of
from hmi.api.protocols.results import (
    LABELLED,
    Transform,
    check_dimensions,
    live_of,
    ranked,
    refuse_truncated,
    similarities,
)
from hmi.api.protocols.tei.schemas import (
    EmbedBody,
    Embeddings,
    PredictBody,
    Prediction,
    Predictions,
    Rank,
    Ranks,
    RerankBody,
    Similarities,
    SimilarityBody,
    Truncation,
)
from hmi.core import ModelId
from hmi.errors import InvalidInput

HEADER = "X-Model"
"""The header that names the model, as tenant.model."""
HEADERS = {HEADER: "tenant.model. Default: HMI_DEFAULT_MODEL, else the only model that the key reaches."}


def model_of(where: Where) -> ModelId:
    """The model that a call is for. Raises InvalidInput."""
    named = where.headers.get(HEADER.lower())
    if named:
        return ModelId.parse(named, HEADER)
    assert where.models is not None, "the server tells of its models"
    return where.models.default()


def decode_embed(body: EmbedBody, where: Where) -> list[Ask]:
    """POST /embed."""
    _check_direction(body)
    model = model_of(where)
    live_of(where, model, ("embedding",), "/embed")
    return [Ask(model, inputs_of(body.inputs, "inputs"), HEADER, normalise=body.normalize)]


def encode_embed(results: Sequence[AskResult], body: EmbedBody, where: Where) -> Embeddings:
    (result,) = results
    _check_length(result, body, "inputs")
    check_dimensions(result, body.dimensions)
    return Embeddings.model_construct([output.embedding or [] for output in result.outputs])


def decode_predict(body: PredictBody, where: Where) -> list[Ask]:
    """POST /predict. Raw scores are the full model's, since early exits and cascades have none."""
    _check_direction(body)
    model = model_of(where)
    live_of(where, model, LABELLED, "/predict")
    batch = _batch(body)
    listed = batch is not None
    texts = [_text(item) for item in batch] if batch is not None else [_text(_one(body))]
    inputs = TextInputs(texts, "inputs", listed=listed)
    return [Ask(model, inputs, HEADER, scores=True, raw=body.raw_scores, early=not body.raw_scores)]


def encode_predict(results: Sequence[AskResult], body: PredictBody, where: Where) -> Predictions:
    (result,) = results
    _check_length(result, body, "inputs")
    transform: Transform | None = "none" if body.raw_scores else None
    found = [
        [Prediction(label=label, score=score) for label, score in ranked(output, transform)]
        for output in result.outputs
    ]
    return Predictions(found[0] if _batch(body) is None else found)


def decode_rerank(body: RerankBody, where: Where) -> list[Ask]:
    """POST /rerank: a model of numbers for pairs rates each pair; an embedding model compares embeddings."""
    _check_direction(body)
    model = model_of(where)
    live = live_of(where, model, ("embedding", "regression"), "/rerank")
    if live.task == "embedding":
        return [Ask(model, _query_and_texts(body.query, body.texts), HEADER, normalise=True)]
    if not live.rules.paired:
        raise InvalidInput(
            f"/rerank needs a model that rates pairs of texts, and {model} rates single ones: name another",
            field=HEADER,
        )
    pairs: list[str | Pair] = [(body.query, text) for text in body.texts]
    return [Ask(model, TextInputs(pairs, "texts", pair_names=(".query", "")), HEADER)]


def encode_rerank(results: Sequence[AskResult], body: RerankBody, where: Where) -> Ranks:
    (result,) = results
    _check_length(result, body, "texts")
    values = [output.value for output in result.outputs]
    scores = [value for value in values if value is not None] or similarities(result.outputs)
    order = sorted(range(len(scores)), key=lambda i: -scores[i])
    ranks = [Rank(index=i, score=scores[i], text=body.texts[i] if body.return_text else None) for i in order]
    return Ranks(ranks)


def decode_similarity(body: SimilarityBody, where: Where) -> list[Ask]:
    """POST /similarity."""
    _check_direction(body.parameters)
    model = model_of(where)
    live_of(where, model, ("embedding",), "/similarity")
    return [Ask(model, _query_and_texts(body.inputs.source_sentence, body.inputs.sentences), HEADER)]


def encode_similarity(results: Sequence[AskResult], body: SimilarityBody, where: Where) -> Similarities:
    (result,) = results
    _check_length(result, body.parameters, "inputs.sentences")
    return Similarities(similarities(result.outputs))


def _query_and_texts(query: str, texts: Sequence[str]) -> TextInputs:
    return TextInputs([query, *texts], "texts")


def _one(body: PredictBody) -> list[str]:
    """The only input of a call without a batch: a text or a pair."""
    if isinstance(body.inputs, str):
        return [body.inputs]
    return [text for text in body.inputs if isinstance(text, str)]


def _batch(body: PredictBody) -> list[list[str]] | None:
    """The inputs of a batch, each a text or a pair; None if the call has one input."""
    if isinstance(body.inputs, str) or isinstance(body.inputs[0], str):
        return None
    return [item for item in body.inputs if isinstance(item, list)]


def _text(item: list[str]) -> str | Pair:
    return item[0] if len(item) == 1 else (item[0], item[1])


def _check_direction(body: Truncation) -> None:
    if body.truncation_direction == "Left":
        raise InvalidInput(
            "truncation_direction: only the end of a text can be cut: use Right", field="truncation_direction"
        )


def _check_length(result: AskResult, body: Truncation, field: str) -> None:
    if body.truncate is False:
        refuse_truncated(result, field)
