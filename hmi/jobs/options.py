"""Options of jobs, checked by the call that starts the job and again by the job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from pydantic import Field, ValidationError

from hmi.core import Depth, ModuleSpec, Record
from hmi.errors import InvalidInput
from hmi.model.tenant.stored_dtype import StoredDtype
from hmi.modulespec import DEPTH
from hmi.training.data.reading import AS_IT_IS as AS_IT_IS
from hmi.training.data.reading import EncodingName as EncodingName
from hmi.training.data.reading import Reading as Reading
from hmi.training.plans.recipe import RECIPE, ClassWeights, LongTexts, Recipe
from hmi.words import explain

R = TypeVar("R", bound=Record)
Publish = Literal["if-better", "always", "never"]
"""When an update becomes the version that answers: if it is not worse than the live version
(`hmi.jobs.model.comparing`), always, or only when a user publishes it."""
LocalityStart = Literal["source", "shipped"]
"""The weights that the training of a root's locality starts from."""


class FineTuneOptions(Reading):
    """Options of the training of a tenant's module and head, and how to read its rows. A field that is None
    is chosen from task and data."""

    module: ModuleSpec | None = Field(
        default=None,
        description="None: an update keeps the live version's module, a new model with `start` takes "
        "that model's, an import the adapter's; any other new model gets bottlenecks after the FFN "
        "(sequential) for pairs of texts, else LoRA. A module without `kind` is LoRA; in an update it "
        "takes the live version's kind. A model that writes takes LoRA alone, by default of rank 2 at q, "
        "v, o, fi and fo.",
    )
    lr: float | None = Field(
        default=None,
        gt=0,
        le=0.1,
        description="Learning rate. None: chosen by task, module and number of rows.",
    )
    epochs: int | None = Field(
        default=None,
        ge=1,
        le=200,
        description="The most passes over the rows; the best one on held-out rows is kept. None: chosen by "
        "the number of rows.",
    )
    batch: int | None = Field(
        default=RECIPE.batch,
        ge=1,
        le=256,
        description="Rows of one training step. None: 16; for a model that writes 8, and 2 if its "
        "completions have more than 10 tokens on average.",
    )
    max_length: int = Field(
        default=RECIPE.max_length,
        ge=8,
        le=512,
        description="The most tokens that the model reads at once. If it is left out, 512 for a new model "
        "that writes: of prompt and completion together; longer rows are left out.",
    )
    seed: int = Field(
        default=RECIPE.seed, ge=0, lt=2**31, description="Decides everything random in the training."
    )
    dropout: float = Field(
        default=RECIPE.dropout,
        ge=0,
        lt=1,
        description="Fraction of values that training drops at random. If it is left out, 0 for a model that "
        "writes.",
    )
    class_weights: ClassWeights = Field(
        default=RECIPE.class_weights,
        description="balanced: rare labels weigh more in the loss, with a weight of at most 10; auto: "
        "balanced if the commonest label has at least 10 times the rows of the rarest, else off.",
    )
    long_texts: LongTexts | None = Field(
        default=None,
        description="How a text longer than max_length is read: cut, or in up to 8 overlapping "
        "windows. None: windows for tagging, cut for other tasks.",
    )
    start: str | None = Field(
        default=None,
        max_length=130,
        description="Another model of the same tenant on the same root, as tenant.model. A new model "
        "starts from its module, and from its head if that has the same labels and inputs.",
    )
    lexical: bool | None = Field(
        default=None,
        description="Also train hashed features of words and tokens, and for pairs the alignment of the two "
        "texts. None: yes for tagging and pairs.",
    )
    skip_bad_rows: int = Field(
        default=0,
        ge=0,
        le=1_000_000,
        description="The job leaves out up to this many bad rows of each file and reports them. With "
        "more bad rows it fails.",
    )
    variants: int = Field(
        default=RECIPE.variants,
        ge=0,
        le=20,
        description="A teacher labels this many changed copies of each row (at most 20,000 texts in "
        "all), and the model is trained on them too. Training is slower, its result often better. 3 is "
        "a good number.",
    )
    transitions: bool | None = Field(
        default=None,
        description="Tagging: also learn which tag follows which. None: yes, with at most 200 tags and "
        "no class weights.",
    )
    rest: StoredDtype | None = Field(
        default=None,
        description="How the module's matrices are stored: fp16, or int8, which takes about half the space "
        "on the disk. Answers are computed in the server's precision either way. None: an update keeps the "
        "live version's choice, a new model gets fp16.",
    )

    ramps: bool | None = Field(
        default=None,
        description="Also train ramps, by which texts may leave early. None: an update trains them if the "
        "live version has some; else yes, if the training rows times the upper layers are at most 60,000 "
        "and the labels at most 64.",
    )

    depth: Depth | None = Field(
        default=None,
        description=f"{DEPTH} Later trainings of the model keep this choice. None: the model's choice, or "
        "auto if it is new.",
    )
    improve: bool | None = Field(
        default=None,
        description="Whether a job of low priority may try afterwards what makes the model better, and "
        "publish a second version if held-out rows say so. false: no. None: yes, unless the server's setting "
        "`improve` is off.",
    )
    improve_cpu_s: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="The most seconds of CPU time that this job may take, at most the server's setting "
        "`improve_cpu_s`. None: that setting.",
    )

    def reading(self) -> Reading:
        """How the files of a training with these options are read."""
        return Reading(**{name: getattr(self, name) for name in Reading.model_fields})

    def recipe(self) -> Recipe:
        """The recipe of a training with these options."""
        return Recipe(
            **{name: getattr(self, name) for name in type(self).model_fields if name not in NOT_OF_A_RECIPE}
        )


