"""Types that every part shares: names, the registry's records, and job states. Imports almost nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from hmi.errors import InvalidInput
from hmi.modulespec import Depth as Depth
from hmi.modulespec import ModuleSpec as ModuleSpec
from hmi.record import Record as Record
from hmi.record import now as now
from hmi.tenancy import MAX_WEIGHT as MAX_WEIGHT
from hmi.tenancy import MIN_WEIGHT as MIN_WEIGHT
from hmi.tenancy import KeyRecord as KeyRecord
from hmi.tenancy import Scope as Scope
from hmi.tenancy import TenantLimits as TenantLimits
from hmi.tenancy import TenantRecord as TenantRecord


class Tried(Record):
    """One thing that a job `improve` tried. Scores are on held-out rows that no version was trained on."""

    name: str
    """The trial, in words."""
    before: float | None = Field(default=None, allow_inf_nan=False)
    """The score of the version that answers. None: nothing was compared."""
    after: float | None = Field(default=None, allow_inf_nan=False)
    """The score of what was tried."""
    rows: int = 0
    """The number of held-out rows that decided."""
    sure: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    """The share of resamples of these rows in which what was tried is better: by the score, or by the
    likelihood of the right answers, whichever share is greater."""
    cpu_s: float = Field(ge=0, allow_inf_nan=False)
    """The CPU seconds that it took."""
    why: str
    """A sentence that says why it was taken or left, or why it stopped."""


class Improvement(Record):
    """The newest job `improve` of a model: what it is to improve, and how it ended."""

    job: str
    version: int
    """The number of the version that it is to improve."""
    queued: str
    """RFC 3339 in UTC."""
    ended: str | None = None
    """RFC 3339 in UTC. A job that has not ended, that was cancelled or that failed has None."""
    tried: tuple[Tried, ...] = ()
    published: int | None = None
    """The number of the version that the job published; None: it published none."""
    gain: float | None = Field(default=None, allow_inf_nan=False)
    """The published version's score on the held-out rows, less that of the version before."""
    cpu_s: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """The CPU seconds of all attempts at the job."""
    why: str | None = None
    """A sentence that says why the job stopped."""


NAME_PATTERN = r"[a-z0-9][a-z0-9-]{0,62}"
NAME_RULE = "1 to 63 lower-case letters (a-z), digits and hyphens, not beginning with a hyphen"
MODEL_PATTERN = rf"{NAME_PATTERN}\.{NAME_PATTERN}"
DOMAIN_PATTERN = rf"{NAME_PATTERN}([/.]{NAME_PATTERN}){{0,7}}"
ID_PATTERN = r"[A-Za-z0-9_-]{1,64}"
"""The ids of jobs and keys."""
ROLE_PATTERN = r"[a-z_]{1,32}"
"""Who says a message of a chat."""
_NAME = re.compile(NAME_PATTERN)
MAX_DOMAIN_PARTS = 7  # the limit of a ref in the PLOT store

Task = Literal["classification", "pair", "multilabel", "regression", "tagging", "embedding", "generation"]
HEADLESS: frozenset[Task] = frozenset({"embedding", "generation"})
"""The tasks whose models have no head. So they have no labels or values with probabilities, no ramps, early
exits or cascades, no profile of token adaptation, and no texts that they know."""
JobKind = Literal[
    "import_root",
    "build_plot",
    "fine_tune",
    "compact_plot",
    "erase",
    "profile_cascade",
    "shard_root",
    "backup",
    "improve",
    "count_part",
]
BACKGROUND: frozenset[JobKind] = frozenset({"improve"})
"""The kinds of jobs that nobody waits for: they run only while no other job needs the place."""
ELSEWHERE: frozenset[JobKind] = frozenset(
    {"fine_tune", "build_plot", "count_part", "profile_cascade", "improve"}
)
"""The kinds of jobs that a replica may run. The others work on what only the primary has: the whole PLOT
store, roots' folders, the operator's files."""
CASCADE_TASKS: tuple[Task, ...] = ("classification", "pair")
"""The tasks that may have a cascade: their one label has a probability that a dispatcher can read."""
JobState = Literal["queued", "running", "succeeded", "failed", "cancelled"]
CascadeState = Literal["no objective", "no offer", "testing", "paused", "in use"]
"""no objective: the tenant insists on no agreement, so the large level answers. no offer: no dispatcher of
the profile reaches the objective, or all that do have failed. testing: audits of the tenant's traffic do not
yet suffice. paused: they do, but one more answer that disagrees might exceed what is tolerated, so the large
level answers until more texts have come. in use: the small level answers first."""
ENDED: frozenset[JobState] = frozenset({"succeeded", "failed", "cancelled"})


