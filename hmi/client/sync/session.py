# Made by scripts/sync_client.py of hmi/client/aio/session.py: change that file.
"""Sends calls, again where that is safe, and reads answers."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import httpx

from hmi.client import wire
from hmi.client.calls import Call, check, checked, decode
from hmi.client.config import Config
from hmi.client.errors import ApiError
from hmi.client.events import Event, EventReader
from hmi.client.retrying import Attempts
from hmi.client.sync import io


class Session:
    """The connections to one server."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self._http = io.connections(config)

    def close(self) -> None:
        self._http.close()

    def send(self, call: Call) -> Any:
        """Return the JSON of the answer. Raises ApiError."""
        return decode(self.content(call))

    def content(self, call: Call) -> bytes:
        """Return the content of the answer. Raises ApiError."""
        answer = self._answer(call, self._attempts(call))
        return answer.content

    def text(self, path: str) -> str:
        """Return the answer of a GET as text, with one attempt."""
        once = Attempts(1, self.config.timeout_s, True)
        answer = self._answer(Call("GET", path), once)
        return answer.text

    def events(self, call: Call, attempts: Attempts | None = None) -> Generator[Event, None, None]:
        """Yield the events of one stream, until it ends or breaks. Raises ApiError.

        attempts: those to open the stream (None: as of any call). Once it is open, nothing is sent again.
        """
        answer = self._answer(call, attempts or self._attempts(call), stream=True)
        reader, pieces = EventReader(), 0
        try:
            for content in answer.iter_bytes():
                for line in reader.lines(content):
                    event = checked(reader.feed, line)
                    if event is not None:
                        pieces += 1
                        yield event
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise wire.broken_off(self.config, pieces, wire.why_failed(error)) from error
        finally:
            answer.close()

    def _attempts(self, call: Call) -> Attempts:
        return Attempts(self.config.attempts, wire.budget_s(self.config, call), call.repeatable)

    def _answer(self, call: Call, attempts: Attempts, *, stream: bool = False) -> httpx.Response:
        """Return a successful answer; as a stream, it is open. Raises ApiError."""
        while True:
            try:
                return self._once(call, attempts, stream=stream)
            except ApiError as error:
                wait = attempts.wait_after(error, fresh=call.fresh)
            io.sleep(wait)

    def _once(self, call: Call, attempts: Attempts, *, stream: bool) -> httpx.Response:
        given, multipart = wire.request_parts(self.config, call, attempts.elapsed_s)
        if multipart is not None:
            given["content"] = io.stream(multipart.pieces())
        limits = wire.stream_timeouts(self.config, call) if stream else wire.timeouts(attempts.left_s)
        try:
            request = self._http.build_request(**given, timeout=limits)
            answer = self._http.send(request, stream=stream)
            if answer.status_code >= 300:
                check(answer.status_code, answer.headers, answer.read())
            return answer
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise wire.unreachable(self.config, error) from error
