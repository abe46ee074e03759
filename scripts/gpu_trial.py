"""Tries HMI on a GPU within four minutes, and writes a page of what it saw.

    python scripts/gpu_trial.py                     # on a machine with a GPU
    python scripts/gpu_trial.py --only limits       # repeats a step, and keeps what the others found
    python scripts/gpu_trial.py --device twin       # the same steps on a simulation, in small
    python scripts/gpu_trial.py --page              # writes the page again from the results

It needs Python, torch for CUDA, cupy, and the wheels that scripts/gpu_wheels.py has fetched, but no network.
The steps come in the order of their worth. Each has its own limit of time, and the next one follows whatever
becomes of it. Results are written after each: FOLDER/trial.json, and with the page docs/benchmarks/gpu.md.
This process imports neither torch nor HMI, so nothing that breaks there ends it.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
PAGE = HERE / "docs" / "benchmarks" / "gpu.md"
RESULTS = HERE / "docs" / "benchmarks" / "gpu"
WHEELS = HERE / ".gpu-wheels"
TOTAL_S = 240.0
"""The whole trial ends after this time."""
LIMITS_S = {
    "card": 30,
    "kernels": 50,
    "tests": 70,
    "server": 60,
    "timeline": 40,
    "throughput": 90,
    "ablation": 30,
    "limits": 40,
    "sanitizer": 35,
}
"""The steps, in the order of their worth, and the seconds that each may take."""
START_S = 75.0
"""The processes of steps may take this long to start on a machine on which nothing was loaded before."""
ENTRIES = ("lookup", "text", "planning", "rows", "shards", "encoder", "decoder")
"""The entries of hmi_kernels.compile that steps need. They compile at the same time."""
NOT_RUN: dict[str, Any] = {"state": "not run", "seconds": 0.0, "rows": [], "notes": [], "error": None}
ABOUT = {
    "card": "card, driver, versions",
    "kernels": "every kernel against its reference, whole executors",
    "tests": "the tests marked `gpu`",
    "server": "a server with tenants of mixed kinds and ranks, each asked alone and all at once",
    "timeline": "what overlaps: modules that travel while layers compute",
    "throughput": "many tenants beside one, and beside dedicated models",
    "ablation": "the paper's Table 6: each overlap left out",
    "limits": "look-up, layers and modules beside what the card can do",
    "sanitizer": "memory errors of the smallest look-ups",
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "twin"), default="cuda")
    parser.add_argument(
        "--only", nargs="+", choices=tuple(LIMITS_S), metavar="STEP", help=", ".join(LIMITS_S)
    )
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="FOLDER", help="for the results")
    parser.add_argument("--page", action="store_true", help="only write the page")
    given = parser.parse_args()
    if given.device == "cuda" and not given.page and not any(Path("/dev").glob("nvidia*")):
        parser.error("this machine has no NVIDIA device: --device twin runs the steps on a simulation")
    if given.device == "twin" and given.out == RESULTS:
        parser.error("the twin's figures mean nothing: give another --out")
    given.out.mkdir(parents=True, exist_ok=True)
    file = given.out / "trial.json"
    known = json.loads(file.read_text()) if file.exists() else {"steps": {}}
    if not given.page:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as work:
            env = environment(Path(work) / "site")
            Trial(given.device, given.out, Path(work), known, env).run(given.only or list(LIMITS_S))
    if given.out == RESULTS:
        PAGE.write_text(page(known))
    failed = [name for name, step in known["steps"].items() if step["state"] != "done"]
    wrong = [row["id"] for step in known["steps"].values() for row in step["rows"] if row["ok"] is False]
    print(f"steps that failed: {', '.join(failed) or 'none'}; goals missed: {', '.join(wrong) or 'none'}")
    return int(bool(failed))


def environment(site: Path) -> dict[str, str]:
    """Of all processes: the sources, and the packages of the wheels, unpacked into `site`."""
    path = [str(HERE / part) for part in ("", "kernels", "tests/kernels")]
    wheels = sorted(map(str, WHEELS.glob("*.whl")))
    if wheels and (sys.version_info[:2], sys.platform) == ((3, 12), "linux"):
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile"]
        if subprocess.run([*pip, "--target", str(site), *wheels]).returncode:
            print("the wheels could not be installed: steps that need them fail")
        path.append(str(site))
    path.append(os.environ.get("PYTHONPATH", ""))
    one = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    return {**os.environ, **one, "PYTHONPATH": os.pathsep.join(filter(None, path))}


class Trial:
    """One run of some steps. A worker process runs them one after another; if it dies or takes too long,
    another one goes on with the next step."""

    def __init__(
        self, device: str, out: Path, work: Path, known: dict[str, Any], env: dict[str, str]
    ) -> None:
        """out: for the results. work: an empty folder for all else. known: results of earlier runs, too."""
        self.device, self.out, self.work, self.known, self.env = device, out, work, known, env
        self.until = time.monotonic() + TOTAL_S

    def run(self, names: list[str]) -> None:
        behind = self._ahead(names)
        about = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "commit": commit()}
        for name in names:
            self.known["steps"][name] = copy.deepcopy(NOT_RUN) | about
        waiting = list(names)
        while waiting and time.monotonic() < self.until:
            waiting = self._worker(waiting)
        for process in behind:
            process.kill()
        self._write()

    def _ahead(self, names: list[str]) -> list[subprocess.Popen[bytes]]:
        """Begin what needs no device and takes long: kernels of the CPU, and the server's data folder."""
        commands = []
        if self.device == "cuda":
            commands = [["-m", "hmi_kernels.compile", entry] for entry in ENTRIES]
        if "server" in names:
            commands.append([str(HERE / "scripts" / "gpu_server.py"), "home", self.device, str(self.work)])
        return [subprocess.Popen([sys.executable, *command], env=self.env, cwd=HERE) for command in commands]

    def _worker(self, names: list[str]) -> list[str]:
        """Run steps in one process until one fails. Returns those that are left then."""
        read, write = os.pipe()
        given = (self.device, str(self.out), str(self.work), str(write), *names)
        steps = [str(HERE / "scripts" / "gpu_steps.py"), *given]
        worker = subprocess.Popen(
            [sys.executable, *steps], env=self.env, cwd=HERE, pass_fds=(write,), start_new_session=True
        )
        os.close(write)
        told, left, at, begun = Lines(read), list(names), None, time.monotonic()
        deadline = min(self.until, begun + START_S)
        while left and (line := told.next(deadline)) is not None:
            if "begins" in line:
                at, begun = line["begins"], time.monotonic()
                deadline = min(self.until, begun + LIMITS_S[at])
                print(f"{at}: {ABOUT[at]}", flush=True)
            elif "ended" in line:
                self._ended(line)
                left.remove(line["ended"])
                at, deadline = None, self.until
            else:
                self._found(at or left[0], line)
        with suppress(ProcessLookupError):
            os.killpg(worker.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):  # a process may hang in its driver
            worker.wait(timeout=5.0)
        took = time.monotonic() - begun
        if left and told.late:
            over = time.monotonic() >= self.until
            why = "the trial's time was over" if over else "it ran past its limit of time"
            self._failed(at or left[0], why, took)
        elif left and at is not None:
            self._failed(at, "its process died", took)
        elif left == names:
            self._failed(left[0], "the process of the steps did not start", took)
        return [name for name in left if self.known["steps"][name]["state"] == "not run"]

    def _found(self, name: str, line: dict[str, Any]) -> None:
        """Keep a figure or a note of a step at once: the step may not come to its end."""
        step = self.known["steps"][name]
        if (row := line.get("row")) is not None:
            step["rows"].append(row)
            print(f"  {row['id']}: {row['value']} {row['unit']}" + (f" ({row['why']})" if row["why"] else ""))
        else:
            step["notes"].append(line["note"])
        self._write()

    def _ended(self, line: dict[str, Any]) -> None:
        error = line["error"]
        step = self.known["steps"][line["ended"]]
        step |= {"seconds": line["seconds"], "error": error, "state": "failed" if error else "done"}
        if error:
            print(f"  {error}")
        self._write()

    def _failed(self, name: str, why: str, took: float) -> None:
        self.known["steps"][name] |= {"state": "failed", "error": why, "seconds": round(took, 2)}
        print(f"  {name}: {why}", flush=True)
        self._write()

    def _write(self) -> None:
        aside = self.out / "trial.json.tmp"
        aside.write_text(json.dumps(self.known, indent=1) + "\n")
        aside.replace(self.out / "trial.json")