def check_name(value: str, field: str) -> str:
    """Return `value` if it is a legal name, else raise InvalidInput naming `field`."""
    if not _NAME.fullmatch(value):
        raise InvalidInput(f"{field} {value[:80]!r} is not a name: use {NAME_RULE}", field=field)
    return value


@dataclass(frozen=True, order=True)
class ModelId:
    """The name of a model, `tenant.model`. It never changes: jobs, cascades and stages' evidence hold it."""

    tenant: str
    name: str

    @classmethod
    def parse(cls, text: str, field: str = "model") -> ModelId:
        tenant, dot, name = text.partition(".")
        if not dot:
            raise InvalidInput(f"{field} {text[:130]!r} is not of the form tenant.model", field=field)
        return cls(check_name(tenant, field), check_name(name, field))

    def __str__(self) -> str:
        return f"{self.tenant}.{self.name}"


@dataclass(frozen=True)
class DeletedParts:
    """The objects that a deletion took out of use. Other models may still use some of the artefacts."""

    artefacts: frozenset[str] = frozenset()
    roots: frozenset[str] = frozenset()
    plots: frozenset[str] = frozenset()
    """Ids of PLOT versions."""
    models: frozenset[ModelId] = frozenset()
    """Those that had the artefacts; empty: all that have them."""


@dataclass(frozen=True, order=True)
class DomainId:
    """The name of a domain, `root/branch[/sub…]`. The first part is the root."""

    parts: tuple[str, ...]

    @classmethod
    def parse(cls, text: str, field: str = "domain") -> DomainId:
        """Parse `root/branch/sub` (in JSON and on the command line) or `root.branch.sub` (in URLs)."""
        parts = text.replace(".", "/").split("/")
        if len(parts) > MAX_DOMAIN_PARTS:
            raise InvalidInput(
                f"{field} {text[:130]!r} has {len(parts)} parts: use at most {MAX_DOMAIN_PARTS}, the "
                f"root and up to {MAX_DOMAIN_PARTS - 1} names below it",
                field=field,
            )
        return cls(tuple(check_name(p, field) for p in parts))

    @property
    def root(self) -> str:
        return self.parts[0]

    @property
    def parent(self) -> DomainId | None:
        return DomainId(self.parts[:-1]) if len(self.parts) > 1 else None

    def __str__(self) -> str:
        return "/".join(self.parts)


class ShardsRecord(Record):
    """The size of a root's shards, and the fidelity of the answers on them."""

    bytes: int
    """The size on the disk, all bitwidths together."""
    models: int
    """The number of models whose agreement was measured."""
    agreement: dict[str, float] = Field(default_factory=dict)
    """The fraction of answers that equal the full model's, by bits, over these models."""
    created: str
    """RFC 3339 in UTC."""


class RootRecord(Record):
    """A root and its published artefact folder `roots/<name>/<version>`."""

    name: str
    version: str
    created: str
    source: dict[str, str]
    dim: int
    layers: int
    split: int
    n: int = 3
    """The number of tokens of the longest n-grams of its PLOTs."""
    generates: bool = Field(default=False, exclude_if=lambda value: not value)
    """True for a language model, which predicts the next token; false for an encoder. A record has the field
    only where it is true, so earlier releases read encoders' records and refuse language models'."""
    fidelity: dict[str, float]
    fidelity_by_kind: dict[str, dict[str, float]] = Field(default_factory=dict)
    bytes: int
    job: str
    shards: ShardsRecord | None = None
    """Its upper layers in shards; None: there are none."""
    priority: Literal["normal", "low"] = "normal"
    """low: only shards of it are kept in memory, in the fewest bits with which its models keep
    LOW_AGREEMENT."""


