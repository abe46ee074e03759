"""Answers before and after a rebuild: record what one tree of sources answers, then compare with another's.

    python -m tests.hmi.recorded make DATA --sets FOLDER          a data folder with models of every task
    python -m tests.hmi.recorded record DATA OUT --tree OLD       requests and their answers as JSON lines
    python -m tests.hmi.recorded record DATA OUT2 --tree NEW
    python -m tests.hmi.recorded compare OUT OUT2                 exits with 1 where they differ

FOLDER holds labelled sets as NAME/train.jsonl.gz: SETS names those that are read. `--tree` is the folder of
the sources whose `python -m hmi serve` runs; left out, it is the one that this file lies in. A newer server
may change the format of the data folder, so give each tree a copy of DATA. Files that end in .gz are packed.
Only HTTP and the command line are used, so this one file drives old and new trees alike. The requests depend
on DATA and the seed alone; one that the server is too busy for (429, 503) is sent again. Timing and request
ids are left out of what is recorded.
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import IO, Any

from tests.hmi.recorded_calls import requests
from tests.hmi.recorded_data import fill, rows_of

Json = Any
HERE = Path(__file__).resolve().parents[2]
WHOLE = ("scores", "stored")
"""Numbers below these fields are counted under the field's name, not under their own."""


def packed(path: Path, mode: str) -> IO[str]:
    """Open the text file at `path`, through gzip if its name ends in .gz."""
    return (
        gzip.open(path, mode, encoding="utf-8") if path.suffix == ".gz" else path.open(mode, encoding="utf-8")
    )  # type: ignore[return-value]


