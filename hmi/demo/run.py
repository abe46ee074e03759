"""The demo from end to end: text, server, roots, branches, tenants, requests, table, an example call."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import platform
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from hmi import __version__
from hmi.client import Client
from hmi.client.errors import Unreachable
from hmi.core import now
from hmi.demo import baseline, onboard
from hmi.demo.baseline import Dedicated, mean_ratio, ratio
from hmi.demo.dataset import Amounts
from hmi.demo.folder import TenantFolder, TextFolder, read_folder, read_rows
from hmi.demo.measure import TenantResult, inputs_of, measure, writing_body
from hmi.demo.steps import Steps
from hmi.demo.texts import prepare
from hmi.errors import Conflict, Unavailable
from hmi.model.files import write_bytes, write_json

_HOST = "127.0.0.1"
_USUAL_PORT = 8080
_READY_S = 300  # the first start of an installation compiles
_DRAIN_S = 60
_TIMEOUT_S = 120
_MOST_WORKERS = 8
_PR_SET_PDEATHSIG = 1


@contextmanager
def _running(data: Path, log: Path, port: int | None, key: str | None) -> Iterator[Client]:
    """Run `hmi serve` on `data` while the context is open, then stop it with SIGTERM."""
    port = port or _free_port()
    workers = max(1, min(_MOST_WORKERS, os.cpu_count() or 1))
    command = [
        sys.executable,
        "-m",
        "hmi",
        "serve",
        "--data",
        str(data),
        "--host",
        _HOST,
        "--port",
        str(port),
    ]
    command += ["--job-workers", str(workers)]
    # The table is about first versions, and the demo is to end when they are ready.
    env = {"HMI_IMPROVE": "false", **os.environ}
    with log.open("ab") as sink:
        # The server has a session of its own, so that Ctrl-C reaches only the demo, which stops the server.
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        )
    try:
        client = Client(f"http://{_HOST}:{port}", key, timeout_s=_TIMEOUT_S, compress=None)
        _wait_ready(child, client, log)
        yield client
    except Unreachable as error:
        raise Unavailable(f"{client.config.url} does not answer ({error.__cause__}): see {log}") from error
    finally:
        _stop(child)


def _wait_ready(child: subprocess.Popen[bytes], client: Client, log: Path) -> None:
    until = time.monotonic() + _READY_S
    while not client.ready():
        if child.poll() is not None:
            raise Unavailable(f"the server ended at once: {_last_words(log)} (all of it: {log})")
        if time.monotonic() > until:
            raise Unavailable(f"the server was not ready within {_READY_S} s: see {log}")
        time.sleep(0.2)


def _stop(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(_DRAIN_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        child.kill()
        child.wait()


def _free_port() -> int:
    """Return the usual port if it is free, else any free port."""
    for port in (_USUAL_PORT, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((_HOST, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise Unavailable("no port of this machine is free: end a program that listens, or give --port")


def _last_words(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return " ".join(lines[-3:]) or "it logged nothing"


def _die_with_parent() -> None:
    """End this process when the demo dies, so that a killed demo leaves no server behind."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


_SHOWN_CHARACTERS = 160
_MEASURES = {"entity F1": " F1", "exact match": " EM"}
"""What stands after a score in the table, unless it is an accuracy."""


def _print_table(steps: Steps, rows: Sequence[TenantResult]) -> None:
    """Print a line for each tenant. Hits are shares of tokens answered by trigrams, bigrams and unigrams."""
    table = Table(
        title="Every tenant's test set, sent as requests",
        caption="score: % right; F1: of the entities of tagging; EM: % of texts written exactly as expected",
    )
    for title in ("tenant.model", "domain", "task", "what it answers"):
        table.add_column(title, overflow="fold")
    for title in ("score", "tri/bi/uni %", "p50 ms", "p95 ms", "KB", "answered"):
        table.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        hits = "/".join(f"{100 * row.hits[order]:.0f}" for order in ("trigram", "bigram", "unigram"))
        score = f"{100 * row.value:.1f}{_MEASURES.get(row.metric, '')}"
        table.add_row(
            *(row.model, row.domain, row.task, row.about, score, hits),
            *(f"{row.p50_ms:.1f}", f"{row.p95_ms:.1f}", f"{row.bytes / 1000:.0f}"),
            f"{row.rows}/{row.rows + row.failed}",
        )
    steps.console.print(table)
    for row in rows:
        for error in row.errors:
            steps.say(f"{row.model} did not answer: {error}")


def _print_baseline(steps: Steps, rows: Sequence[TenantResult], dedicated: Sequence[Dedicated]) -> None:
    """Print the tenants' scores, and their ratios to those of dedicated copies of the source model."""
    table = Table(title="Against a dedicated copy, fully fine-tuned on the same rows with the same seed")
    for title in ("tenant.model", "score", "dedicated", "ratio", "learning rate", "epoch", "MB of the copy"):
        table.add_column(title, justify="left" if title == "tenant.model" else "right")
    values = {row.model: row.value for row in rows}
    for copy in dedicated:
        table.add_row(
            *(copy.model, f"{100 * values[copy.model]:.1f}", f"{100 * copy.test:.1f}"),
            *(f"{ratio(values, copy):.3f}", f"{copy.lr:g}", str(copy.epoch), f"{copy.bytes / 1e6:.0f}"),
        )
    steps.console.print(table)
    steps.say(f"mean ratio {mean_ratio(values, dedicated):.3f}")


