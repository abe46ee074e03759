"""Requests to infer and their answers as messages."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from math import prod
from typing import Any

from google.protobuf.message import DecodeError
from pydantic import ValidationError

from hmi.api.protocols.asks import AskResult
from hmi.api.protocols.base import BodyReader
from hmi.api.protocols.errors import Malformed, from_validation
from hmi.api.protocols.oip.answering import outputs_made
from hmi.api.protocols.oip.asking import Asked, rows_of
from hmi.api.protocols.oip.schemas import ID_CHARS, MOST_TENSORS, Options
from hmi.api.protocols.oip.tensors import BytesTensor, check_count, checked_shape, text_of, texts_in
from hmi.api.rpc.answering import Message
from hmi.api.rpc.messages import MESSAGES, parameter_value
from hmi.core import check_name
from hmi.errors import InvalidInput

REFUSED = ("classification", "shared_memory_region")
"""Parameters of tensors that are not supported."""


def parsed(name: str, data: bytes) -> Any:
    """The message of the type `name` in `data`. Raises Malformed."""
    try:
        return MESSAGES[name].FromString(data)
    except DecodeError as error:
        raise Malformed(f"this is no message of the type {name}: check the client's service") from error


def message_of(data: bytes, reader: BodyReader) -> Message:
    """Read the bytes of a ModelInferRequest. Raises Malformed, and as `asked_of`."""
    request = parsed("ModelInferRequest", data)
    return Message(asked_of(request, reader), request.model_name, request.model_version)


def tenant_in(data: bytes) -> str:
    """The tenant whose model the bytes of a ModelInferRequest name; "" if they name none."""
    # It begins with the same fields, and its texts stay bytes.
    with suppress(Malformed, InvalidInput):
        return check_name(parsed("ModelReadyRequest", data).name.partition(".")[0], "tenant")
    return ""


def asked_of(request: Any, reader: BodyReader) -> Asked:
    """Read a ModelInferRequest. Raises InvalidInput and TooLarge that name the tensor or field."""
    for field in ("inputs", "outputs"):
        if len(getattr(request, field)) > MOST_TENSORS:
            raise InvalidInput(f"{field} has more than {MOST_TENSORS} tensors: send fewer", field=field)
    if len(request.id) > ID_CHARS:
        raise InvalidInput(f"id has more than {ID_CHARS} characters: send a shorter one", field="id")
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise InvalidInput(
            f"raw_input_contents has {len(raw)} tensors and inputs has {len(request.inputs)}: send all of "
            "them raw, or none",
            field="raw_input_contents",
        )
    tensors = [_texts(tensor, raw[i] if raw else None, reader) for i, tensor in enumerate(request.inputs)]
    for output in request.outputs:
        _refuse(output)
    if not tensors:
        raise InvalidInput("inputs is empty: send TEXT", field="inputs")
    names = tuple(output.name for output in request.outputs)
    return Asked(rows_of(tensors, reader.hold), _options(request), names, request.id)


def encoded(result: AskResult, message: Message) -> bytes:
    """The bytes of the ModelInferResponse to a request."""
    outputs = outputs_made(result, message.asked.outputs, message.version)
    tensor = MESSAGES["InferOutputTensor"]
    response = MESSAGES["ModelInferResponse"](
        model_name=str(result.model),
        model_version=str(result.version),
        id=message.asked.id or result.id,
        outputs=[tensor(name=o.name, datatype=o.datatype, shape=o.shape) for o in outputs],
        raw_output_contents=[output.packed() for output in outputs],
    )
    return bytes(response.SerializeToString())


def _texts(tensor: Any, raw: bytes | None, reader: BodyReader) -> BytesTensor:
    """An input tensor. raw: its elements, unless they are in its contents."""
    name = tensor.name[:200]
    _refuse(tensor)
    if tensor.datatype != "BYTES":
        raise InvalidInput(f"{name} has the datatype {tensor.datatype[:20]!r}: send BYTES", field=name)
    shape = checked_shape(tensor.shape, name)
    count = prod(shape)
    if raw is None:
        given: Sequence[bytes] = tensor.contents.bytes_contents
        check_count(shape, len(given), name)
        reader.hold(count)
        return BytesTensor(name, shape, [text_of(each, f"{name}[{i}]") for i, each in enumerate(given)])
    if 4 * count > len(raw):
        raise InvalidInput(f"{name} has {len(raw)} bytes, too few for its {count} texts", field=name)
    reader.hold(count)
    return BytesTensor(name, shape, texts_in(raw, count, name))


def _refuse(tensor: Any) -> None:
    for name in REFUSED:
        if name in tensor.parameters:
            raise InvalidInput(f"{tensor.name[:200]}: {name} is not supported: leave it out", field=name)


def _options(request: Any) -> Options:
    """The parameters of a request. Raises InvalidInput that names the parameter."""
    given = {name: parameter_value(value) for name, value in request.parameters.items()}
    if not given:
        return Options()
    try:
        return Options.model_validate(given)
    except ValidationError as error:
        raise from_validation(error, Options) from error
