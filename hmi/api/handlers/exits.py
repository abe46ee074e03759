"""The calls about a model's objective, its early exits, and labels that come later."""

from __future__ import annotations

import asyncio

from hmi.api.exits import checked_labels
from hmi.api.handlers.models import exits_of, shown
from hmi.api.route import Call, Reply
from hmi.api.schemas_exits import ChangeModel, ExitsView, Feedback, FeedbackTaken
from hmi.errors import Unavailable


async def change_model(call: Call) -> Reply:
    """Change a model's objective, the share of texts that it is to know, and its depth."""
    body: ChangeModel = call.body
    manager, model = call.services.manager, str(call.model())
    others = body.model_dump(include={"known_share", "depth"} & body.model_fields_set)
    record = await asyncio.to_thread(manager.set_objective, model, body.changed, others)
    return Reply(shown(call, record))


async def show_exits(call: Call) -> Reply:
    return Reply(await asyncio.to_thread(_view, call))


async def feedback(call: Call) -> Reply:
    return Reply(await asyncio.to_thread(_taken, call))


def _view(call: Call) -> ExitsView:
    return exits_of(call, call.services.manager.model(str(call.model())))


def _taken(call: Call) -> FeedbackTaken:
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
