"""Requests and answers over HTTP: JSON, or JSON with the elements of tensors as bytes after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from pydantic_core import to_json

from hmi.api.protocols.asks import Ask, AskResult
from hmi.api.protocols.base import UNNAMED, BodyReader, Raw, Where
from hmi.api.protocols.errors import Malformed
from hmi.api.protocols.oip.answering import outputs_made
from hmi.api.protocols.oip.asking import Asked, ask_of, rows_of
from hmi.api.protocols.oip.schemas import (
    BinaryParameters,
    BinaryTensor,
    InferRequest,
    InferResponse,
    InputTensor,
    OutputTensor,
    RequestedOutput,
    count_members,
)
from hmi.api.protocols.oip.tensors import BytesTensor, ResultTensor, check_count, checked_shape, texts_in
from hmi.core import ModelId
from hmi.errors import InvalidInput

LENGTH = "inference-header-content-length"
"""The header that gives the bytes of the JSON, if more bytes follow it."""
_SHOWN_LENGTH = "Inference-Header-Content-Length"


@dataclass(frozen=True)
class HttpAsked(Asked):
    """A request over HTTP."""

    binary: Callable[[str], bool]
    """Tells whether the output of a name is sent as bytes."""


def read(data: bytes, where: Where, reader: BodyReader) -> HttpAsked:
    """Read a request's body. See `RawBody.read`."""
    size = _json_size(where, len(data))
    body: InferRequest = reader.json(InferRequest, data[:size], count_members)
    tensors, at = [], size
    for i, tensor in enumerate(body.inputs):
        tensors.append(_texts(tensor, i, data, at, reader))
        at += tensor.parameters.binary_data_size or 0
    if at != len(data):
        raise InvalidInput(
            f"{len(data) - at} bytes follow the last tensor: {_SHOWN_LENGTH} and the sizes in "
            "binary_data_size must add up to the body",
            field="inputs",
        )
    for i, output in enumerate(body.outputs):
        _check_output(output, i)
    names = tuple(output.name for output in body.outputs)
    return HttpAsked(rows_of(tensors, reader.hold), body.parameters, names, body.id or "", _binary(body))


def decode(asked: HttpAsked, where: Where) -> list[Ask]:
    """Decode a request that was read. Raises what `asking.ask_of` raises."""
    assert where.models is not None
    model = ModelId.parse(where.path["model"])
    return [ask_of(asked, model, where.models.record(model), where.path.get("version", ""))]


def encode(results: Sequence[AskResult], asked: HttpAsked, where: Where) -> InferResponse | Raw:
    """The answer: JSON, or a `Raw` if the caller wants an output as bytes."""
    (result,) = results
    outputs = outputs_made(result, asked.outputs, where.path.get("version", ""))
    tail: list[bytes] = []
    tensors: list[OutputTensor | BinaryTensor] = []
    for output in outputs:
        if asked.binary(output.name):
            tail.append(output.packed())
            tensors.append(_announced(output, len(tail[-1])))
        else:
            tensors.append(_in_json(output))
    answer = InferResponse(
        model_name=str(result.model),
        model_version=str(result.version),
        id=asked.id or result.id,
        outputs=tensors,
    )
    if not tail:
        return answer
    head = to_json(answer, inf_nan_mode="null")
    return Raw(b"".join((head, *tail)), UNNAMED, {_SHOWN_LENGTH: str(len(head))})


def _json_size(where: Where, size: int) -> int:
    """The bytes of a body's JSON. Raises Malformed for a header that cannot be true."""
    given = where.headers.get(LENGTH)
    if given is None:
        return size
    if not (given.isascii() and given.isdigit() and int(given[:20]) <= size):
        raise Malformed(
            f"{_SHOWN_LENGTH} {given[:20]!r} is no number of bytes up to the {size} of the body: give the "
            "size of the JSON",
            field=_SHOWN_LENGTH,
        )
    return int(given)


def _texts(tensor: InputTensor, i: int, data: bytes, at: int, reader: BodyReader) -> BytesTensor:
    """An input tensor, whose elements are in the JSON or stand at `at` in the body."""
    name = tensor.name
    if tensor.parameters.shared_memory_region is not None:
        raise InvalidInput(
            f"{name} is in shared memory, which is not read: send the data in the request",
            field=f"inputs[{i}].parameters.shared_memory_region",
        )
    shape = checked_shape(tensor.shape, name)
    size = tensor.parameters.binary_data_size
    if tensor.data is not None:
        if size is not None:
            raise InvalidInput(f"{name} has both data and binary_data_size: send one of them", field=name)
        flat = _flat(tensor.data, f"inputs[{i}].data")
        check_count(shape, len(flat), name)
        return BytesTensor(name, shape, flat)
    if size is None:
        raise InvalidInput(f"{name} has no data: send data, or binary_data_size and bytes", field=name)
    if at + size > len(data):
        raise InvalidInput(f"the body ends within the bytes of {name}: check binary_data_size", field=name)
    if 4 * prod(shape) > size:
        raise InvalidInput(
            f"{name} has {size} bytes, too few for the {prod(shape)} texts of its shape {list(shape)}",
            field=name,
        )
    reader.hold(prod(shape))
    return BytesTensor(name, shape, texts_in(data[at : at + size], prod(shape), name))


def _flat(data: list[Any], place: str) -> list[str]:
    """The texts of a flat list, or of one list a row. Raises InvalidInput that names a wrong element."""
    rows = [each if isinstance(each, list) else [each] for each in data]
    for i, row in enumerate(rows):
        for text in row:
            if not isinstance(text, str):
                raise InvalidInput(
                    f"{place}[{i}] is not a text: BYTES in JSON is a list of strings", field=f"{place}[{i}]"
                )
    return [text for row in rows for text in row]


def _check_output(output: RequestedOutput, i: int) -> None:
    """Raise InvalidInput for parameters of an output that HMI does not support."""
    for name in ("classification", "shared_memory_region"):
        if getattr(output.parameters, name) is not None:
            raise InvalidInput(
                f"outputs[{i}]: {name} is not supported: request LABEL or SCORES, and read the answer's data",
                field=f"outputs[{i}].parameters.{name}",
            )


def _binary(body: InferRequest) -> Callable[[str], bool]:
    """Return the choice of outputs that are sent as bytes: as each requested output says, else as the request
    says.
    """
    otherwise = body.parameters.binary_data_output
    said = {output.name: output.parameters.binary_data for output in body.outputs}
    wanted = {name: otherwise if each is None else each for name, each in said.items()}
    return lambda name: wanted.get(name, otherwise)


def _announced(output: ResultTensor, size: int) -> BinaryTensor:
    return BinaryTensor(
        name=output.name,
        datatype=output.datatype,
        shape=list(output.shape),
        parameters=BinaryParameters(binary_data_size=size),
    )


def _in_json(output: ResultTensor) -> OutputTensor:
    # Not validated: a large list would be copied, and its numbers are right.
    return OutputTensor.model_construct(
        name=output.name, datatype=output.datatype, shape=list(output.shape), data=list(output.values)
    )
