"""Background jobs give way to calls: real processes, stopped and continued by a real event loop."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hmi.config import Settings
from hmi.core import Pacing
from hmi.jobs.runtime import pacing
from hmi.jobs.runtime.board import Board, read_pacing
from hmi.jobs.runtime.folders import JobFolder
from hmi.jobs.runtime.pacing import Pacer
from hmi.jobs.runtime.runner import JobRunner
from hmi.jobs.runtime.starter import Child
from hmi.stores.layout import wait_lock
from plot_store.ground.holding import HOLDING, Holding
from tests.hmi.labs.runner_lab import BODIES, Lab, gone
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the states from /proc")
LONG: dict[str, Any] = {"steps": 100_000}


def stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


class Sleeper:
    """A process that sleeps, as a job's process that can be paused."""

    def __init__(self) -> None:
        self._process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        self.pid = self._process.pid

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def known_to_have_ended(self) -> bool:
        return self._process.returncode is not None

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def sleeper() -> Iterator[Sleeper]:
    made = Sleeper()
    yield made
    made.end()


@pytest.fixture
def board(tmp_path: Path) -> Board:
    return Board.new(tmp_path / "pacing")


@contextmanager
def serving(pacer: Pacer) -> Iterator[asyncio.AbstractEventLoop]:
    """Run an event loop that paces, as a server's does, in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        _on(loop, pacer.watch)
        yield loop
    finally:
        pacer.close()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _on(loop: asyncio.AbstractEventLoop, work: Callable[[], None]) -> None:
    async def run() -> None:
        work()

    asyncio.run_coroutine_threadsafe(run(), loop).result()


@contextmanager
def calling(loop: asyncio.AbstractEventLoop, pacer: Pacer) -> Iterator[None]:
    """Let a call be under way while the context is open."""
    _on(loop, pacer.__enter__)
    try:
        yield
    finally:
        _on(loop, lambda: pacer.__exit__(None, None, None))


def test_a_process_stands_still_while_a_call_is_under_way(sleeper: Sleeper, board: Board) -> None:
    pacer = Pacer(0)
    with serving(pacer) as loop:
        pacer.add("j", sleeper, board)
        with calling(loop, pacer):
            wait_until(lambda: stopped(sleeper.pid))
            with calling(loop, pacer):
                pass
            assert stopped(sleeper.pid), "another call is still under way"
        wait_until(lambda: not stopped(sleeper.pid))
        totals = pacer.totals()
        assert totals.jobs == 1
        assert totals.paused_s > 0
    assert pacer.totals().jobs == 0
    assert pacer.totals().paused_s >= totals.paused_s, "jobs that have ended count, too"


def test_a_process_that_holds_a_lock_is_not_stopped(sleeper: Sleeper, board: Board) -> None:
    pacer = Pacer(0)
    board.set_holding(True)
    with serving(pacer) as loop:
        pacer.add("j", sleeper, board)
        with calling(loop, pacer):
            _on(loop, lambda: None)
            assert not stopped(sleeper.pid)
            board.set_holding(False)
            wait_until(lambda: stopped(sleeper.pid))
            # As if it had taken the lock just before the signal came.
            board.set_holding(True)
            wait_until(lambda: not stopped(sleeper.pid))


def test_a_server_that_is_never_idle_lets_a_job_run_now_and_then(
    sleeper: Sleeper, board: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pacing, "WINDOW_S", 0.5)
    monkeypatch.setattr(pacing, "STARVED", 0.6)
    pacer = Pacer(30)
    with serving(pacer) as loop, calling(loop, pacer):
        pacer.add("j", sleeper, board)
        wait_until(lambda: stopped(sleeper.pid))
        wait_until(lambda: not stopped(sleeper.pid))
        wait_until(lambda: stopped(sleeper.pid))
        wait_until(lambda: pacer.totals().starved == 1)
        found = read_pacing(tmp_path / "pacing")
        assert found is not None
        assert found.starved
        assert 0 < found.running_ms < found.paused_ms


def test_at_100_percent_nothing_is_paused(sleeper: Sleeper, board: Board) -> None:
    pacer = Pacer(100)
    with serving(pacer) as loop:
        pacer.add("j", sleeper, board)
        with calling(loop, pacer):
            _on(loop, lambda: None)
            assert pacer.totals().jobs == 0
            assert not stopped(sleeper.pid)


def test_a_job_that_nobody_paces_any_more_goes_on(sleeper: Sleeper, board: Board) -> None:
    pacer = Pacer(0)
    with serving(pacer) as loop, calling(loop, pacer):
        pacer.add("j", sleeper, board)
        wait_until(lambda: stopped(sleeper.pid))
        pacer.remove("j")
        wait_until(lambda: not stopped(sleeper.pid))
        assert pacer.totals().jobs == 0


def test_a_process_that_has_ended_is_paced_no_more(sleeper: Sleeper, board: Board) -> None:
    pacer = Pacer(0)
    with serving(pacer):
        pacer.add("j", sleeper, board)
        wait_until(lambda: pacer.totals().jobs == 1)
        before = pacer.totals()
        sleeper.end()
        wait_until(lambda: pacer.totals().jobs == 0)
        assert pacer.totals().running_s >= before.running_s, "its time stays in the totals"


def test_without_a_server_nothing_is_paced(sleeper: Sleeper, board: Board) -> None:
    pacer = Pacer(0)
    pacer.add("j", sleeper, board)
    with pacer:
        assert pacer.totals().jobs == 0
        assert not stopped(sleeper.pid)
    pacer.close()


def test_an_unreadable_board_has_no_times(tmp_path: Path) -> None:
    (tmp_path / "pacing").write_bytes(b"short")
    assert read_pacing(tmp_path / "pacing") is None
    assert read_pacing(tmp_path / "absent") is None
    board = Board.new(tmp_path / "pacing")
    board.set_times(1.5, 0.25, False)
    assert read_pacing(tmp_path / "pacing") == Pacing(running_ms=1500, paused_ms=250, starved=False)


def test_nested_blocks_hold_until_the_last_one_ends() -> None:
    holding, told = Holding(), list[bool]()
    with holding:  # nobody watches yet, so nobody is told
        pass
    holding.watch(told.append)
    with holding, holding:
        assert told == [True]
    assert told == [True, False]


def test_what_may_hold_up_others_is_told(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[bool] = []
    monkeypatch.setattr(HOLDING, "_tell", told.append)
    works: dict[str, Callable[[], object]] = {
        "a transaction that reads": lambda: lab.registry.jobs(),
        "one that writes": lambda: lab.registry.drop_ended_jobs(),
    }
    for what, work in works.items():
        told.clear()
        work()
        assert told[:2] == [True, False], what
        assert told[-1] is False, what
    told.clear()
    with wait_lock(tmp_path / "lock"):
        assert told == [True]
    assert told == [True, False]


class Background:
    """A data folder all of whose jobs are in the background."""

    def __init__(self, lab: Lab) -> None:
        self.lab, lab.settings = lab, replace(lab.settings, background_jobs="all", background_percent=0)
        self.runner: JobRunner = lab.runner()

    def counting(self) -> tuple[str, int]:
        """Start a job that counts. Returns its name and its process."""
        job = self.lab.submit(self.runner, "count", **LONG)
        return job, self.lab.counting(job)


@pytest.fixture
def background(lab: Lab) -> Background:
    return Background(lab)


def test_a_background_job_is_paused_and_holds_up_nobody(background: Background) -> None:
    with serving(background.runner.pacer) as loop:
        background.runner.start()
        job, pid = background.counting()
        assert os.getpgid(pid) == pid, "Ctrl-C is not meant for it"
        assert os.getsid(pid) == os.getsid(0), "a session of its own would have an equal share"
        with calling(loop, background.runner.pacer):
            wait_until(lambda: stopped(pid))
            # It holds nothing: others write to the registry without waiting for it.
            background.lab.registry.update_job(job, lambda r: r)
            wait_until(lambda: (background.runner.read_pacing(job) or NEVER).paused_ms > 0)
        background.runner.stop()


NEVER = Pacing(running_ms=0, paused_ms=0, starved=False)


def test_a_paused_job_can_be_cancelled(background: Background) -> None:
    with serving(background.runner.pacer) as loop:
        background.runner.start()
        job, pid = background.counting()
        with calling(loop, background.runner.pacer):
            wait_until(lambda: stopped(pid))
            # Times are in whole milliseconds, and a job may be cancelled within its first one.
            wait_until(lambda: (background.runner.read_pacing(job) or NEVER).paused_ms > 0)
            background.runner.cancel(job)
            record = background.lab.end_of(job)
        assert record.state == "cancelled"
        assert record.cost is not None
        assert record.cost.paused_ms > 0
        wait_until(lambda: background.runner.read_pacing(job) is None)
        background.runner.stop()


def test_a_paused_job_goes_back_to_the_queue_when_the_server_stops(background: Background) -> None:
    with serving(background.runner.pacer) as loop:
        background.runner.start()
        job, pid = background.counting()
        with calling(loop, background.runner.pacer):
            wait_until(lambda: stopped(pid))
            background.runner.stop()
        record = background.lab.registry.job(job)
        assert (record.state, record.attempts) == ("queued", 0), "it stopped in order"


def test_a_paused_job_that_is_asked_to_stop_does(background: Background) -> None:
    """Ask the job to stop, as when a job that somebody waits for needs the place."""
    runner = background.runner
    with serving(runner.pacer) as loop:
        runner.start()
        job, pid = background.counting()
        with calling(loop, runner.pacer):
            wait_until(lambda: stopped(pid))
            runner._children[job].terminate()
            assert gone(pid)
        runner.stop()


def test_a_paused_job_dies_with_its_server(lab: Lab) -> None:
    job = lab.submit(lab.runner(0), "count", **LONG)
    folder = JobFolder(lab.layout.jobs, job)
    Board.new(folder.board)
    child = Child(Settings(data=lab.settings.data), folder, job, BODIES, background=True)
    try:
        wait_until(lambda: os.getpriority(os.PRIO_PROCESS, child.pid) == 19)
        child.pause()
        wait_until(lambda: stopped(child.pid))
        assert child._process.stdin is not None
        child._process.stdin.close()  # as the operating system does when the server dies
        assert gone(child.pid)
    finally:
        child.kill()