class TaskRules(Record):
    """Settings that shape a task's answers besides the weights.

    They are derived from the training rows or the root, and stored with the version.
    """

    scheme: Literal["bio", "iob1", "io", "plain", "iobes", "bilou", "bmes", "free"] = "free"
    """Tagging: the scheme by which tags mark entities (hmi.model.tags.tag_schemes)."""
    threshold: float = 0.5
    """Multilabel: a label is given if its probability is at least this."""
    centre: float = 0.0
    """Regression: the mean of the training rows' values."""
    spread: float = 1.0
    """Regression: their standard deviation. A value is centre + spread · the head's output."""
    paired: bool = False
    """Regression: whether an input is a pair of texts."""
    pooling: Literal["mean", "cls"] = "mean"
    """Embedding: how the root pools rows."""
    normalise: bool = True
    """Embedding: whether the root scales vectors to length 1."""
    words: tuple[str, ...] = ()
    """The rules by which a tagging model's training rows were split into words, as far as they differ from
    the defaults (hmi.model.text.splitting).
    """
    windows: bool = False
    """Whether a long text is read in overlapping windows (hmi.model.text.windows); otherwise it is cut."""


MIN_AGREEMENT, MAX_AGREEMENT = 0.55, 0.9999
"""The range of an agreement. The alarm listens for rates of disagreement up to 1/2, and must tell them from
the tolerated one. An agreement of 1 could never be shown by audits."""


class Objective(Record):
    """The bounds that a tenant sets for the answers of one model. By default a stage that may change answers
    is off."""

    agreement: float | None = Field(default=None, ge=MIN_AGREEMENT, le=MAX_AGREEMENT)
    """The fraction of answers that must equal the full model's. None: no text leaves early."""
    deadline_ms: float | None = Field(default=None, gt=0)
    """The mean time that an answer may take, for the choice among a cascade's dispatchers."""
    agreement_under_load: float | None = Field(default=None, ge=MIN_AGREEMENT, le=MAX_AGREEMENT)
    """The fraction of answers that must equal the full model's while the server is loaded. None: the model's
    tokens are not adapted."""


KNOWN_SHARE = 0.97
"""The share of its own texts that a model knows, unless its tenant sets another."""
MIN_KNOWN_SHARE, MAX_KNOWN_SHARE = 0.5, 0.999


class Offer(Record):
    """One dispatcher of a cascade, with what it is expected to give (Tabi, section 5)."""

    cut_off: float
    slope: float
    weight: float
    """Of the large level in the ensemble."""
    pruning: float = 0.0
    """The scale of word pruning for texts that go on; 0: none."""
    accuracy: float
    agreement: float
    """The fraction of answers that equal the large level's."""
    mean_ms: float
    returned: float
    """The fraction of texts that the small level answers."""


class Cascade(Record):
    """A profiled cascade of a model, which is its large level: another level answers first.

    It holds for these versions only: others have to be profiled again.
    """

    small: str | None = None
    """The model that is asked first, of the same tenant. None: a ramp of the same model answers first."""
    site: int | None = None
    """That ramp; None if the levels are two models."""
    temperature: float = 1.0
    """Dividing the small level's outputs by it calibrates its probabilities."""
    version: int
    small_version: int | None = None
    small_artefact: str | None = None
    """That version's artefact: a model that was deleted and made anew begins at version 1 again."""
    large_temperature: float = 1.0
    """The same for the large level, where it is another model."""
    rows: int
    """The number of labelled rows of the profile."""
    judged: int = 0
    """The rows of these that measured the offers and both levels. They chose the offers, too, unless there
    are others. 0: not known, since an earlier version of HMI made the profile."""
    large_accuracy: float
    small_accuracy: float | None = None
    large_ms: float
    small_ms: float | None = None
    offers: tuple[Offer, ...]
    machine: dict[str, str] = Field(default_factory=dict)
    """The processor and software that the times hold for (`hmi.execution.machine.fingerprint`)."""
    measured_at: str = ""
    """RFC 3339 in UTC."""


def gamma_name(gamma: int) -> str:
    """Return the name of a setting of token adaptation, in provenance, metrics and tables."""
    if gamma == 0:
        return "off"
    return f"merge {-gamma}%" if gamma < 0 else f"prompts {gamma}"


class TokenPoint(Record):
    """The figures of one setting of token adaptation, on rows that the model was not trained on."""

    gamma: int
    """Below 0: merging saves this percentage of the layers' rows. Above 0: the number of prompts before each
    layer. 0: neither."""
    score: float = Field(allow_inf_nan=False)
    """The task's headline figure."""
    agreement: float = Field(ge=0, le=1, allow_inf_nan=False)
    """The fraction of answers that equal those at gamma 0."""
    rows: int = Field(ge=0)
    """The number of rows that were judged."""


