"""The calls about a model's early exits and their ramps, and labels that come later."""

from __future__ import annotations

import asyncio

from hmi.api.handlers.models import accepted, exits_of, job_limit
from hmi.api.http.call import Reply, RouteCall
from hmi.api.schemas.exits import ExitsView, Feedback, FeedbackTaken, TrainRamps
from hmi.api.views.exits import checked_labels
from hmi.errors import Unavailable


async def train_ramps(call: RouteCall) -> Reply:
    body: TrainRamps = call.body
    job = await asyncio.to_thread(
        call.services.manager.train_ramps,
        str(call.model()),
        data=call.files.get("data"),
        unlabelled=call.files.get("unlabelled"),
        skip_bad_rows=body.skip_bad_rows,
        reading=body.options,
        job_limit=job_limit(call),
    )
    return accepted(job)


async def show_exits(call: RouteCall) -> Reply:
    return Reply(await asyncio.to_thread(_view, call))


async def feedback(call: RouteCall) -> Reply:
    return Reply(await asyncio.to_thread(_compare_labels, call))


def _view(call: RouteCall) -> ExitsView:
    return exits_of(call, call.services.manager.model(str(call.model())))


def _compare_labels(call: RouteCall) -> FeedbackTaken:
    """Compare labels with the answers that the engine remembers, of whichever version gave them."""
    body: Feedback = call.body
    exits, model = call.services.engine.exits, call.model()
    record = call.services.manager.model(str(model))
    labels = checked_labels(record, body.items)
    if exits is None:
        raise Unavailable("no engine runs here: send labels to the server that answered, with --url")
    artefacts = [record.live.artefact, *(v.artefact for v in reversed(record.versions))]
    artefacts = list(dict.fromkeys(artefacts))
    taken = sum(any(exits.feedback(a, text, label, model) for a in artefacts) for text, label in labels)
    return FeedbackTaken(taken=taken, unknown=len(labels) - taken)
