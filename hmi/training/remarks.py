"""Remarks for the user on the rows of a training. None of them is an error."""

from __future__ import annotations

from hmi.model.tag_schemes import FOUR_MARKS, NAMES, breaks
from hmi.model.tasks import TaskKind
from hmi.training.data.conflicts import conflicts_of
from hmi.training.data.rows import Row
from hmi.training.objectives import objective_of
from hmi.training.recipe import HELD_OUT
from hmi.training.splits import IMBALANCE, imbalance


def remarks(task: TaskKind, train: list[Row], dev: list[Row], *, dev_given: bool) -> list[str]:
    """Remarks on tags, labels and the size of the held-out set."""
    return [*_tag_remarks(task, train), *_label_remarks(task, train, dev), *_size_remarks(dev, dev_given)]


def _tag_remarks(task: TaskKind, train: list[Row]) -> list[str]:
    scheme = task.rules.scheme
    if task.name != "tagging" or scheme in ("iob1", "io", "plain"):
        return []
    broken = list(breaks([row.label for row in train if isinstance(row.label, tuple)], scheme))
    if not broken:
        return []
    shown = "; ".join(
        f"row {row}, word {word}: {tag} after {before}" for row, word, before, tag in broken[:5]
    )
    if scheme in FOUR_MARKS:
        return [
            f"{len(broken)} tags break {NAMES[scheme]} ({shown}): an entity ends where the next tag breaks it"
        ]
    read = (
        "are read as mistakes for B-"
        if scheme == "bio"
        else "are kept, so entities in answers may begin with I-, too"
    )
    return [f"{len(broken)} entities begin with I- instead of B- ({shown}): they {read}"]


def _label_remarks(task: TaskKind, train: list[Row], dev: list[Row]) -> list[str]:
    out = []
    unknown = [labels for labels in (objective_of(task).unknown(row.label) for row in dev) if labels]
    if unknown:
        names = ", ".join(sorted(set().union(*unknown))[:5])
        out.append(
            f"{len(unknown)} held-out rows have labels that no training row has ({names}): they count "
            "as errors"
        )
    conflicts = conflicts_of((row.text, row.label) for row in dev).remark("held-out ")
    out += [conflicts] if conflicts else []
    skewed = imbalance(train)
    if skewed is not None and skewed[0] >= IMBALANCE:
        times, common, rare = skewed
        out.append(
            f"{common!r} has {times:.0f} times the rows of {rare!r}: look at the scores of each label, "
            "and try class_weights=balanced if the rare ones matter"
        )
    return out


def _size_remarks(dev: list[Row], dev_given: bool) -> list[str]:
    if len(dev) >= HELD_OUT.enough:
        return []
    cure = "" if dev_given else ", or give dev rows"
    return [f"these scores rest on {len(dev)} held-out rows: read them as a hint{cure}"]
