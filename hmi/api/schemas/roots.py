"""Requests and answers about roots."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from hmi.api.schemas.shared import Alpha, Answer, Name, PathRef, Request
from hmi.jobs.options import ImportRootOptions


class ImportRoot(Request):
    root: Name
    source: str = Field(
        min_length=1,
        max_length=1024,
        description="A folder or GGUF file on the server, an installed package that carries a model, or a "
        "hub id.",
    )
    split: int | None = Field(
        default=None,
        ge=0,
        le=1000,
        description="Number of lower layers, which the PLOT replaces. 0: none, so that all layers are "
        "computed, and tenants' modules change each of them. Default: half of all layers, of a language "
        "model 0.",
    )
    alpha: Alpha = 50.0
    text: PathRef | None = Field(default=None, description="General text for the root's own PLOT.")
    options: ImportRootOptions = ImportRootOptions()


class ChangeRoot(Request):
    priority: Literal["normal", "low"] = Field(
        description="low: only shards of the root are kept in memory, in as few bits as its models allow. "
        "Answers take longer, and may differ for models with agreement_under_load."
    )


class ShardRoot(Request):
    text: PathRef | None = Field(
        default=None,
        description="Text, one document a line, by which shards and bits are judged, unless it is sent as a "
        "multipart part. Without any, no model runs on fewer bits.",
    )
    importance: bool = Field(
        default=False,
        description="Does nothing: it is accepted for one release, and the job's `result.metrics.warnings` "
        "says so.",
        deprecated=True,
    )


class ExecutorTimes(Answer):
    executor: str
    us_per_token: dict[str, float] = Field(
        description="Microseconds of processor time a token, by the name of the measured batch."
    )
    cosine: float = Field(description="The least cosine of a row to the same row of packed torch in fp32.")


class ExecutionView(Answer):
    """The executor of a root's upper layers, and the measured times by which it was chosen."""

    executor: str = Field(
        description="What runs, or for a root that is not in memory would run: usually the fastest that "
        "the setting HMI_PRECISION allows."
    )
    precision: str = Field(description="What its products multiply: fp32, bf16, int16 or int8.")
    fault: str | None = Field(
        description="Why the root runs on the CPU although it began on a device: the device's error."
    )
    measured_at: str | None = Field(
        description="Null, with no `batches`, if the root is not measured on this machine, as on a device."
    )
    batches: dict[str, list[int]] = Field(description="Tokens of each text of the measured batches.")
    measured: list[ExecutorTimes]


class ShardsView(Answer):
    """A root's upper layers in shards of 2 to 6 bits and in full."""

    bytes: int
    models: int = Field(description="The models whose agreement was measured.")
    agreement: dict[str, float] = Field(
        description="The fraction of answers that equal the full model's, by bits, over these models."
    )
    created: str


class RootView(Answer):
    root: str
    version: str
    created: str
    source: dict[str, str]
    dim: int
    layers: int
    split: int
    n: int = Field(description="Tokens in the longest n-grams of its PLOTs.")
    generates: bool = Field(
        description="Whether it is a language model, which predicts the next token, rather than an encoder."
    )
    fidelity: dict[str, float] = Field(
        description="How far the root's states are from its source model's; see docs/http.md."
    )
    fidelity_by_kind: dict[str, dict[str, float]] = Field(description="The fidelity for each kind of text.")
    bytes: int
    execution: ExecutionView | None = Field(
        description="Null while the root is neither in memory nor measured on this machine."
    )
    shards: ShardsView | None = Field(description="Null if the root has no shards.")
    priority: Literal["normal", "low"]


class RootList(Answer):
    roots: list[RootView]
