"""Answers a message of ModelInfer, whichever way it came: over gRPC, or over HTTP from another server.

Every server has the call for others, so protobuf is loaded only when a message comes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from hmi.api.access.caller import Caller
from hmi.api.handlers.protocols.infer import values_in
from hmi.api.handlers.protocols.open_inference import Repository
from hmi.api.http.call import Reply, RouteCall
from hmi.api.http.services import Services
from hmi.api.in_thread import OFF_LOOP_BYTES, OFF_LOOP_VALUES, off_loop
from hmi.api.protocols.base import UNNAMED, BodyReader, Raw, Where
from hmi.api.protocols.errors import Malformed
from hmi.api.protocols.oip.asking import Asked, ask_of
from hmi.core import ModelId
from hmi.errors import Unavailable

PATH: Final = "/server/infer"
LEFT: Final = "X-HMI-Deadline-Seconds"
NUMBER: Final = "X-HMI-Message"
HEADERS: Final[Mapping[str, str]] = {
    LEFT: "The seconds that are left of the call's deadline.",
    NUMBER: "The number of the message in its stream, from 0.",
}
_FIGURE = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")


@dataclass(frozen=True)
class Message:
    """A ModelInferRequest."""

    asked: Asked
    model: str
    version: str
    """The version that it names; "" if it names none."""


def read(data: bytes, where: Where, reader: BodyReader) -> Message:
    """Read a message that another server passes on. Raises as `message_of`, and Unavailable without
    protobuf."""
    try:
        from hmi.api.rpc.infer import message_of
    except ImportError as error:
        raise Unavailable(
            "this server answers no gRPC for others: pip install 'hmi-server[grpc]', as on those"
        ) from error
    return message_of(data, reader)


async def answer(call: RouteCall) -> Reply:
    """Answer a message that another server passes on. Raises as `answered`, and Malformed for a header."""
    left, number = _figure(call, LEFT), _figure(call, NUMBER)
    ends = None if left is None else call.arrived + left
    id, large = id_of(call.id, None if number is None else int(number)), call.size > OFF_LOOP_BYTES
    body = await answered(call.services, call.caller, call.body, call.arrived, ends, id=id, large=large)
    return Reply(Raw(body, UNNAMED))


async def answered(
    services: Services,
    caller: Caller,
    message: Message,
    arrived: float,
    ends: float | None,
    *,
    id: str,
    large: bool,
) -> bytes:
    """The bytes of the ModelInferResponse to a message.

    arrived: the `time.monotonic()` from which deadlines count. ends: when the call's own deadline passes;
    None: it has none. id: of the call or of its message. large: check the texts in a thread.

    Raises what `ask_of` and `Inference.answer` raise.
    """
    from hmi.api.rpc.infer import encoded

    model = ModelId.parse(message.model, "model_name")
    record = Repository(services, caller).record(message.model)
    ask = ask_of(message.asked, model, record, message.version)
    if ends is not None:
        left_ms = max((ends - arrived) * 1000, 0.001)
        ask = replace(ask, deadline_ms=left_ms if ask.deadline_ms is None else min(left_ms, ask.deadline_ms))
    (result,) = await services.inference.answer([ask], caller, arrived, id=id, large=large)
    return await off_loop(values_in([result]) > OFF_LOOP_VALUES, encoded, result, message)


def id_of(call: str, number: int | None) -> str:
    """The id of a call's only message, or of one of its messages, by number."""
    return call if number is None else f"{call}.{number}"


def _figure(call: RouteCall, name: str) -> float | None:
    """The number in a header; None if it is missing. Raises Malformed."""
    given = None if call.request is None else call.request.headers.get(name)
    if given is None:
        return None
    if not _FIGURE.fullmatch(given):
        raise Malformed(f"the header {name} is no number: leave it out")
    return float(given)
