"""The calls about a model's objective, its early exits, and labels that come later."""

from __future__ import annotations

import asyncio

from hmi.api.handlers.models import exits_of, model_view_of
from hmi.api.http.call import Reply, RouteCall
from hmi.api.schemas.exits import ChangeModel, ExitsView, Feedback, FeedbackTaken
from hmi.api.views.exits import checked_labels
from hmi.errors import Unavailable


async def change_model(call: RouteCall) -> Reply:
    """Change a model's objective, the share of texts that it is to know, and its depth."""
    body: ChangeModel = call.body
    manager, model = call.services.manager, str(call.model())
    others = body.model_dump(include={"known_share", "depth"} & body.model_fields_set)
    record = await asyncio.to_thread(manager.set_objective, model, body.changed, others)
    return Reply(model_view_of(call, record))


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