@contextmanager
def served(tree: Path, data: Path, workers: int) -> Iterator[int]:
    """Run a server of `tree` on `data` and yield its port once it is ready."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    command = [sys.executable, "-m", "hmi", "serve", f"--data={data.resolve()}", f"--port={port}"]
    kept = {name for name in os.environ if not name.startswith("HMI_") or name == "HMI_PRECISION"}
    env = {name: os.environ[name] for name in kept}
    env["PYTHONPATH"] = f"{tree}{os.pathsep}{tree / 'kernels'}"
    server = subprocess.Popen([*command, f"--job-workers={workers}"], cwd=tree, env=env)
    try:
        while not _ready(port):
            if server.poll() is not None:
                raise SystemExit(f"the server of {tree} ended with {server.returncode}: see above")
            time.sleep(0.2)
        yield port
    finally:
        server.terminate()
        server.wait(60)


def _ready(port: int) -> bool:
    try:
        return call(port, "GET", "/readyz", again=False)[0] == 200
    except OSError:
        return False


def call(
    port: int, method: str, path: str, body: str | None = None, *, again: bool = True
) -> tuple[int, Json]:
    """Send a request: (status, answer). With `again`, a server that is busy is
    asked again for some minutes."""
    for attempt in range(1000 if again else 1):
        time.sleep(0.2 if attempt else 0)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        connection.request(
            method, path, None if body is None else body.encode(), {"Content-Type": "application/json"}
        )
        answer = connection.getresponse()
        status, text = answer.status, answer.read()
        connection.close()
        if status not in (429, 503):
            break
    return status, json.loads(text) if text else None


def make(data: Path, sets: Path, tree: Path) -> None:
    """Fill the data folder; DATA/recorded.json then says what to ask."""
    with served(tree, data, 2) as port:

        def ask(method: str, path: str, body: Json = None) -> Json:
            status, answer = call(port, method, path, None if body is None else json.dumps(body))
            if status >= 400:
                raise SystemExit(f"{method} {path} {body}: {answer}")
            return answer

        known = fill(ask, data / "uploads", rows_of(sets))
    (data / "recorded.json").write_text(json.dumps(known), encoding="utf-8")


def record(data: Path, out: Path, tree: Path, count: int, seed: int, clients: int) -> None:
    """Send the calls and write them with their answers, in order."""
    known = json.loads((data / "recorded.json").read_text(encoding="utf-8"))
    calls, texts = Counter[str](), Counter[str]()
    begun = time.monotonic()
    with served(tree, data, 0) as port, ThreadPoolExecutor(clients) as pool, packed(out, "wt") as file:
        sent = list(requests(known, count, seed))
        answers = pool.map(lambda one: call(port, *one[1:]), sent)
        for (what, method, path, body), (status, answer) in zip(sent, answers, strict=True):
            line = {"what": what, "method": method, "path": path, "body": body, "status": status}
            file.write(json.dumps({**line, "answer": bare(answer)}) + "\n")
            calls[f"{'mixed' if '+' in what else what} {status}"] += 1
            if status == 200 and method == "POST":
                several = answer if isinstance(answer, list) else [answer]
                for task, each in zip(what.split("+"), several, strict=True):
                    texts[task] += len(each["outputs"])
    print(f"{count} calls in {time.monotonic() - begun:.0f} s: {dict(sorted(calls.items()))}")
    print(f"{texts.total()} texts answered: {dict(sorted(texts.items()))}")


def bare(answer: Json) -> Json:
    """An answer without the parts that differ from run to run."""
    if isinstance(answer, list):
        return [bare(each) for each in answer]
    if isinstance(answer, dict):
        return {name: bare(value) for name, value in answer.items() if name not in ("timing", "request_id")}
    return answer


@dataclass
class Differences:
    """The differences of two recordings: `wrong` holds those that must not be; numbers are only counted."""

    tolerance: float
    wrong: list[str] = field(default_factory=list)
    numbers: Counter[str] = field(default_factory=Counter)
    unequal: Counter[str] = field(default_factory=Counter)
    greatest: dict[str, float] = field(default_factory=dict)

    def look(self, a: Json, b: Json, place: str, name: str = "") -> None:
        """Compare two answers; `name` is the name of the innermost field."""
        if isinstance(a, float) and isinstance(b, float):
            self.numbers[name] += 1
            self.unequal[name] += a != b
            self.greatest[name] = max(self.greatest.get(name, 0.0), abs(a - b))
            if not abs(a - b) <= self.tolerance:
                self.wrong.append(f"{place}: {a!r} and {b!r}")
        elif isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
            for key in a:
                self.look(a[key], b[key], f"{place}.{key}", name if name in WHOLE else key)
        elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
            for i, (one, other) in enumerate(zip(a, b, strict=True)):
                self.look(one, other, f"{place}[{i}]", name)
        elif type(a) is not type(b) or a != b:
            self.wrong.append(f"{place}: {str(a)[:200]!r} and {str(b)[:200]!r}")


def compare(a: Path, b: Path, tolerance: float = 1e-5, shown: int = 10) -> int:
    """Print the differences; 1 if any must not be, else 0."""
    found, total, bits, asked = Differences(tolerance), 0, 0, ("what", "method", "path", "body")
    with packed(a, "rt") as first, packed(b, "rt") as second:
        for total, (left, right) in enumerate(zip_longest(first, second), 1):
            one, other = (None if line is None else json.loads(line) for line in (left, right))
            if one is None or other is None or any(one[name] != other[name] for name in asked):
                found.wrong.append(
                    f"line {total}: not the same request: record both with the same data and seed"
                )
                break
            bits += left == right
            place, name = f"line {total} {one['path']}", "stored" if one["what"] == "stored" else ""
            found.look([one["status"], one["answer"]], [other["status"], other["answer"]], place, name)
    for name, count in sorted(found.numbers.items()):
        same = count - found.unequal[name]
        print(f"{name}: {same} of {count} numbers bit-equal, greatest difference {found.greatest[name]:.3g}")
    print(f"{bits} of {total} answers bit-equal, {len(found.wrong)} mismatches")
    for line in found.wrong[:shown]:
        print(line)
    return 1 if found.wrong or not total else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("make", "record"):
        command = commands.add_parser(name)
        command.add_argument("data", type=Path)
        command.add_argument("--tree", type=Path, default=HERE)
    commands.choices["make"].add_argument("--sets", type=Path, required=True)
    command.add_argument("out", type=Path)
    for name, default in (("requests", 5000), ("seed", 7), ("clients", 8)):
        command.add_argument(f"--{name}", type=int, default=default)
    command = commands.add_parser("compare")
    command.add_argument("a", type=Path)
    command.add_argument("b", type=Path)
    command.add_argument("--tolerance", type=float, default=1e-5)
    given = parser.parse_args()
    if given.command == "make":
        make(given.data, given.sets, given.tree.resolve())
    elif given.command == "record":
        record(given.data, given.out, given.tree.resolve(), given.requests, given.seed, given.clients)
    else:
        return compare(given.a, given.b, given.tolerance)
    return 0


if __name__ == "__main__":
    sys.exit(main())
