"""The answers of the server, as frozen objects with types.

A field that a newer server adds is kept as an extra attribute; one that an older server lacks has its
default.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

Task = Literal["classification", "pair", "multilabel", "regression", "tagging", "embedding", "generation"]
JobState = Literal["queued", "running", "succeeded", "failed", "cancelled"]
Finish = Literal["end", "stop", "length"]
ENDED = frozenset({"succeeded", "failed", "cancelled"})


class Answer(BaseModel):
    """The base of all answers."""

    model_config = ConfigDict(frozen=True, extra="allow", protected_namespaces=())

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Leave fields without a value out when the answer is shown: a task fills only its own."""
        return ((name, value) for name, value in super().__repr_args__() if value is not None)


class LabelScore(Answer):
    label: str
    score: float


class Entity(Answer):
    """A span that a tagging model found. `start` and `end` count the caller's code points; `end` is
    exclusive."""

    label: str
    start: int
    end: int
    text: str
    score: float


class Word(Answer):
    """A word, and the order of the n-grams that answered its tokens."""

    text: str
    start: int | None = None
    end: int | None = None
    order: str | None = None
    orders: list[str] = []
    pair: bool = False


class Prediction(Answer):
    """The answer to one input. Fields that the model's task does not have are None."""

    label: str | None = None
    score: float | None = None
    scores: dict[str, float] | None = None
    labels: list[LabelScore] | None = None
    value: float | None = None
    tags: list[str] | None = None
    tag_scores: list[float] | None = None
    entities: list[Entity] | None = None
    embedding: list[float] | None = None
    known: bool | None = None
    """False if the model says that it does not know; None if it has no threshold."""
    truncated: bool = False
    words: list[Word] | None = None
    """The words of the text, for calls with `returns=["words"]`."""
    model: str = ""
    version: int = 0
    answer_id: str = ""
    """The id by which, together with `index`, the right label of this answer can be sent later."""
    index: int = 0


class Inference(Answer):
    """The whole answer to one call: its predictions in the order of the inputs."""

    id: str = ""
    model: str
    version: int
    predictions: list[Prediction]
    timing: dict[str, float]
    """Milliseconds by stage; the names end in _ms."""
    provenance: dict[str, Any] | None = None


class TopToken(Answer):
    token: str
    logprob: float


class TokenLogprob(Answer):
    """A token, with natural log-probabilities of the model itself: without penalties or temperature."""

    token: str
    logprob: float
    top: list[TopToken] = []


class TextPiece(Answer):
    """The text that is new in a stream."""

    text: str
    logprobs: list[TokenLogprob] | None = None


class TokenUsage(Answer):
    prompt_tokens: int
    cached_tokens: int = 0
    """Tokens of the prompt that were known from an earlier text."""
    written_tokens: int


class ChoiceProbability(Answer):
    """A choice of a form, with the model's own probability of it among all choices."""

    text: str
    probability: float


class GeneratedText(Answer):
    """A whole text that a model wrote."""

    id: str = ""
    model: str
    version: int
    text: str
    finish: Finish
    """end: the model ended the text. stop: a stop string came; it is left out. length: it has max_tokens."""
    seed: int | None = None
    """The seed that was used; None at temperature 0."""
    usage: TokenUsage
    logprobs: list[TokenLogprob] | None = None
    choices: list[ChoiceProbability] | None = None
    """The form's choices, in their order, if it asks for `probabilities`."""
    plot: dict[str, int] = {}
    """The number of tokens by what their look-up found."""
    timing: dict[str, float] = {}
    """Milliseconds by stage; the names end in _ms."""


Written = TextPiece | GeneratedText
"""An item of a stream. The last item is the whole text, all others are pieces."""


class Progress(Answer):
    phase: str = ""
    step: int = 0
    total: int = 0
    rate: float | None = None
    eta_ms: int | None = None
    loss: float | None = None


class JobCost(Answer):
    cpu_ms: int
    peak_bytes: int | None = None
    paused_ms: int = 0


class Pacing(Answer):
    """The pauses of a running background job while the server answers."""

    running_ms: int
    paused_ms: int
    starved: bool = False


class JobStatus(Answer):
    """A job as it stands."""

    job: str
    kind: str
    state: JobState
    tenant: str | None = None
    target: str
    created: str
    started: str | None = None
    ended: str | None = None
    attempts: int = 0
    server: str | None = None
    """The URL of the server that runs the job, or ran it last. None if servers share no bucket."""
    cancel_requested: bool = False
    progress: Progress = Progress()
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    cost: JobCost | None = None
    pacing: Pacing | None = None

    @property
    def done(self) -> bool:
        """True once the job has ended."""
        return self.state in ENDED


class Tenant(Answer):
    tenant: str
    created: str
    weight: float = 1.0
    limits: dict[str, float | None] = {}
    """The tenant's own limits, by name. None: the server's default holds. 0: there is no limit."""
    quota: dict[str, dict[str, float] | None] = {}
    """The limits that hold, and what is left of each; only of a single tenant."""


class NewTenant(Answer):
    """A new tenant and its first key, which is shown only once."""

    tenant: str
    key_id: str
    key: str


class DeletedTenant(Answer):
    tenant: str
    removed: dict[str, Any] = {}


class Usage(Answer):
    tenant: str
    since: str
    requests: int
    inputs: int
    deep_inputs: int = 0
    tokens: int
    compute_ms: float
    models: int
    model_bytes: int
    file_bytes: int = 0
    row_bytes: int = 0
    quota: dict[str, dict[str, float] | None] = {}


