"""Supervision of the engine's loops: one that dies is started again, and until then the engine is not
ready."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

log = logging.getLogger("hmi.engine")
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 30.0
STEADY_S = 60.0
"""A loop that ran for so long before it died is started again after the first pause."""


class Broken(Exception):
    """Raised by a loop that cannot go on with what it has, such as threads that have ended: it is started
    again."""


class Supervisor:
    """Keeps endless loops running. Owned by the event loop's thread.

    It may start a loop again at any moment: before a loop ends, it must answer or fail the work that it has
    taken.
    """

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []
        self._down: dict[str, str] = {}

    @property
    def trouble(self) -> str | None:
        """Which loops are down and why; None while all run."""
        return "; ".join(f"{name} failed: {why}" for name, why in sorted(self._down.items())) or None

    def keep(self, name: str, loop: Callable[[], Awaitable[None]]) -> None:
        """Run `loop` until `stop`. name: for readiness and the log."""
        self._tasks.append(asyncio.create_task(self._keep(name, loop)))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def _keep(self, name: str, loop: Callable[[], Awaitable[None]]) -> None:
        pause = FIRST_PAUSE_S
        while True:
            begun = time.monotonic()
            running = asyncio.ensure_future(loop())
            up = asyncio.get_running_loop().call_later(pause, self._down.pop, name, None)
            try:
                await running
                error: BaseException = RuntimeError("it ended")
            except BaseException as failed:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    running.cancel()
                    raise
                error = failed
            finally:
                up.cancel()
            if time.monotonic() - begun > STEADY_S:
                pause = FIRST_PAUSE_S
            log.critical("%s failed; it is started again in %g s", name, pause, exc_info=error)
            self._down[name] = f"{type(error).__name__}: {error}"
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)
