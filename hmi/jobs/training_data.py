"""The data of a fine-tuning job: training rows, held-out rows, texts without answers, and the
task they describe."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from hmi.core import ModuleSpec, Task
from hmi.errors import InvalidData, InvalidInput
from hmi.jobs.options import FineTuneOptions
from hmi.model.tasks import TaskKind
from hmi.training.data.rows import Row, RowFile, given_rows, given_texts
from hmi.training.defaults import default_module
from hmi.training.objectives import learn_task
from hmi.training.row_keys import hold_out

SHOWN = 5


@dataclass(frozen=True)
class Data:
    """A task, the module for it, and its rows. `dev_given`: the user held some out; `unlabelled`:
    texts for a teacher to label; `read`: what each file was read as; `notes`: what a user should
    know of them."""

    task: TaskKind
    module: ModuleSpec
    train: list[Row]
    dev: list[Row]
    dev_given: bool
    unlabelled: list[Row]
    read: dict[str, str]
    notes: list[str]


def read_data(folder: Path, name: Task, options: FineTuneOptions) -> Data:
    """The files of a job's input. Raises InvalidData, InvalidInput."""
    skip, files = (
        options.skip_bad_rows,
        {"data": given_rows(folder / "data", name, skip=options.skip_bad_rows)},
    )
    dev_given = (folder / "dev").exists()
    if dev_given:
        files["dev"] = given_rows(folder / "dev", name, "dev", skip=skip)
        train, dev = files["data"].rows, files["dev"].rows
    else:
        train, dev = hold_out(files["data"].rows, options.recipe().held_out)
    paired = isinstance(train[0].text, tuple)
    if paired != isinstance(dev[0].text, tuple):
        raise InvalidData("data and dev must both have `text_pair`, or neither: make them alike", field="dev")
    task = learn_task(name, [row.label for row in train], paired=paired)
    rules = task.rules.model_copy(update={"windows": _windows(task, options)})
    if (folder / "unlabelled").exists():
        files["unlabelled"] = given_texts(folder / "unlabelled", name, paired=paired, skip=skip)
    texts = files["unlabelled"].rows if "unlabelled" in files else []
    module = options.module or default_module(paired=paired)
    notes = [note for field, found in files.items() for note in _notes(field, found)]
    read = {field: found.read for field, found in files.items()}
    return Data(replace(task, rules=rules), module, train, dev, dev_given, texts, read, notes)


def _notes(field: str, found: RowFile) -> list[str]:
    """Remarks on a file: the rows left out, and what is unusual."""
    left = found.left_out
    if not left:
        return found.notes
    more = f"; and {len(left) - SHOWN} more" if len(left) > SHOWN else ""
    shown = "; ".join(problem.message for problem in left[:SHOWN])
    return [f"{len(left)} rows of {field} were left out: {shown}{more}", *found.notes]


def _windows(task: TaskKind, options: FineTuneOptions) -> bool:
    """Whether long texts are read in windows: as asked for, else where tags of the rest would be lost."""
    if options.long_texts == "windows" and not task.windowed:
        raise InvalidInput(
            f"a {task.name} model of pairs always cuts long texts: leave long_texts out",
            field="options.long_texts",
        )
    return task.name == "tagging" if options.long_texts is None else options.long_texts == "windows"