def _save(
    path: Path, steps: Steps, rows: Sequence[TenantResult], dedicated: Sequence[Dedicated] = ()
) -> None:
    """Write all figures to `path`."""
    values = {row.model: row.value for row in rows}
    body: dict[str, Any] = {
        "demo": __version__,
        "date": now(),
        "machine": {
            "cpus": os.cpu_count(),
            "processor": platform.machine(),
            "python": platform.python_version(),
        },
        "steps_s": steps.times,
        "tenants": [asdict(row) for row in rows],
    }
    if dedicated:
        copies = [{**asdict(copy), "ratio": round(ratio(values, copy), 4)} for copy in dedicated]
        body["baseline"] = {"mean_ratio": round(mean_ratio(values, dedicated), 4), "copies": copies}
    write_json(path, body)


def _print_tries(steps: Steps, client: Client, tenants: Sequence[TenantFolder], keys: Path) -> None:
    """Print the address and, of a model that labels and of one that writes, a call with its real answer."""
    steps.console.print(f"[bold]Serving on {client.config.url}[/bold]", highlight=False)
    steps.say(f"the tenants' keys are in {keys}; calls from this machine need no key, such as")
    for writes in (False, True):
        for tenant in [tenant for tenant in tenants if tenant.writes == writes][:1]:
            _print_try(steps, client, tenant)


def _print_try(steps: Steps, client: Client, tenant: TenantFolder) -> None:
    row = read_rows(tenant.test)[0]
    body = writing_body(tenant, row) if tenant.writes else {"inputs": _short(inputs_of(row))}
    path = f"/{'generate' if tenant.writes else 'infer'}/{tenant.id}"
    answer: Mapping[str, Any] = client.request("POST", path, body)
    data = shlex.quote(json.dumps(body, ensure_ascii=False))
    for line in (
        f"curl -s {client.config.url}{path} -H 'Content-Type: application/json' -d {data}",
        json.dumps(answer, ensure_ascii=False),
    ):
        steps.console.print(line, highlight=False, markup=False, soft_wrap=True)


def _short(row: dict[str, Any]) -> Any:
    """Return an input that fits on a command line; a text is cut at a word."""
    if set(row) == {"text"}:
        text = str(row["text"])
        return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS].rsplit(" ", 1)[0]
    return [row]


@dataclass(frozen=True)
class DemoOptions:
    """The options of the command line. `text` None takes text wheels from the package index."""

    data: Path
    text: Path | None = None
    amounts: Amounts = field(default_factory=Amounts)
    port: int | None = None
    key: str | None = None
    """An administrator's key, if the data folder has one."""
    ci: bool = False
    baseline: bool = False


def run(options: DemoOptions, console: Console) -> int:
    """Run the demo.

    Returns the exit status, 1 if a tenant did not answer. Raises HmiError, KeyboardInterrupt.
    """
    home = options.data / "demo"
    home.mkdir(parents=True, exist_ok=True)
    steps = Steps(console, total=5 + options.baseline)
    # SIGTERM ends the demo as Ctrl-C does, so that the server is stopped in order.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with steps.step("Real text"):
        text = (
            prepare(home, options.amounts, steps.say) if options.text is None else read_folder(options.text)
        )
        mark = _claim(home, text)
        steps.say(f"{len(text.tenants)} tenants, {len(text.branches)} domains")
    keys = onboard.TenantKeyFile(home / "keys.json")
    with _running(options.data, home / "server.log", options.port, options.key) as client:
        measured = _over_http(client, text, home, keys, steps)
        _print_table(steps, measured)
        _save(home / "result.json", steps, measured)
        if options.baseline:
            with steps.step("Dedicated copies, fully fine-tuned"):
                copies = baseline.train_dedicated(
                    baseline.choose(text.tenants), home / "baseline.json", mark, steps
                )
            _print_baseline(steps, measured, copies)
            _save(home / "result.json", steps, measured, copies)
        steps.say(f"all figures: {home / 'result.json'}")
        silent = [row.model for row in measured if row.failed or not row.rows]
        if silent:
            steps.say(f"not every request was answered: {', '.join(silent)}; see {home / 'server.log'}")
        else:
            _print_tries(steps, client, text.tenants, home / "keys.json")
        if not options.ci:
            _serve_on(steps)
    return 1 if silent else 0


def _over_http(
    client: Client, text: TextFolder, home: Path, keys: onboard.TenantKeyFile, steps: Steps
) -> list[TenantResult]:
    with steps.step("Root models and a PLOT"):
        onboard.import_roots(client, text, home, steps)
    with steps.step("Domain branches"):
        onboard.create_branches(client, text, steps)
    with steps.step(f"{len(text.tenants)} tenants, each with a model of its own"):
        onboard.create_tenants(client, text.tenants, keys, steps)
    with steps.step("Every test row as a request"):
        return measure(client, text.tenants, keys, steps)


def _serve_on(steps: Steps) -> None:
    steps.console.print("[bold]Ctrl-C stops the server; a second run reuses everything.[/bold]")
    try:
        signal.pause()
    except KeyboardInterrupt:
        steps.say("stopping")


def _claim(home: Path, text: TextFolder) -> str:
    """Record which text this data folder's demo was built from. Raises Conflict if it was another."""
    digest = hashlib.sha256()
    files = [text.root_text, *text.branches.values()]
    files += [path for t in text.tenants for path in (t.train, t.test, t.train.parent / "model.json")]
    for path in files:
        digest.update(
            f"{path.parent.name}/{path.name}\0".encode() + hashlib.sha256(path.read_bytes()).digest()
        )
    mark, claim = digest.hexdigest(), home / "text.sha256"
    if claim.is_file() and claim.read_text(encoding="utf-8").strip() != mark:
        raise Conflict(f"{home.parent} holds a demo built from other text: give another folder with --data")
    write_bytes(claim, mark.encode() + os.linesep.encode())
    return mark
