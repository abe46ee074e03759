"""The spec of each kind of job: what the job is to do. The manager writes it to the job's record,
and the job's body reads it."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import ConfigDict, Field, field_validator

from hmi.core import DomainId, JobRecord, ModelId, Record
from hmi.jobs.options import AS_IT_IS, BuildPlotOptions, FineTuneOptions, ImportRootOptions, Publish, Reading


class Spec(Record):
    """The base of all specs. Unknown fields are ignored, since another release may have queued the job."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    @classmethod
    def of(cls, job: JobRecord) -> Self:
        return cls.model_validate(job.spec)

    def stored(self) -> dict[str, Any]:
        """The fields that were set, as JSON; options with all their fields."""
        return self.model_dump(mode="json", include=self.model_fields_set)

    @field_validator("options", mode="before", check_fields=False)
    @classmethod
    def _given(cls, options: object) -> object:
        return {} if options is None else options


class FineTuneSpec(Spec):
    """Train or import a tenant's model, give it ramps, or profile its token adaptation.

    Inputs: data (none for embeddings), optionally dev and unlabelled; for an import also the adapter's files;
    for ramps data, unlabelled or both."""

    model: str
    domain: str
    task: str
    mode: Literal["create", "update", "import", "ramps", "tokens"]
    options: FineTuneOptions = FineTuneOptions()
    root: str | None = None
    """The root that the version is to stand on; None: its domain's."""
    publish: Publish | None = None
    """None if the job is not an update."""
    version: int | None = None
    """ramps, tokens: the version that gets them."""
    asked: dict[str, Any] = Field(default_factory=dict)
    """The caller's request in the words of its protocol, for answers about the job."""
    prompts: bool = True
    """tokens: whether prompts are trained; otherwise those that the version has are profiled."""

    @property
    def model_id(self) -> ModelId:
        return ModelId.parse(self.model)

    @property
    def source(self) -> str | None:
        """The model whose live version this one may continue from; None if there is none."""
        return self.model if self.mode == "update" else self.options.start


class ImproveSpec(FineTuneSpec):
    """Try what makes a version of a tenant's model better. Its other fields are those of the job that
    published the version, and so are its inputs: data, optionally dev and unlabelled."""

    version: int
    """The version that is to be improved."""
    row_bytes: int = 0
    """The bytes of the inputs."""
    memory_bytes: int = 0
    """The memory that the job takes at its peak, by an estimate. The runner lets it wait for that much."""
    larger_bytes: int = 0
    """The same with the larger teachers that this machine could ever hold; 0: there are none."""


class BuildPlotSpec(Spec):
    """Build a domain's PLOT. `create` and `update` read the input corpus, `grow` a sketch of misses."""

    domain: str
    mode: Literal["create", "update", "grow"]
    alpha: float | None = None
    """None if options.budget_bytes is given."""
    pretrain: bool = False
    options: BuildPlotOptions = BuildPlotOptions()
    min_count: int = 1
    """grow: add n-grams that were missed at least this often."""
    epoch: str | None = None
    """grow: the epoch of the misses, which are deleted after the publication."""

    @property
    def domain_id(self) -> DomainId:
        return DomainId.parse(self.domain)


class CountPartSpec(Spec):
    """Count a part of a build's corpus. Input: texts. A build queues these jobs, and removes them."""

    build: str
    """The build, by its job's id."""
    domain: str
    root: str
    root_version: str
    """The root whose tokenizer and n the build has."""
    texts: int
    """The number of texts in the input."""


class ImportRootSpec(Spec):
    """Import a root. Inputs: text-KIND[.txt], a file for each kind of text; text-0, text-1, … are general."""

    name: str
    source: str
    split: int | None = None
    """Number of lower layers; None: half of all layers."""
    alpha: float = 50
    options: ImportRootOptions = ImportRootOptions()
    repairs: str | None = None
    """The version of a damaged root that this import repairs."""


class CompactPlotSpec(Spec):
    """Merge a domain's small segments, in each order that has more than `max_segments`."""

    domain: str
    max_segments: int


TEXT, KEEP, PHRASES = "text", "keep", "phrases"
"""The names of the inputs of `EraseSpec`."""


class EraseSpec(Spec):
    """Erase texts from a domain.

    Inputs: text, whose n-grams go; keep, whose n-grams stay; phrases, a JSON list: every n-gram that contains
    one goes. They are inputs and not fields, since a job's record outlives the job."""

    domain: str
    dry_run: bool = False
    """Only count what would go."""
    encoding: str | None = None
    """The encoding of text and keep; None: recognised by their bytes."""


class ShardRootSpec(Spec):
    """Cut a root into shards. Input: text, one a line; without it nothing is measured."""

    name: str
    importance: bool = False
    """Does nothing: the field is accepted for one release, and the job's record says so."""


class ProfileCascadeSpec(Spec):
    """Profile a cascade on labelled rows, for its large level. Input: data."""

    model: str
    """The large level."""
    small: str | None = None
    """The model that is asked first; None: a ramp of the large level itself."""
    skip_bad_rows: int = 0
    reading: Reading = AS_IT_IS

    @property
    def model_id(self) -> ModelId:
        return ModelId.parse(self.model)


class BackupSpec(Spec):
    """Back up the data folder below the setting `backup_location`."""

    folder: str = ""
    """A folder of the location, so that one location may hold several series of backups; "": itself."""
    reread: bool = False
    """Read every file again, also those that did not change since the last backup."""