class Key(Answer):
    key_id: str
    tenant: str | None = None
    scopes: list[str]
    created: str
    label: str = ""
    expires: str | None = None
    expired: bool = False
    successor: str | None = None
    last_used: str | None = None


class NewKey(Key):
    """A new key, which is shown only once."""

    key: str


class RotatedKey(NewKey):
    """A new key, and the one that it follows, which works until `old_expires`."""

    replaces: str
    old_expires: str


class KeptFile(Answer):
    """A file of rows that the server keeps for fine-tuning jobs."""

    id: str
    filename: str
    bytes: int
    created_at: int
    """Seconds since 1970."""
    purpose: str


class AuditLine(Answer):
    """A line of the audit log, with further fields that depend on the event."""

    n: int
    at: str
    event: str
    who: str | None = None
    tenant: str | None = None


class Root(Answer):
    root: str
    version: str
    created: str
    source: dict[str, str]
    dim: int
    layers: int
    split: int
    n: int
    generates: bool = False
    fidelity: dict[str, float] = {}
    fidelity_by_kind: dict[str, dict[str, float]] = {}
    bytes: int
    execution: dict[str, Any] | None = None
    shards: dict[str, Any] | None = None
    priority: str = "normal"


class DomainVersion(Answer):
    version: str
    created: str
    entries: dict[str, int]
    bytes: int
    alpha: float | None = None
    budget_bytes: int | None = None
    report: dict[str, Any] = {}


class Domain(Answer):
    domain: str
    root: str
    parent: str | None = None
    children: list[str] = []
    current: str
    entries: dict[str, int]
    bytes: int
    alpha: float | None = None
    models: int = 0
    record_misses: bool = False
    versions: list[DomainVersion] = []


class Objective(Answer):
    agreement: float | None = None
    deadline_ms: float | None = None
    agreement_under_load: float | None = None


class ModelVersion(Answer):
    version: int
    artefact: str
    domain: str
    plot_version: str
    root: str
    root_version: str
    task: Task
    labels: list[str] = []
    rules: dict[str, Any] = {}
    module: dict[str, Any] | None = None
    max_length: int
    lexical: bool = False
    transitions: bool | None = None
    ramps: list[int] = []
    temperature: float | None = None
    tokens: list[dict[str, Any]] = []
    rest: str = "fp16"
    held_back: str | None = None
    known: list[float] = []
    entity_calibration: dict[str, Any] | list[float] | None = None
    metrics: dict[str, Any] = {}
    bytes: int
    created: str
    job: str


class Exits(Answer):
    """The state of a model's early exits; `says` is the same in words."""

    model: str
    version: int
    objective: Objective
    state: str
    says: str
    report: dict[str, Any] | None = None


class Improving(Answer):
    """A model's newest background job that tries what makes it better."""

    job: str
    state: str
    since: str
    version: int
    tried: list[dict[str, Any]] = []
    published: int | None = None
    gain: float | None = None
    cpu_s: float = 0.0
    why: str | None = None
    says: str = ""


class Model(Answer):
    """A model. The fields `domain` to `bytes` are those of the version that answers."""

    model: str
    current: int
    domain: str
    task: Task
    labels: list[str] = []
    ramps: list[int] = []
    temperature: float | None = None
    metrics: dict[str, Any] = {}
    bytes: int
    objective: Objective = Objective()
    known_share: float | None = None
    known_threshold: float | None = None
    depth: str = "auto"
    root: str = ""
    cascade: dict[str, Any] | None = None
    exits: Exits | None = None
    tokens: dict[str, Any] = {}
    improving: Improving | None = None
    versions: list[ModelVersion] = []


class Cascade(Answer):
    model: str
    state: str
    stale: str | None = None
    says: str
    cascade: dict[str, Any]
    fits: list[int] = []
    chosen: int | None = None
    traffic: dict[str, Any] | None = None


class TokenProfile(Answer):
    model: str
    version: int
    objective: Objective
    tokens: dict[str, Any]
    metric: str | None = None
    labelled: int
    unseen: bool
    points: list[dict[str, Any]]
    prompts: list[dict[str, Any]] = []


class Adapter(Answer):
    """A model's module in the format of the library `format`; `files` holds base64 by file name."""

    model: str
    version: int
    format: str
    files: dict[str, str]
    left_out: list[str] = []


class FeedbackTaken(Answer):
    taken: int
    unknown: int


class Stats(Answer):
    counts: dict[str, int]
    plot_entries: dict[str, int] = {}
    plot_lookups: dict[str, dict[str, int]] = {}
    disk_bytes: dict[str, int] = {}
    memory_bytes: dict[str, int] = {}


def written(name: str, data: Any) -> Written | None:
    """Return what an event of a stream of text holds; None for an event of a newer server."""
    if name == "text":
        return TextPiece.model_validate(data)
    return GeneratedText.model_validate(data) if name == "end" else None


def inference(body: dict[str, Any]) -> Inference:
    """Return the whole answer. Each prediction learns which answer it is a part of."""
    own = {"model": body["model"], "version": body["version"], "answer_id": body.get("id", "")}
    outputs = body.pop("outputs")
    predictions = [{**output, **own, "index": i} for i, output in enumerate(outputs)]
    return Inference.model_validate({**body, "predictions": predictions})
