"""Sends calls, again where that is safe, and reads answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import httpx

from hmi.client import wire
from hmi.client.aio import io
from hmi.client.answers import JobStatus
from hmi.client.calls import Call, check, checked, decode
from hmi.client.config import Config
from hmi.client.errors import ApiError
from hmi.client.events import EventReader
from hmi.client.retrying import Attempts


class AsyncSession:
    """The connections to one server."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self._http = io.connections(config)

    async def aclose(self) -> None:
        await self._http.aclose()

    async def send(self, call: Call) -> Any:
        """Return the JSON of the answer. Raises ApiError."""
        return decode(await self.content(call))

    async def content(self, call: Call) -> bytes:
        """Return the content of the answer. Raises ApiError."""
        budget = self.config.upload_timeout_s if call.uploads else self.config.timeout_s
        attempts = Attempts(self.config.attempts, budget, call.repeatable)
        while True:
            try:
                answer = await self._once(call, attempts)
                check(answer.status_code, answer.headers, answer.content)
                return answer.content
            except ApiError as error:
                wait = attempts.wait_after(error, fresh=call.fresh)
            await io.sleep(wait)

    async def text(self, path: str) -> str:
        """Return the answer of a GET as text, with one attempt."""
        answer = await self._once(Call("GET", path), Attempts(1, self.config.timeout_s, True))
        check(answer.status_code, answer.headers, answer.content)
        return answer.text

    async def events(self, path: str) -> AsyncGenerator[JobStatus, None]:
        """Yield the statuses of one stream, until it ends or breaks. Raises ApiError."""
        reader = EventReader()
        url, limits = self.config.url + path, wire.stream_timeouts()
        try:
            async with self._http.stream("GET", url, timeout=limits) as answer:
                if answer.status_code >= 300:
                    check(answer.status_code, answer.headers, await answer.aread())
                async for line in answer.aiter_lines():
                    event = checked(reader.feed, line)
                    if event is not None:
                        yield checked(JobStatus.model_validate, event.data)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise wire.unreachable(self.config, error) from error

    async def _once(self, call: Call, attempts: Attempts) -> httpx.Response:
        given, multipart = wire.request_parts(self.config, call, attempts.elapsed_s)
        if multipart is not None:
            given["content"] = io.stream(multipart.pieces())
        try:
            return await self._http.request(**given, timeout=wire.timeouts(attempts.left_s))
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise wire.unreachable(self.config, error) from error
