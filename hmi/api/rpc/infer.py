"""Requests to infer and their answers as messages."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from google.protobuf.message import DecodeError
from pydantic import ValidationError

from hmi.api.http.request_body import LimitedBodyReader
from hmi.api.protocols.asks import AskResult
from hmi.api.protocols.errors import Malformed, from_validation
from hmi.api.protocols.oip.answering import outputs_made
from hmi.api.protocols.oip.asking import Asked, rows_of
from hmi.api.protocols.oip.schemas import ID_CHARS, MOST_TENSORS, Options
from hmi.api.protocols.oip.tensors import BytesTensor, check_count, checked_shape, text_of, texts_in
from hmi.api.rpc.messages import MESSAGES, parameter_value
from hmi.errors import InvalidInput

REFUSED = ("classification", "shared_memory_region")
"""Parameters of tensors that are not supported."""


def parsed(name: str, data: bytes) -> Any:
    """The message of the type `name` in `data`. Raises Malformed."""
    try:
        return MESSAGES[name].FromString(data)
    except DecodeError as error:
        raise Malformed(f"this is no message of the type {name}: check the client's service") from error


def asked_of(request: Any, reader: LimitedBodyReader) -> Asked:
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


def response_of(result: AskResult, asked: Asked, version: str) -> Any:
    """The ModelInferResponse to a request. `version`: see `outputs_made`."""
    outputs = outputs_made(result, asked.outputs, version)
    tensor = MESSAGES["InferOutputTensor"]
    return MESSAGES["ModelInferResponse"](
        model_name=str(result.model),
        model_version=str(result.version),
        id=asked.id or result.id,
        outputs=[tensor(name=o.name, datatype=o.datatype, shape=o.shape) for o in outputs],
        raw_output_contents=[output.packed() for output in outputs],
    )


def _texts(tensor: Any, raw: bytes | None, reader: LimitedBodyReader) -> BytesTensor:
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
