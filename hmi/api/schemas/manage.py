"""Requests of the manage calls, and the answers about roots, domains and models."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from hmi.api.schemas.exits import CascadeBrief, ExitsView
from hmi.api.schemas.second_version import ImprovingView
from hmi.api.schemas.shared import NEXT, Alpha, Answer, DomainName, LevelName, ModelName, Name, Query, Request
from hmi.api.schemas.tokens import TokensBrief
from hmi.core import Cascade, CascadeState, Depth, ModelVersion, Objective, Task
from hmi.jobs.options import BuildPlotOptions, FineTuneOptions, ImportRootOptions, Publish, Reading
from hmi.modulespec import DEPTH

READING = Field(default=Reading(), description="How to read the files, as the options of a training say.")


class PathRef(Request):
    """A file that is already on the server."""

    path: str = Field(
        min_length=1,
        max_length=1024,
        description="Relative to <data>/uploads/<tenant>; for administrators, to <data>/uploads.",
    )


class ImportRoot(Request):
    root: Name
    source: str = Field(
        min_length=1,
        max_length=1024,
        description="A folder on the server, an installed package that carries a model, or a hub id.",
    )
    split: int | None = Field(
        default=None,
        ge=0,
        le=1000,
        description="Number of lower layers, which the PLOT replaces. 0: none, so that all layers are "
        "computed, and tenants' modules change each of them. Default: half of all layers.",
    )
    alpha: Alpha = 50.0
    text: PathRef | None = Field(default=None, description="General text for the root's own PLOT.")
    options: ImportRootOptions = ImportRootOptions()


class CreateDomain(Request):
    domain: DomainName
    alpha: Alpha | None = Field(default=None, description="Default 50, unless options.budget_bytes is given.")
    pretrain: bool = Field(default=False, description="Continue pretraining the lower layers on the corpus.")
    corpus: PathRef | None = Field(
        default=None, description="The corpus, unless it is sent as a multipart part."
    )
    options: BuildPlotOptions = BuildPlotOptions()


class UpdateDomain(Request):
    alpha: Alpha | None = Field(
        default=None, description="Default: the alpha or the budget of the current version."
    )
    pretrain: bool = False
    corpus: PathRef | None = None
    options: BuildPlotOptions = BuildPlotOptions()


class RollbackDomain(Request):
    version: str = Field(min_length=1, max_length=128, description="One of the domain's versions.")


class CreateModel(Request):
    model: ModelName
    domain: DomainName
    task: Task
    data: PathRef | None = Field(
        default=None, description="The rows, unless they are sent as a multipart part."
    )
    dev: PathRef | None = None
    unlabelled: PathRef | None = Field(
        default=None,
        description="Texts of the same kind without labels. A teacher, a whole copy of the source model, is "
        "fine-tuned on the rows and labels the texts; the model is trained on both.",
    )
    options: FineTuneOptions = FineTuneOptions()


class UpdateModel(Request):
    data: PathRef | None = None
    dev: PathRef | None = None
    unlabelled: PathRef | None = Field(
        default=None,
        description="Texts of the same kind without labels. A teacher, a whole copy of the source model, is "
        "fine-tuned on the rows and labels the texts; the model is trained on both.",
    )
    options: FineTuneOptions = FineTuneOptions()
    publish: Publish = Field(
        default="if-better",
        description="When the new version answers: if it is not worse than the live one on the same "
        "held-out rows (a tie included), always, or never. A version that is held back is kept; `rollback` "
        "with its number lets it answer.",
    )


class ProfileCascade(Request):
    data: PathRef | None = Field(
        default=None, description="Labelled rows that neither level was trained on, at least 200."
    )
    small: LevelName | None = Field(
        default=None,
        description="The model that is asked first: of the same tenant, task and labels, usually on another "
        "root. `TENANT.MODEL@VERSION` is an earlier version of the model itself, which becomes a model "
        "`MODEL-vVERSION`. Without it, a ramp of the model itself answers first.",
    )
    skip_bad_rows: int = Field(default=0, ge=0, description="Leave out up to this many bad rows.")
    options: Reading = READING


class TrainRamps(Request):
    data: PathRef | None = Field(default=None, description="Rows. Their answers are ignored.")
    unlabelled: PathRef | None = Field(
        default=None,
        description="Texts without answers. Ramps learn the model's own answers; texts that the model was "
        "not trained on are worth most. At least one of data and unlabelled is required.",
    )
    skip_bad_rows: int = Field(
        default=0, ge=0, le=1_000_000, description="Leave out up to this many bad rows of each file."
    )
    options: Reading = READING


class ProfileTokens(Request):
    data: PathRef | None = Field(
        default=None,
        description="Labelled rows, required. Those that the model was not trained on make the profile; "
        "prompts are trained on the others.",
    )
    dev: PathRef | None = Field(
        default=None, description="Labelled rows that make the profile; prompts are then trained on all data."
    )
    unlabelled: PathRef | None = Field(
        default=None, description="Further texts, by which the agreement is known better."
    )
    prompts: bool = Field(
        default=True,
        description="Also train prompts, which takes most of the time. Else those of the version stay.",
    )
    skip_bad_rows: int = Field(
        default=0, ge=0, le=1_000_000, description="Leave out up to this many bad rows of each file."
    )
    options: Reading = READING


class ImportModule(Request):
    model: ModelName
    domain: DomainName
    task: Task = Field(
        default="classification", description="The task of the rows in `data`; without rows, the head's."
    )
    adapter_config: PathRef | None = Field(default=None, description="adapter_config.json of adapters 1.x.")
    adapter: PathRef | None = Field(default=None, description="adapter.safetensors.")
    head_config: PathRef | None = Field(default=None, description="head_config.json.")
    head: PathRef | None = Field(default=None, description="model_head.safetensors.")
    data: PathRef | None = Field(default=None, description="Rows to train on; required without a head.")
    dev: PathRef | None = None
    options: FineTuneOptions = FineTuneOptions()


class RollbackModel(Request):
    version: int = Field(ge=1, le=2**31)


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
    precision: str = Field(description="What its products multiply: fp32, bf16 or int8.")
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


class RootView(Answer):
    root: str
    version: str
    created: str
    source: dict[str, str]
    dim: int
    layers: int
    split: int
    n: int = Field(description="Tokens in the longest n-grams of its PLOTs.")
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


class ModelView(Answer):
    """A model. The fields `domain` to `bytes` are those of the version that answers."""

    model: str
    current: int
    domain: str
    task: Task
    labels: list[str]
    ramps: list[int] = Field(
        description="The upper layers before which it has a ramp, where a text may leave early."
    )
    temperature: float | None = Field(description="Its calibration temperature; null: it was not fitted.")
    metrics: dict[str, Any]
    bytes: int
    objective: Objective
    known_share: float | None = Field(
        description="The share of its own texts that it is to know; null: it never says that it does not."
    )
    known_threshold: float | None = Field(
        description="The similarity to its own texts from which on it knows a text; null: it has none."
    )
    depth: Depth = Field(description=DEPTH)
    root: str = Field(description="The root that the version which answers stands on.")
    cascade: CascadeBrief | None
    exits: ExitsView | None = Field(
        description="The state of its early exits; null in lists, and if no agreement is set."
    )
    tokens: TokensBrief
    improving: ImprovingView | None = Field(
        description="The background job that tries what makes it better; null in lists, and if it had none."
    )
    versions: list[ModelVersion]


class CascadeTraffic(Answer):
    """A cascade's traffic under the present agreement, since the server started or its profile changed."""

    state: CascadeState = Field(
        description="`no objective`: the tenant insists on no agreement, so the large level answers. "
        "`no offer`: no dispatcher reaches the objective, or all that do have failed. `testing`: the audits "
        "do not yet suffice. `paused`: they do, but one more answer that disagrees might exceed what is "
        "tolerated, so the large level answers until more texts have come. `in use`: the small level answers "
        "first."
    )
    cut_off: float | None = Field(
        default=None, description="The dispatcher that is tested or used: c of Tabi's equation (4)."
    )
    slope: float | None = Field(default=None, description="Its k.")
    weight: float | None = Field(default=None, description="Of the large level in its ensemble.")
    texts: int = 0
    returned: int = Field(default=0, description="Texts that the small level answered.")
    gone_on: int = Field(default=0, description="Texts that the dispatcher sent on to the large level.")
    audited: int = Field(default=0, description="Texts on which both levels were compared.")
    disagreed: int = Field(default=0, description="Audits on which the dispatcher's answer differed.")
    gate_audits: int = Field(default=0, description="Audits that opened the gate, or count for it so far.")
    gate_needed: int = Field(
        default=0, description="The audits after which it opens if no further one disagrees."
    )
    gate_disagreed: int = 0
    gate_bound: float | None = Field(
        default=None,
        description="Clopper-Pearson's upper bound of their rate of disagreements, wrong with 5%.",
    )
    alarms: int = 0
    share: float | None = Field(default=None, description="The share of texts that is audited.")


