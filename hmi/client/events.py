"""The reader of server-sent events: lines in, events out."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from hmi.client.errors import from_shape


@dataclass(frozen=True)
class Event:
    name: str
    data: Any


@dataclass
class EventReader:
    """Collects the lines of a stream.

    A line ends at a line feed only. httpx would also end one at U+0085 or U+2028, which a text may have.
    """

    _rest: bytes = b""
    _name: str = "message"
    _data: list[str] = field(default_factory=list)

    def lines(self, content: bytes) -> list[str]:
        """Take a part of the stream, and return the lines that it completes, without their ends."""
        *whole, self._rest = (self._rest + content).split(b"\n")
        return [line.removesuffix(b"\r").decode(errors="replace") for line in whole]

    def feed(self, line: str) -> Event | None:
        """Take a line without its end, and return the event that it completes.

        Comments, by which the server shows that it is there, are passed over. Raises the ApiError that an
        event `error` holds, and ValueError if an event's data is no JSON.
        """
        if line:
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if name == "event":
                self._name = value
            elif name == "data":
                self._data.append(value)
            return None
        name, data = self._name, self._data
        self._name, self._data = "message", []
        if not data:
            return None
        event = Event(name, json.loads("\n".join(data)))
        if event.name == "error":
            raise from_shape(event.data)
        return event
