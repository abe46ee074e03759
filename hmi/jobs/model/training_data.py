"""The data of a fine-tuning job: training rows, held-out rows, unlabelled texts, and the task
that they describe."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from hmi.core import ModuleSpec, Task
from hmi.errors import InvalidData, InvalidInput
from hmi.jobs.options import FineTuneOptions
from hmi.model.tasks import TaskKind
from hmi.sizes import counted
from hmi.training.data.long_texts import reads_windows
from hmi.training.data.rows import Row, RowFile, read_labelled_file, read_unlabelled_file
from hmi.training.plans.defaults import default_module
from hmi.training.tasks.objectives import learn_task
from hmi.training.tasks.row_keys import hold_out
from hmi.training.tasks.word_patterns import word_patterns

SHOWN = 5
"""A remark quotes at most this many of the rows left out."""


@dataclass(frozen=True)
class Data:
    """A task, the module for it, and its rows."""

    task: TaskKind
    module: ModuleSpec
    train: list[Row]
    dev: list[Row]
    dev_given: bool
    """Whether the user gave the held-out rows."""
    unlabelled: list[Row]
    """Texts for a teacher to label."""
    read: dict[str, str]
    """The format that each file was read as."""
    notes: list[str]
    """Remarks on the files, for the user."""


def read_data(folder: Path, name: Task, options: FineTuneOptions) -> Data:
    """Read the files of a job's input. Raises InvalidData, InvalidInput."""
    skip, reading = options.skip_bad_rows, options.reading()
    files = {"data": read_labelled_file(folder / "data", name, skip=skip, reading=reading)}
    dev_given, given = (folder / "dev").exists(), files["data"]
    if dev_given:
        words = _word_patterns(given, given.rows)
        files["dev"] = read_labelled_file(
            folder / "dev", name, "dev", skip=skip, reading=reading, patterns=words
        )
        train, dev = files["data"].rows, files["dev"].rows
    else:
        train, dev = hold_out(files["data"].rows, options.recipe().held_out)
    paired = isinstance(train[0].text, tuple)
    if paired != isinstance(dev[0].text, tuple):
        raise InvalidData("data and dev must both have `text_pair`, or neither: make them alike", field="dev")
    task = learn_task(name, [row.label for row in train], paired=paired)
    words = _word_patterns(given, train)
    rules = task.rules.model_copy(update={"windows": _windows(task, options), "words": words})
    if (folder / "unlabelled").exists():
        files["unlabelled"] = read_unlabelled_file(
            folder / "unlabelled", name, paired=paired, skip=skip, reading=reading, patterns=words
        )
    texts = files["unlabelled"].rows if "unlabelled" in files else []
    module = options.module or default_module(paired=paired, writing=name == "generation")
    notes = [note for field, found in files.items() for note in _notes(field, found)]
    read = {field: found.read for field, found in files.items()}
    return Data(replace(task, rules=rules), module, train, dev, dev_given, texts, read, notes)


def _word_patterns(given: RowFile, rows: list[Row]) -> tuple[str, ...]:
    """The patterns by which a tagging model splits texts: those that split its rows, or what rows of words
    teach."""
    if given.patterns is not None:
        return given.patterns
    return word_patterns(row.text for row in rows if isinstance(row.text, list))


def _notes(field: str, found: RowFile) -> list[str]:
    """Remarks on a file: the rows left out, and anything unusual."""
    left = found.left_out
    if not left:
        return found.notes
    more = f"; and {len(left) - SHOWN} more" if len(left) > SHOWN else ""
    shown = "; ".join(problem.message for problem in left[:SHOWN])
    return [
        f"{counted(len(left), f'row of {field} was', f'rows of {field} were')} left out: {shown}{more}",
        *found.notes,
    ]


def _windows(task: TaskKind, options: FineTuneOptions) -> bool:
    """Return whether long texts are read in windows. Raises InvalidInput if the task cannot."""
    if options.long_texts == "windows" and not task.windowed:
        raise InvalidInput(
            f"a {task.name} model of pairs always cuts long texts: leave long_texts out",
            field="options.long_texts",
        )
    return reads_windows(task.name, options.long_texts)
