"""Jobs that wait start as forks of one warm process, and are as apart as processes of their own."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from hmi.jobs.runtime.starter import IDLE_S, Starter
from tests.hmi.labs.runner_lab import BODIES, Lab, gone
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a template needs Linux")


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_jobs_that_wait_are_forks_of_one_process(lab: Lab) -> None:
    runner = lab.runner(workers=2)
    long = [lab.submit(runner, "count", steps=100_000, inputs={"data": b"rows"}) for _ in range(2)]
    dying = lab.submit(runner, "die")
    failing = lab.submit(runner, "fail")
    runner.start()
    pids = [lab.counting(job) for job in long]
    (template,) = {parent_of(pid) for pid in pids}
    assert template != os.getpid()
    assert [os.getsid(pid) for pid in pids] == pids, "a signal to one's group must not reach another"
    assert os.readlink(f"/proc/{pids[0]}/fd/0") == os.devnull
    runner.cancel(long[0])
    assert lab.end_of(long[0]).state == "cancelled"
    assert lab.end_of(failing).error == {
        "field": "data",
        "kind": "invalid_data",
        "message": "row 3: `label` is missing",
    }
    assert lab.end_of(dying).state == "failed", "it died five times, and nothing else with it"
    assert lab.registry.job(long[1]).state == "running"
    os.kill(template, signal.SIGKILL)
    assert gone(pids[1]), "the kernel ends the forks of a template that died"
    wait_until(lambda: lab.attempts(long[1])[-1][0] != pids[1])
    assert lab.attempts(long[1])[-1][1] > 0, "it goes on from its checkpoint"
    runner.stop()
    assert lab.registry.job(long[1]).state == "queued"


def test_forks_end_with_the_process_that_owns_the_template(lab: Lab) -> None:
    jobs = [lab.submit(lab.runner(0), "count", steps=100_000) for _ in range(2)]
    pid = os.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", OWNER, str(lab.settings.data)])
    try:
        pids = [lab.counting(job) for job in jobs]
        assert len({parent_of(each) for each in pids}) == 1
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert all(gone(each) for each in pids)


OWNER = f"""
import sys, time
from pathlib import Path
from hmi.config import Settings
from hmi.jobs.runtime.runner import JobRunner
from hmi.stores.records.registry import Registry
data = Path(sys.argv[1])
runner = JobRunner(Registry.open(data / "registry"), Settings(data=data), 2, bodies={BODIES!r})
runner.start()
time.sleep(600)
"""


def test_a_template_that_has_nothing_to_do_ends(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    starter = Starter(lab.settings, BODIES)
    runner = lab.runner(0)
    job = lab.submit(runner, "fail")
    process = starter.start(runner._folder(job), job, queued=5)
    assert process.wait(60)
    template = starter._template
    assert template is not None
    starter.rest()
    assert template.alive(), "it waits for more"
    monkeypatch.setattr("hmi.jobs.runtime.starter.IDLE_S", -1.0)
    assert IDLE_S > 0
    starter.rest()
    assert not template.alive()
    single = starter.start(runner._folder(job), job, queued=1)
    assert starter._template is None, "a single job needs none"
    assert single.wait(60)
    starter.close()
