"""Messages to systemd (sd_notify): the server is ready, alive, stopping. Without systemd nothing is sent."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


def supervised() -> bool:
    """Return whether systemd, or another program with its protocol, waits for messages."""
    return os.environ.get("NOTIFY_SOCKET", "").startswith(("/", "@"))


def send_state(state: str) -> bool:
    """Send a state such as READY=1 to the socket that systemd names; return whether it was sent."""
    if not supervised():
        return False
    address = os.environ["NOTIFY_SOCKET"]
    if address.startswith("@"):  # a name without a file
        address = "\0" + address[1:]
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(state.encode(), address)
        return True
    return False


def watchdog_s() -> float | None:
    """The interval at which systemd wants a sign of life, halved as its manual advises; None without one."""
    own = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    microseconds = os.environ.get("WATCHDOG_USEC", "")
    return int(microseconds) / 2e6 if own and microseconds.isdigit() and int(microseconds) else None


@asynccontextmanager
async def watched() -> AsyncIterator[None]:
    """Context manager: the event loop sends signs of life while the block runs. A loop that hangs sends none,
    and systemd starts the server again."""
    task = asyncio.create_task(_alive(interval)) if (interval := watchdog_s()) else None
    try:
        yield
    finally:
        if task is not None:
            task.cancel()


async def _alive(interval: float) -> None:
    while True:
        send_state("WATCHDOG=1")
        await asyncio.sleep(interval)