class ModelVersion(Record):
    """One published version of a tenant's model. It refers to the PLOT version that it was fine-tuned on."""

    version: int
    artefact: str
    """The name (SHA-256) of module and head in `adapters/`."""
    domain: str
    plot_version: str
    root: str  # the domain's, or the root of the same source that computes all layers
    root_version: str
    task: Task
    labels: tuple[str, ...]
    """() if the task has none: regression, embedding, generation."""
    rules: TaskRules = TaskRules()
    module: ModuleSpec | None
    """None for an embedding, which is not trained."""
    max_length: int
    lexical: bool = False
    """Whether it has lexical features."""
    transitions: bool | None = None
    """Whether the user asked for transitions (which tag follows which); None if the task decided."""
    ramps: tuple[int, ...] = ()
    """The upper layers before which it has a ramp, ascending: 0 is right after retrieval."""
    temperature: float | None = None
    """Dividing the outputs by it calibrates the probabilities. None: it was not fitted."""
    entity_calibration: tuple[float, float] | None = None
    """The slope and offset that calibrate a tagging model's entity scores (hmi.model.tags.entities), or None
    if they were not fitted.
    """
    known: tuple[float, ...] = ()
    """The similarities from which the threshold for unknown texts follows (hmi.model.tenant.novelty). If
    there are none, every text counts as known.
    """
    tokens: tuple[TokenPoint, ...] = ()
    """The profile of token adaptation, one point for each gamma. (): not profiled, so the stage is off."""
    rest: Literal["fp16", "int8"] = "fp16"
    """How the module's matrices are stored (hmi.model.tenant.stored_dtype)."""
    held_back: str | None = None
    """Why this update did not become the version that answers: it scored worse (hmi.jobs.model.comparing)."""
    metrics: dict[str, Any]
    bytes: int
    created: str
    job: str


class ModelRecord(Record):
    """A tenant's model with its versions, oldest first. `current` is the number of the one that answers."""

    tenant: str
    name: str
    current: int
    versions: tuple[ModelVersion, ...]
    objective: Objective = Objective()
    known_share: float | None = Field(default=KNOWN_SHARE, ge=MIN_KNOWN_SHARE, le=MAX_KNOWN_SHARE)
    """The share of its own texts that the model is to know. With None it never says that it does not know."""
    depth: Depth = Field(default="auto", exclude_if=lambda depth: depth == "auto")  # for earlier releases
    cascade: Cascade | None = None
    improvement: Improvement | None = None
    """Its newest job `improve`; None: there was none."""

    @property
    def live(self) -> ModelVersion:
        return next(v for v in self.versions if v.version == self.current)


class Progress(Record):
    """The progress of a job. `eta_ms` is None while it is unknown, and while the job does not run."""

    phase: str = ""
    step: int = 0
    total: int = 0
    rate: float | None = None
    eta_ms: int | None = None
    loss: float | None = None


class JobCost(Record):
    """The resources that a job's process used; for a resumed job, its last process."""

    cpu_ms: int
    peak_bytes: int | None
    """The peak of its memory; None if the system does not report it."""
    paused_ms: int = 0
    """The milliseconds for which a background job was paused while the server answered."""


class Pacing(Record):
    """The pauses that a server makes in the process of a background job."""

    running_ms: int
    """The milliseconds in which the process was free to run."""
    paused_ms: int
    """The milliseconds in which it was paused, since the server answered."""
    starved: bool
    """True if it hardly ran within the last hour."""


class JobRecord(Record):
    """A long operation. `spec` has the parameters of its kind; its input files are in `jobs/<job>/input/`."""

    job: str
    kind: JobKind
    state: JobState
    created: str
    tenant: str | None = None
    """The tenant that owns the job; None for the administrator's."""
    started: str | None = None
    ended: str | None = None
    attempts: int = 0
    stalled: int = 0
    """How many times in a row its process has died since the last checkpoint."""
    cancel_requested: bool = False
    spec: dict[str, Any] = Field(default_factory=dict)
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    cost: JobCost | None = None
    """None until the job's process ends. Stays None if the job was killed, or cancelled in the queue."""
    node: str | None = Field(default=None, exclude_if=lambda node: node is None)
    """The server that runs the job or has taken it, by its id, if servers share a bucket; None: none has."""
    for_primary: bool = Field(default=False, exclude_if=lambda wanted: not wanted)
    """Only the primary may run it from now on: a replica lacked something."""
    made: str | None = Field(default=None, exclude_if=lambda made: made is None)
    """The PLOT version that a replica has built for the job, by its id. The primary publishes it."""
