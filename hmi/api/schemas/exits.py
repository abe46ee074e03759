"""Requests and answers about a model's early exits, and labels that come later."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, StringConstraints, Tag

from hmi.api.schemas.shared import READING, Answer, PathRef, Request
from hmi.core import Objective
from hmi.jobs.options import Reading

MOST_ITEMS = 1000
"""Labels in one call of feedback."""
MAX_LABELS = 10_000
"""Labels or tags of one item; as many as one input may have words."""
ExitState = Literal[
    "no objective", "no ramps", "cascade", "waiting", "collecting", "testing", "open", "paused", "off"
]


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


def _label_kind(value: Any) -> str | None:
    if isinstance(value, bool):
        return None
    kinds = {str: "<text>", int: "<number>", float: "<number>", list: "<list>"}
    return kinds.get(type(value))


LateAnswer = Annotated[
    Annotated[Annotated[str, Field(min_length=1)], Tag("<text>")]
    | Annotated[float, Tag("<number>")]
    | Annotated[
        Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=MAX_LABELS, fail_fast=True)],
        Tag("<list>"),
    ],
    Discriminator(
        _label_kind,
        "label_form",
        "is no answer: give a label as a text, a value as a number, or several labels or tags as a list",
    ),
]


class LateLabel(Request):
    """The right answer to one input of an earlier call."""

    id: Annotated[str, StringConstraints(min_length=1, max_length=80)] = Field(
        description="The `id` of the answer to that call."
    )
    index: int = Field(default=0, ge=0, le=1 << 31, description="The input's index in `inputs` of that call.")
    label: LateAnswer = Field(
        description="In the form of the task: a label (classification, pair), a list of labels that may be "
        "empty (multilabel), a number (regression), or one tag for each word (tagging)."
    )


class Feedback(Request):
    """Labels that became known after the answers."""

    items: list[LateLabel] = Field(min_length=1, max_length=MOST_ITEMS, fail_fast=True)


class FeedbackTaken(Answer):
    taken: int = Field(description="Labels that were compared with their answers.")
    unknown: int = Field(
        description="Labels whose answers the server does not have: answered too long ago or before it "
        "started, by a model without early exits (no ramps, no objective, off, or a cascade), or labelled "
        "already."
    )


class LabelledView(Answer):
    """Answers that were compared with late labels."""

    seen: int
    right: int
    at_least: float = Field(description="The accuracy is at least this, with a probability of 95%.")
    at_most: float = Field(description="The accuracy is at most this, with a probability of 95%.")


class SiteView(Answer):
    """A ramp that is in use, or was."""

    site: int = Field(description="The upper layer before which it is; 0 is right after retrieval.")
    threshold: float = Field(description="A text leaves if its uncertainty is below; 0: none leaves.")
    avoids: float = Field(
        description="The fraction of `layers_ms` that a text which leaves here does not need."
    )


class ExitReportView(Answer):
    """The early exits of the version that answers, since its counts began."""

    texts: int = Field(description="Texts that might have left: of one window, not `exact`.")
    left: dict[str, int] = Field(description="Texts that left early, by site.")
    left_share: float = Field(description="The fraction of texts that left early.")
    checked: dict[str, int] = Field(
        description="Texts of `left` that were audited: they got their early answer, and their layers ran on "
        "to compare it, by site."
    )
    sooner: float = Field(
        description="How much sooner answers came in the mean over all texts, as a fraction of `layers_ms`: "
        "the sum of `left` × `avoids` over the sites, divided by the texts. On a GPU an early answer leaves "
        "with its batch, so there this is what its layers would have taken."
    )
    skipped: int = Field(
        description="Texts of these that came while exits were off. The times below leave them out."
    )
    avoided: float = Field(
        description="The processor time of the layers that were not run since texts left early, as a "
        "fraction of the time that all upper layers take for all texts: about the sum of (`left` − "
        "`checked`) × `avoids` over the sites, divided by the texts."
    )
    cost: float = Field(
        description="The time that the ramps took, and all else that early exits take, as such a fraction."
    )
    saved: float = Field(
        description="`avoided` less `cost`. Negative: early exits took more time than they saved."
    )
    layers_ms: float | None = Field(
        description="The mean time of all upper layers for a text, measured on this machine lately; null: "
        "not yet measured."
    )
    sites: list[SiteView]
    audit_share: float = Field(description="The fraction of texts that are audited at present.")
    audits: int = Field(description="Texts that were audited while others could leave.")
    disagreed: int = Field(description="Audits whose early answer differed from the full model's.")
    agreement_at_least: float = Field(
        description="The fraction of those texts whose answer is the full model's is at least this, with a "
        "probability of 95%."
    )
    counted: int = Field(description="Texts that count towards the next state, while it waits for `needed`.")
    needed: int = Field(description="About how many are needed; 0: it waits for none.")
    borrowed: int = Field(
        description="Texts of `counted` that another model of the same task and root answered: while a model "
        "is new, its first thresholds are tuned on such texts, too. Only its own texts test them."
    )
    policies: int = Field(
        description="Ladders of thresholds, from careful to bold, that were put to the test."
    )
    alarms: int = Field(description="How often the texts changed so much that everything began again.")
    early: LabelledView = Field(description="Late labels of texts that left early.")
    full: LabelledView = Field(description="Late labels of texts that went through all layers.")


class ExitsView(Answer):
    """The objective of a model, and the state of its early exits."""

    model: str
    version: int
    objective: Objective
    state: ExitState
    says: str = Field(description="The state in words, with what to do next if anything.")
    report: ExitReportView | None = Field(
        description="Null while no text of this version was concerned since the server started."
    )
