"""A job's process ends when its parent ends, from its first moment and whatever it is doing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hmi.jobs.runtime.parent_death import ORPHANED
from tests.hmi.labs.server_lab import REPO
from tests.waiting import wait_until

LIMIT_S = 60.0
BUSY = {
    "waiting": "time.sleep(600)",
    # The matching backtracks for ever and never lets another thread run.
    "holding the interpreter's lock": "re.match('(a+)+$', 'a' * 64 + 'b')",
}


@pytest.mark.parametrize("busy", BUSY)
def test_a_job_that_is_still_importing_dies_with_its_parent(tmp_path: Path, busy: str) -> None:
    if busy != "waiting" and sys.platform != "linux":
        pytest.skip("only Linux sends a signal for a pipe that closes")
    begun = tmp_path / "begun"
    (tmp_path / "slow_bodies.py").write_text(
        f"import pathlib, re, time\npathlib.Path({str(begun)!r}).touch()\n{BUSY[busy]}\n"
    )
    options = ["--data", str(tmp_path / "d"), "--bodies", "slow_bodies:BODIES"]
    command = [sys.executable, "-m", "hmi.jobs", *options, "j"]
    env = {"PYTHONPATH": f"{REPO}:{REPO / 'kernels'}:{tmp_path}", "PATH": ""}
    with subprocess.Popen(command, stdin=subprocess.PIPE, cwd=tmp_path, env=env) as job:
        try:
            wait_until(lambda: begun.exists() or job.poll() is not None, LIMIT_S)
            assert job.poll() is None
            assert job.stdin is not None
            job.stdin.close()  # as the operating system does when the parent dies
            assert job.wait(LIMIT_S) != 0
        finally:
            job.kill()
    assert not (tmp_path / "d").exists()


def test_a_parent_that_is_gone_already_is_noticed() -> None:
    code = (
        "import time\n"
        "from hmi.jobs.runtime.parent_death import die_with_parent\n"
        "die_with_parent()\n"
        "time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, cwd=REPO) as job:
        try:
            assert job.stdin is not None
            job.stdin.close()
            assert job.wait(LIMIT_S) == ORPHANED
        finally:
            job.kill()


def test_without_a_pipe_nothing_is_watched() -> None:
    code = "from hmi.jobs.runtime.parent_death import die_with_parent\ndie_with_parent()\nprint('alive')"
    command = [sys.executable, "-c", code]
    assert subprocess.check_output(command, stdin=subprocess.DEVNULL, cwd=REPO, text=True) == "alive\n"