class Lines:
    """JSON objects, one a line, each waited for until a deadline."""

    def __init__(self, pipe: int) -> None:
        self.late = False
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, args=(pipe,), daemon=True).start()

    def _read(self, pipe: int) -> None:
        with os.fdopen(pipe) as file:
            for line in file:
                self._lines.put(line)
        self._lines.put(None)

    def next(self, deadline: float) -> dict[str, Any] | None:
        """The next one; None at the end, or if it is late."""
        try:
            line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            self.late = True
            return None
        return None if line is None else json.loads(line)


def commit() -> str | None:
    """The commit of the checkout, if it is one."""
    try:
        asked = subprocess.run(["git", "-C", str(HERE), "rev-parse", "HEAD"], capture_output=True, text=True)
    except OSError:
        return None
    return asked.stdout.strip() or None


def page(known: dict[str, Any]) -> str:
    """The page of results, in Markdown."""
    steps = known["steps"]
    lines = [
        "# On a GPU",
        "",
        "`make gpu-trial` runs the steps below within four minutes and writes this page; "
        "`scripts/gpu_trial.py --device twin` runs them on a simulation, and `make test` does that. "
        "Weights are random, of the shapes of MiniLM, MPNet and BERT-base.",
        "",
        "The columns say what was seen when. docs/design/0011-cuda-path.md says what the first runs showed."
        if steps
        else "**No GPU has been at hand yet.** The columns are empty.",
        "",
        "| step | what | state | seconds | when, commit |",
        "|---|---|---|---|---|",
    ]
    every = {name: steps.get(name, NOT_RUN) for name in ABOUT}
    for name, step in every.items():
        when = f"{step.get('date', '')} {(step.get('commit') or '')[:12]}"
        lines.append(f"| {name} | {ABOUT[name]} | {step['state']} | {step['seconds']:.0f} | {when.strip()} |")
    seen = {row["id"]: row for step in every.values() for row in step["rows"]}
    lines += ["", "## Goals", "", "| figure | goal | seen | |", "|---|---|---|---|"]
    lines += [
        f"| {what} | {sign} {goal:g} | {shown(seen.get(id))} | {verdict(seen.get(id))} |"
        for id, what, sign, goal in GOALS
    ]
    for name, step in every.items():
        if not step["rows"] and not step["notes"] and not step["error"]:
            continue
        lines += ["", f"## {name}: {ABOUT[name]}", ""]
        if step["rows"]:
            lines += ["| figure | value | goal | beside, or why not |", "|---|---|---|---|"]
            lines += [
                f"| {row['id']} | {shown(row)} | {'' if row['goal'] is None else format(row['goal'], 'g')} | "
                f"{row['peer'] or row['why'] or ''} |"
                for row in step["rows"]
            ]
        lines += ["", *(f"- {' '.join(note.split())}" for note in step["notes"])] if step["notes"] else []
        lines += ["", "```", step["error"].strip(), "```"] if step["error"] else []
    return "\n".join(lines) + "\n"


