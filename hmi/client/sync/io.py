"""The parts of the synchronous client that differ from the asynchronous one: connections, waits, streams,
several calls at a time.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import httpx

from hmi.client.config import Config
from hmi.client.wire import connection_settings

T = TypeVar("T")
R = TypeVar("R")


def connections(config: Config) -> httpx.Client:
    return httpx.Client(**connection_settings(config))


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def stream(pieces: Iterator[bytes]) -> Iterator[bytes]:
    yield from pieces


def in_order(function: Callable[[T], R], items: Iterator[T], at_once: int) -> Iterator[R]:
    """Yield function(item) for each item, in order, with at most `at_once` under way. Items are taken as
    places become free. An error cancels those that have not begun, and waits for the others."""
    if at_once == 1:
        yield from map(function, items)
        return
    under_way: deque[Future[R]] = deque()
    with ThreadPoolExecutor(at_once, thread_name_prefix="hmi-client") as pool:
        try:
            for item in items:
                under_way.append(pool.submit(function, item))
                if len(under_way) >= at_once:
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()
        finally:
            for waiting in under_way:
                waiting.cancel()
