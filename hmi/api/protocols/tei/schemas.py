"""The bodies and answers of text-embeddings-inference."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, RootModel, Tag

from hmi.api.protocols.inputs import Text, TextList, one_or_many
from hmi.api.schemas.shared import Answer, Request


def _capital(value: Any) -> Any:
    return value.capitalize() if isinstance(value, str) else value


Direction = Annotated[Literal["Right", "Left"], BeforeValidator(_capital)]


class Truncation(Request):
    """The treatment of inputs that are longer than what the model reads."""

    truncate: bool | None = Field(
        default=None, description="false: an input that is too long is refused with 413. Else its end is cut."
    )
    truncation_direction: Direction | None = Field(
        default=None, description="Only `Right`: the end of a long input is cut."
    )


class Prompted(Truncation):
    prompt_name: str | None = Field(
        default=None, max_length=0, description="Models have no prompts, so none can be named."
    )


class EmbedBody(Prompted):
    inputs: one_or_many(  # type: ignore[valid-type]
        "must be a text or a list of texts; tokens are not read"
    )
    normalize: bool = Field(default=True, description="Scale the embeddings to length 1.")
    dimensions: int | None = Field(
        default=None, ge=1, description="Only the model's own number: no fewer are trained for."
    )


class Embeddings(RootModel[list[list[float]]]):
    """One embedding for each input."""


Sequence = Annotated[list[Text], Field(min_length=1, max_length=2, fail_fast=True)]
"""A text, or a pair of texts."""


def _kind_of(value: Any) -> str | None:
    if isinstance(value, str):
        return "<text>"
    if not isinstance(value, list) or (value and not isinstance(value[0], str | list)):
        return None
    return "<batch>" if value and isinstance(value[0], list) else "<pair>"


class PredictBody(Truncation):
    inputs: Annotated[
        Annotated[Text, Tag("<text>")]
        | Annotated[Sequence, Tag("<pair>")]
        | Annotated[Annotated[list[Sequence], Field(min_length=1, fail_fast=True)], Tag("<batch>")],
        Discriminator(
            _kind_of,
            "input_form",
            "must be a text, a list of one text or of two (a pair), or a list of such lists (a batch)",
        ),
    ]
    raw_scores: bool = Field(default=False, description="Give the head's outputs instead of probabilities.")


class Prediction(Answer):
    score: float
    label: str = Field(description="`value` for a model whose answer is a number, which `score` then is.")


class Predictions(RootModel[list[Prediction] | list[list[Prediction]]]):
    """Every label with its score, the best first; for a batch, such a list for each input."""


class RerankBody(Truncation):
    query: Text
    texts: TextList
    raw_scores: bool = Field(default=False, description="Makes no difference: scores have no other form.")
    return_text: bool = False


class Rank(Answer):
    index: int = Field(description="Of the text in `texts`.")
    score: float
    text: str | None = Field(default=None, description="If `return_text` is set.")


class Ranks(RootModel[list[Rank]]):
    """The texts, the most similar first."""


class SimilarityInputs(Request):
    source_sentence: Text
    sentences: TextList


class SimilarityBody(Request):
    inputs: SimilarityInputs
    parameters: Prompted = Prompted()


class Similarities(RootModel[list[float]]):
    """The similarity of each sentence to the source sentence."""


class Info(Answer):
    """The model that a call would ask, and the limits of the server."""

    model_id: str
    model_sha: str = Field(description="The hash of the version that answers.")
    model_dtype: str
    model_type: dict[str, Any]
    max_concurrent_requests: int
    max_input_length: int = Field(description="The tokens of a text that the model reads.")
    max_batch_tokens: int
    max_batch_requests: int | None
    max_client_batch_size: int
    auto_truncate: Literal[True] = True
    tokenization_workers: int
    version: str
    sha: str | None = None
    docker_label: str | None = None


class TeiError(Answer):
    """An error in the form of text-embeddings-inference."""

    error: str
    error_type: Literal["Unhealthy", "Backend", "Overloaded", "Validation"]
