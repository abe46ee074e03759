"""Remarks for the user on the rows of a training. None of them is an error."""

from __future__ import annotations

from collections.abc import Sequence

from hmi.model.tags.tag_schemes import FOUR_MARKS, NAMES, breaks
from hmi.model.tasks import TaskKind
from hmi.model.text.windows import words_read
from hmi.sizes import counted
from hmi.training.data.long_texts import Limit
from hmi.training.data.meaning.conflicts import conflicts_of
from hmi.training.data.rows import Row
from hmi.training.plans.recipe import HELD_OUT
from hmi.training.tasks.objectives import objective_of
from hmi.training.tasks.splits import IMBALANCE, Split, imbalance


def remarks(task: TaskKind, train: list[Row], dev: list[Row], *, dev_given: bool) -> list[str]:
    """Remarks on tags, labels and the size of the held-out set."""
    return [
        *_tag_remarks(task, train),
        *_label_remarks(task, train, dev, dev_given),
        *size_remarks(dev, dev_given),
    ]


def cut_remarks(limit: Limit, **splits: Split) -> list[str]:
    """Remarks on the rows whose texts are longer than the model reads; the names of splits say what rows they
    are."""
    return [remark for name, split in splits.items() if (remark := _cut_remark(limit, name, split))]


def _cut_remark(limit: Limit, name: str, split: Split) -> str:
    cut, lost = 0, 0
    for row, places in zip(split.rows, split.of_rows(), strict=True):
        windows = [split.encoded[i] for i in places]
        if any(window.truncated for window in windows):
            cut += 1
            lost += len(row.text) - words_read(windows) if isinstance(row.text, list) else 0
    if not cut:
        return ""
    are = "is" if cut == 1 else "are"
    words = f", {lost:,} words with their tags" if lost else ""
    return (
        f"{cut:,} of {len(split.rows):,} {name} rows {are} longer than the {limit} that the model reads of a "
        f"text: the rest was left out{words}. {limit.cure(paired=isinstance(split.rows[0].text, tuple))}"
    )


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
            f"{counted(len(broken), 'tag breaks', 'tags break')} {NAMES[scheme]} ({shown}): "
            "an entity ends where the next tag breaks it"
        ]
    read = (
        "are read as mistakes for B-"
        if scheme == "bio"
        else "are kept, so entities in answers may begin with I-, too"
    )
    begin = counted(len(broken), "entity begins", "entities begin")
    return [f"{begin} with I- instead of B- ({shown}): they {read}"]


def _label_remarks(task: TaskKind, train: list[Row], dev: list[Row], dev_given: bool) -> list[str]:
    out = []
    unknown = [labels for labels in (objective_of(task).unknown(row.label) for row in dev) if labels]
    if unknown:
        names = ", ".join(sorted(set().union(*unknown))[:5])
        have = counted(len(unknown), "held-out row has", "held-out rows have")
        out.append(f"{have} labels that no training row has ({names}): they count as errors")
    # The remark on the data has shown the texts, unless these are rows of another file.
    conflicts = conflicts_of((row.text, row.label) for row in dev).remark("held-out ", shown=dev_given)
    out += [conflicts] if conflicts else []
    skewed = imbalance(train)
    if skewed is not None and skewed[0] >= IMBALANCE:
        times, common, rare = skewed
        out.append(
            f"{common!r} has {times:.0f} times the rows of {rare!r}: look at the scores of each label, "
            "and try class_weights=balanced if the rare ones matter"
        )
    return out


def size_remarks(dev: Sequence[object], dev_given: bool) -> list[str]:
    """A remark if scores rest on few held-out rows. dev: those that are scored, in any form."""
    if len(dev) >= HELD_OUT.enough:
        return []
    cure = "" if dev_given else ", or give dev rows"
    return [f"these scores rest on {counted(len(dev), 'held-out row')}: read them as a hint{cure}"]
