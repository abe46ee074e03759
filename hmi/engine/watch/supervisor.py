"""Supervision of the engine's loops. A loop that dies is restarted; until then the engine is not ready."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

log = logging.getLogger("hmi.engine")
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 30.0
STEADY_S = 60.0
"""After a loop has run for this many seconds, its pauses start at FIRST_PAUSE_S again."""


class Broken(Exception):
    """Raised by a loop that must be restarted, for example because its threads have ended."""


class Supervisor:
    """Keeps endless loops running, with exponential back-off between restarts. Event loop's thread only.

    Before a loop ends, it must answer or fail the work that it has taken.
    """

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []
        self._down: dict[str, str] = {}

    @property
    def trouble(self) -> str | None:
        """The loops that are down, with the reason; None while all run."""
        return "; ".join(f"{name} failed: {why}" for name, why in sorted(self._down.items())) or None

    def keep(self, name: str, loop: Callable[[], Awaitable[None]]) -> None:
        """Run `loop` until `stop`. `name` appears in `trouble` and in the log."""
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
            # The loop counts as down until it has run for a while, not only until it is started again.
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
            log.critical("%s failed; it will be started again in %g s", name, pause, exc_info=error)
            self._down[name] = f"{type(error).__name__}: {error}"
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)
