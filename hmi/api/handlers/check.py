"""The call that checks a file as the job that takes it would, without starting one."""

from __future__ import annotations

import asyncio
from typing import get_args

from hmi.api.http.call import Reply, RouteCall
from hmi.api.schemas.check import CheckFile, CheckView, LineProblem, SampleEntity
from hmi.core import Task
from hmi.errors import InvalidInput
from hmi.jobs.checks import Checked, inspect_file

SHOWN = 20
"""Bad rows that an answer has."""
SHOWN_LABELS = 500
"""Labels that an answer has."""
CHECKABLE = tuple(task for task in get_args(Task) if task != "embedding")


async def check(call: RouteCall) -> Reply:
    """Show what a job would make of the file: format, rows, labels, and errors with their lines."""
    body: CheckFile = call.body
    if body.corpus and body.task is not None:
        raise InvalidInput("a corpus has no task: give task or corpus", field="task")
    if body.task == "embedding":
        raise InvalidInput(f"task embedding takes no rows: give one of {', '.join(CHECKABLE)}", field="task")
    if body.corpus and body.options.model_fields_set - {"encoding"}:
        raise InvalidInput(
            "a corpus has no columns or labels: leave options out, but for the encoding", field="options"
        )
    file, skip = call.files["data"], body.skip_bad_rows
    found = await asyncio.to_thread(
        inspect_file, file, body.task, skip, corpus=body.corpus, reading=body.options
    )
    return Reply(_view(found))


def _view(found: Checked) -> CheckView:
    return CheckView(
        usable=found.error is None,
        error=found.error,
        kind="corpus" if found.kind == "corpus" else "rows",
        task=found.task,
        read=found.read,
        count=found.count,
        whole=found.whole,
        labels=dict(list(found.labels.items())[:SHOWN_LABELS]),
        problems=[LineProblem(line=bad.line, message=bad.message) for bad in found.problems[:SHOWN]],
        bad_rows=len(found.problems),
        notes=found.notes,
        options=found.guess,
        sample=found.sample,
        entities=None if found.entities is None else dict(list(found.entities.items())[:SHOWN_LABELS]),
        sample_entities=[[SampleEntity(**entity) for entity in row] for row in found.sample_entities],
        text_columns=found.text_columns,
    )
