"""Tensors of the protocol: their elements as bytes and in JSON, and their shapes."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

import numpy as np

from hmi.errors import InvalidInput

Datatype = Literal["BYTES", "FP32", "BOOL"]
"""The datatypes that are read or answered."""
_LENGTH = struct.Struct("<I")
_FORMS: dict[str, str] = {"FP32": "<f4", "BOOL": "?"}


@dataclass(frozen=True)
class BytesTensor:
    """An input tensor of the datatype BYTES."""

    name: str
    shape: tuple[int, ...]
    texts: Sequence[str]
    """The elements row by row, as many as the shape says."""


@dataclass(frozen=True)
class ResultTensor:
    """An output tensor."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]
    values: Sequence[str] | Sequence[float] | Sequence[bool]
    """Row by row."""

    def packed(self) -> bytes:
        """The elements in the protocol's binary form: little-endian, and each text after its length."""
        if self.datatype == "BYTES":
            return packed_texts(str(value) for value in self.values)
        return np.asarray(self.values, _FORMS[self.datatype]).tobytes()


def packed_texts(texts: Iterable[str]) -> bytes:
    """Each text in UTF-8, after its length in four bytes."""
    parts = []
    for text in texts:
        data = text.encode()
        parts += [_LENGTH.pack(len(data)), data]
    return b"".join(parts)


def texts_in(data: bytes, count: int, name: str) -> list[str]:
    """The `count` texts of a tensor in binary form. Raises InvalidInput that names the tensor or the text."""
    texts, at = [], 0
    for i in range(count):
        start = at + _LENGTH.size
        if start > len(data):
            raise _ends_early(name, i, count)
        at = start + _LENGTH.unpack_from(data, start - _LENGTH.size)[0]
        if at > len(data):
            raise _ends_early(name, i, count)
        texts.append(text_of(data[start:at], f"{name}[{i}]"))
    if at != len(data):
        raise InvalidInput(
            f"{name} has {len(data) - at} more bytes than its shape of {count} texts needs", field=name
        )
    return texts


def text_of(data: bytes, place: str) -> str:
    """One element of BYTES as a text. Raises InvalidInput that names its place."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{place} is not UTF-8 (byte {error.start}): send text", field=place) from error


def checked_shape(shape: Sequence[int], name: str) -> tuple[int, ...]:
    """The shape of an input tensor. Raises InvalidInput unless it is [n] or [n, m], each at least 1."""
    if len(shape) not in (1, 2) or min(shape) < 1:
        raise InvalidInput(
            f"{name} has the shape {list(shape)[:8]}: send [n] or [n, 1] with at least one text", field=name
        )
    return tuple(shape)


def check_count(shape: Sequence[int], count: int, name: str) -> None:
    """Raise InvalidInput if a tensor has not as many elements as its shape says."""
    if prod(shape) != count:
        raise InvalidInput(
            f"{name} has {count} elements, but its shape {list(shape)} says {prod(shape)}", field=name
        )


def _ends_early(name: str, i: int, count: int) -> InvalidInput:
    return InvalidInput(
        f"{name} ends within element {i} of {count}: each text follows its length in four bytes, "
        "little-endian",
        field=name,
    )