class CascadeView(Answer):
    """A model's cascade."""

    model: str
    state: Literal["ready", "stale"]
    stale: str | None = Field(description="Why it does not hold any more, and the cure.")
    says: str = Field(description="What it does at present, in words, with what to do next if anything.")
    cascade: Cascade
    fits: list[int] = Field(
        description="The offers that reach the model's objective, by their index in `cascade.offers`. Empty "
        "without an agreement, and of a stale cascade."
    )
    chosen: int | None = Field(
        description="The index of the offer that is tested or used, or will be tested first; null: none."
    )
    traffic: CascadeTraffic | None = Field(
        description="Null if none of its texts came since the server started, or without a server."
    )


class ModuleExport(Answer):
    """A model's module in the format of the `adapters` library."""

    model: str
    version: int
    format: str = Field(description="The library and the version whose files these are.")
    files: dict[str, str] = Field(description="Base64 of each file, by its name.")
    left_out: list[str] = Field(description="Parts of the model that `adapters` cannot represent, and why.")


class ModelList(Answer):
    models: list[ModelView]
    next: str | None = Field(description=NEXT)


class ModelQuery(Query):
    tenant: Name | None = None
    domain: DomainName | None = None
    task: Task | None = None
    after: ModelName | None = None
    limit: int = Field(default=100, ge=1, le=1000)
