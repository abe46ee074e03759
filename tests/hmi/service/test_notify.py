"""The server's messages to systemd, on a real socket."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hmi.api.process import notify
from tests.hmi.labs.server_lab import ready, serving
from tests.waiting import wait_until


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The socket on which systemd listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(120)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield listener


def test_a_state_reaches_systemd(systemd: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    assert notify.send_state("READY=1")
    assert systemd.recv(100) == b"READY=1"
    monkeypatch.setenv("NOTIFY_SOCKET", "/nowhere/at/all")
    assert not notify.send_state("READY=1")
    monkeypatch.delenv("NOTIFY_SOCKET")
    assert not notify.send_state("READY=1")


async def test_signs_of_life_come_from_the_event_loop(
    systemd: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "20000")
    async with notify.watched():
        for _ in range(3):
            assert await asyncio.to_thread(systemd.recv, 100) == b"WATCHDOG=1"
        systemd.setblocking(False)
        _empty(systemd)
        time.sleep(0.1)  # the loop hangs
        assert _empty(systemd) == 0


def _empty(listener: socket.socket) -> int:
    """Read what waits, and return how many words that were."""
    for count in itertools.count():
        try:
            listener.recv(100)
        except BlockingIOError:
            return count
    raise AssertionError


def test_the_watchdog_is_for_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "60000000")
    assert notify.watchdog_s() == 30
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid() + 1))
    assert notify.watchdog_s() is None
    monkeypatch.delenv("WATCHDOG_PID")
    monkeypatch.delenv("WATCHDOG_USEC")
    assert notify.watchdog_s() is None


def test_a_server_says_that_it_is_ready_and_that_it_stops(systemd: socket.socket, tmp_path: Path) -> None:
    with serving(tmp_path / "data") as (url, process):
        assert systemd.recv(100) == b"READY=1"
        ready(url)
        process.send_signal(signal.SIGHUP)  # systemctl reload, without a certificate
        ready(url)
        process.send_signal(signal.SIGTERM)
        assert systemd.recv(100) == b"STOPPING=1"
        wait_until(lambda: process.poll() is not None)
        assert process.returncode == 0
