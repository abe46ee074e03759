"""The rows of a profile of token adaptation: those that prompts are trained on, and those that judge."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hmi.errors import InvalidData
from hmi.jobs.options import FineTuneOptions
from hmi.model.tasks import TaskKind
from hmi.training.data.rows import Row, read_labelled_file, read_unlabelled_file
from hmi.training.plans.recipe import HELD_OUT
from hmi.training.tasks.objectives import objective_of
from hmi.training.tasks.row_keys import RowKeys, are_seen, key_of

MIN_ROWS = 20
"""With fewer labelled rows nothing is profiled."""
MOST_FIT = 1_000
"""Prompts are trained on at most this many rows."""
MOST_JUDGING = 600
"""At most this many rows judge each epoch of their training."""
MOST_LABELLED, MOST_UNLABELLED = 2_000, 2_000
"""At most so many texts are answered under each γ. Of more rows, those with the smallest keys are used."""


@dataclass(frozen=True)
class ProfileRows:
    """The rows of a profile, by use. No text is both in `fit` and in the others."""

    fit: list[Row]
    """The rows that prompts are trained on."""
    held: list[Row]
    """Labelled rows that the profile is made of."""
    unlabelled: list[Row]
    """Further texts, for the agreement."""
    unseen: bool
    """True if the model was trained on none of `held` and `unlabelled`."""

    @property
    def judging(self) -> list[Row]:
        """The held-out rows that judge the prompts."""
        return self.held[:MOST_JUDGING]

    @property
    def judged(self) -> list[Row]:
        """All texts that are answered under each γ; those with labels come first."""
        return [*self.held, *self.unlabelled]


def read_parts(folder: Path, task: TaskKind, options: FineTuneOptions, seen: RowKeys) -> ProfileRows:
    """Read the files data, dev and unlabelled of a job's input. seen: keys of the rows that the model was
    trained on. Raises InvalidData if they do not suit the model, or are too few."""
    skip, reading = options.skip_bad_rows, options.reading()
    data = _distinct_labelled(folder, "data", task, options)
    dev = _distinct_labelled(folder, "dev", task, options) if (folder / "dev").exists() else []
    texts: list[Row] = []
    if (folder / "unlabelled").exists():
        texts = _distinct(
            read_unlabelled_file(
                folder / "unlabelled",
                task.name,
                paired=task.paired,
                skip=skip,
                reading=reading,
                patterns=task.rules.words,
            ).rows
        )
    fit, held = hold_out_rows(data, dev, seen)
    used = {key_of(row) for row in (*fit, *held)}
    texts = [row for row, was in zip(texts, are_seen(texts, seen), strict=True) if not was]
    texts = [row for row in texts if key_of(row) not in used][:MOST_UNLABELLED]
    return ProfileRows(fit[:MOST_FIT], held, texts, unseen=not any(are_seen(held, seen)))


def hold_out_rows(data: list[Row], dev: list[Row], seen: RowKeys) -> tuple[list[Row], list[Row]]:
    """The rows to train prompts on, and those held out, both by their keys.

    Without `dev`, the rows that the model was not trained on are held out, or half of them if the others
    are too few to train on. If it was trained on nearly all, a share of them is held out.
    """
    if dev:
        away = {key_of(row) for row in dev}
        return [row for row in data if key_of(row) not in away], dev[:MOST_LABELLED]
    known = are_seen(data, seen)
    fresh = [row for row, was in zip(data, known, strict=True) if not was]
    old = [row for row, was in zip(data, known, strict=True) if was]
    if len(fresh) < MIN_ROWS:
        wanted = HELD_OUT.wanted(len(data))
        return data[wanted:], data[:wanted]
    if len(old) >= MIN_ROWS:
        return [*old, *fresh[MOST_LABELLED:]], fresh[:MOST_LABELLED]
    half = min(len(fresh) // 2, MOST_LABELLED)
    return [*old, *fresh[half:]], fresh[:half]


def _distinct_labelled(folder: Path, name: str, task: TaskKind, options: FineTuneOptions) -> list[Row]:
    """The different rows of a file, by their keys."""
    found = read_labelled_file(
        folder / name,
        task.name,
        name,
        skip=options.skip_bad_rows,
        reading=options.reading(),
        patterns=task.rules.words,
    )
    rows = _distinct(found.rows)
    if len(rows) < MIN_ROWS:
        raise InvalidData(f"{name} has {len(rows)} different rows: give at least {MIN_ROWS}", field=name)
    if any(isinstance(row.text, tuple) != task.paired for row in rows):
        raise InvalidData(
            f"{name}: the model reads {'pairs of texts' if task.paired else 'single texts'}: give rows "
            f"{'with' if task.paired else 'without'} text_pair",
            field=name,
        )
    unknown = sorted(set().union(*(objective_of(task).unknown(row.label) for row in rows)))
    if unknown:
        raise InvalidData(
            f"{name} has the label {unknown[0][:80]!r}, which the model does not know: give rows with "
            "labels of its own",
            field=name,
        )
    return rows


def _distinct(rows: list[Row]) -> list[Row]:
    return sorted({key_of(row): row for row in rows}.values(), key=key_of)