GOALS = (
    ("server_answers_of_another_tenant", "answers of another tenant, all at once", "=", 0),
    ("gpu_over_dedicated", "throughput ÷ 16 dedicated models on HMI's executor (paper: 2.31)", "≥", 3.0),
    ("gpu_over_transformers", "throughput ÷ 16 dedicated models of transformers", "≥", 3.0),
    ("gpu_full_over_neither", "both overlaps together (paper: 1.2)", "≥", 1.25),
    ("gpu_10000_tenants_over_one", "throughput with 10,000 tenants ÷ with one", "≥", 0.95),
    ("gpu_modules_over_none", "time with 64 tenants in 64 texts ÷ without modules", "≤", 1.05),
    ("gpu_lookup_over_bandwidth", "look-up's bytes a second ÷ a copy's", "≥", 0.6),
    ("gpu_layers_over_matmul_peak", "layers' FLOP/s ÷ a large product's in bf16", "≥", 0.7),
)


def shown(row: dict[str, Any] | None) -> str:
    return "–" if row is None or row["value"] is None else f"{row['value']:,} {row['unit']}".strip()


def verdict(row: dict[str, Any] | None) -> str:
    return "" if row is None or row["ok"] is None else "reached" if row["ok"] else "**missed**"


if __name__ == "__main__":
    sys.exit(main())