def reading_options(reading: Reading, skip_bad_rows: int) -> FineTuneOptions:
    """The options of a job that trains no module, but reads rows."""
    given = {name: getattr(reading, name) for name in reading.model_fields_set}
    return FineTuneOptions(**given, skip_bad_rows=skip_bad_rows)


NOT_OF_A_RECIPE = frozenset({"start", "skip_bad_rows", "rest", "ramps", "depth", "improve", "improve_cpu_s"})
NOT_OF_A_RECIPE |= frozenset(Reading.model_fields)
"""Options that choose the root, the initial weights, the rows, the storage and what is made beside or
afterwards, not how to train."""


class BuildPlotOptions(Record):
    """Options of a build of a PLOT version. A build takes `alpha` or `budget_bytes`, not both."""

    budget_bytes: int | None = Field(
        default=None,
        ge=1,
        le=2**60,
        description="Store the most frequent n-grams that fit into this many bytes on disk. Not "
        "together with alpha.",
    )
    min_difference: float | None = Field(
        default=None,
        ge=0,
        le=10,
        description="Leave out an entry if its distance to its fallback (what a look-up gives without "
        "it), divided by its length, is below this. 0 stores all entries. None: 0.15 with further "
        "pretraining, else 0.",
    )
    min_count: int = Field(
        default=1, ge=1, description="Leave out n-grams that the corpus has fewer times than this."
    )
    pretrain_steps: int = Field(
        default=200, ge=1, le=100_000, description="Steps of further pretraining, where it is asked for."
    )
    sample: bool | None = Field(
        default=None,
        description="Keep a random sample of the corpus's text with the version: at most 20,000 passages and "
        "8 MB. Models of all tenants on this domain, and on those below it, may be trained on a teacher's "
        "labels for these texts. No answer, error or log shows them. None: as the server's setting "
        "corpus_samples says.",
    )
    seed: int = Field(default=0, ge=0, lt=2**31, description="Decides everything random in the build.")
    encoding: EncodingName | None = Field(
        default=None,
        description="The encoding of the corpus, such as windows-1252. None: recognised by its bytes.",
    )


class ImportRootOptions(Record):
    """Options of the import of a root."""

    n: int = Field(default=3, ge=2, le=5, description="The number of tokens of the longest n-grams.")
    distil: bool = Field(
        default=False, description="Train locality even if HMI ships weights for this source."
    )
    start: LocalityStart = Field(
        default="source",
        description="What training starts from: source: slots and ridge regression on the source's layers; "
        "shipped: the weights that HMI ships for this source, split and n, which it then trains further.",
    )
    steps: int = Field(default=700, ge=0, le=100_000, description="Steps of distillation. 0 skips it.")
    upper_steps: int = Field(
        default=450, ge=0, le=100_000, description="Steps of co-training of the upper layers. 0 skips it."
    )
    joint_steps: int = Field(
        default=0,
        ge=0,
        le=100_000,
        description="Steps of training of the lower and the upper layers together, after the other steps. "
        "They need more time and memory than the others, and bring a root nearest to its source.",
    )
    checkpoint_s: float = Field(
        default=300,
        ge=0,
        le=86_400,
        description="Seconds between two checkpoints within a phase of training, from which an interrupted "
        "import goes on.",
    )
    seed: int = Field(default=0, ge=0, lt=2**31, description="Decides everything random in the import.")
    encoding: EncodingName | None = Field(
        default=None,
        description="The encoding of the texts, such as windows-1252. None: recognised by their bytes.",
    )


def checked_options(kind: type[R], options: Mapping[str, Any] | Record | None) -> R:
    """Validate the options of a job. Raises InvalidInput, which names the first invalid one."""
    given = options.model_dump() if isinstance(options, Record) else dict(options or {})
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(["options", *map(str, first["loc"])])
        raise InvalidInput(f"{field}: {explain(first, kind)}", field=field) from error
