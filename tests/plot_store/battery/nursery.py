"""A warm process that forks a child for each job, so that a job that may die costs milliseconds.

The warm process imports everything and loads the kernels once, with iolog.so preloaded and idle. A job is a
function of jobs.py; what it emits comes back line by line, also when it is killed half-way.

    with Nursery(iolog) as nursery:
        outcome = nursery.run("check", folder=…)
"""

from __future__ import annotations

import gc
import json
import os
import queue
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
PATIENCE_S = 60.0
AHEAD = 8  # queued jobs per process


@dataclass(frozen=True)
class Outcome:
    """The output of a job, and how it ended: signal 0 and error "" if well;
    `hung` if it had to be stopped."""

    lines: list[Any]
    signal: int
    error: str
    hung: bool

    @property
    def result(self) -> Any:
        """The last value that was emitted. Asserts that the job ended well."""
        assert self.well, self
        return self.lines[-1] if self.lines else None

    @property
    def trouble(self) -> str:
        """Why the job did not end well; "" if it did."""
        death = f"killed by signal {self.signal}" if self.signal else ""
        return "still running when its time was over" if self.hung else self.error or death

    @property
    def well(self) -> bool:
        return not self.trouble


class Nursery:
    """A warm process that runs one job at a time; not thread-safe."""

    def __init__(self, preload: Path | None) -> None:
        paths = [
            str(ROOT),
            str(ROOT / "kernels"),
            str(HERE.parent),
            str(HERE),
            *filter(None, [os.environ.get("PYTHONPATH")]),
        ]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
        if preload is not None:
            environment["LD_PRELOAD"] = str(preload)
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the process; closed by __exit__)
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "nursery.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            env=environment,
        )
        self._answer()

    def run(
        self, job: str, *, kill_after: float | None = None, patience: float = PATIENCE_S, **given: Any
    ) -> Outcome:
        """Run a job in a child; kill it (SIGKILL) if it still runs after `kill_after` seconds."""
        request = {"job": job, "kill_after": kill_after, "patience": patience, "given": given}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request, default=str) + "\n")
        self._process.stdin.flush()
        return Outcome(**self._answer())

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._said.seek(0)
            raise RuntimeError(f"the nursery died: {self._said.read().decode(errors='replace')[-3000:]}")
        return json.loads(line)

    def __enter__(self) -> Nursery:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE_S)
        self._said.close()


class Nurseries:
    """Several nurseries, for jobs that are independent of each other."""

    def __init__(self, preload: Path | None, count: int) -> None:
        # one after another: the first fills the kernels' cache
        self._all = [Nursery(preload) for _ in range(count)]
        self._idle: queue.Queue[Nursery] = queue.Queue()
        for nursery in self._all:
            self._idle.put(nursery)

    def run(self, job: str, **given: Any) -> Outcome:
        return self.lend(lambda nursery: nursery.run(job, **given))

    def lend(self, work: Callable[[Nursery], Any]) -> Any:
        """Call work(nursery) with an idle nursery."""
        nursery = self._idle.get()
        try:
            return work(nursery)
        finally:
            self._idle.put(nursery)

    def map(self, work: Callable[[Nursery, Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        """Call work(nursery, item) for each item on all nurseries; the results in order.
        Items are read as needed."""
        running: deque[Future[Any]] = deque()
        with ThreadPoolExecutor(len(self._all)) as pool:
            for item in items:
                if len(running) >= AHEAD * len(self._all):
                    yield running.popleft().result()
                running.append(pool.submit(self.lend, lambda nursery, item=item: work(nursery, item)))
            while running:
                yield running.popleft().result()

    def close(self) -> None:
        for nursery in self._all:
            nursery.__exit__(None, None, None)


# ---- inside the warm process ----


def _main() -> None:
    import jobs

    jobs.warm_up()
    gc.collect()
    gc.freeze()  # fewer pages are then copied into children
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print("{}", file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(_child(jobs, json.loads(line))), file=answers, flush=True)


def _child(jobs: Any, request: dict[str, Any]) -> dict[str, Any]:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _work(jobs, request, os.fdopen(writing, "w"))
    os.close(writing)
    hung = _listen(reading, lines := [], pid, request["kill_after"], request["patience"])
    status = os.waitpid(pid, 0)[1]
    died = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    complete = [json.loads(line) for line in b"".join(lines).split(b"\n")[:-1]]
    error = (
        complete.pop()["error"]
        if complete and isinstance(complete[-1], dict) and "error" in complete[-1]
        else ""
    )
    return {"lines": complete, "signal": died, "error": error, "hung": hung}


def _listen(fd: int, lines: list[bytes], pid: int, kill_after: float | None, patience: float) -> bool:
    """Collect the child's output until it ends; return whether it took too long and was stopped."""
    begun, killed, hung = time.monotonic(), False, False
    while True:
        left = (patience if kill_after is None or killed else kill_after) - (time.monotonic() - begun)
        if not select.select([fd], [], [], max(0.0, left))[0]:
            hung = kill_after is None or killed
            os.kill(pid, signal.SIGKILL)
            killed = True
            continue
        piece = os.read(fd, 1 << 16)
        if not piece:
            os.close(fd)
            return hung
        lines.append(piece)


def _work(jobs: Any, request: dict[str, Any], out: IO[str]) -> None:
    def emit(value: Any) -> None:
        print(json.dumps(value), file=out, flush=True)

    try:
        result = getattr(jobs, request["job"])(emit=emit, **request["given"])
        if result is not None:
            emit(result)
    except BaseException:
        emit({"error": traceback.format_exc()[-3000:]})
    finally:
        out.flush()
        os._exit(0)


if __name__ == "__main__":
    _main()
