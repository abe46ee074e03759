"""Measures a domain's build whose corpus is counted by two servers, by two jobs of one, and by one job."""

from __future__ import annotations

import secrets
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path

import numpy as np

from bench.cases.nodes.run import Report
from bench.cases.serve.http_fleet import copied
from bench.harness.home import ROOT, Contents, Home, build
from bench.harness.report import Figure, in_turn, median_ratio
from bench.harness.server import Server, hmi, running
from hmi.cli.framework.client import HttpClient
from hmi.errors import Unavailable
from hmi.stores.layout import Layout
from hmi.training.data.corpus import read_documents
from plot_store import Store

GOAL = 1.15
"""The largest factor by which two servers may take longer than two jobs of one."""
ALPHA = 0.1
"""So small that the build hardly does anything but count."""
LOOK_S = 0.2
LONGEST_S = 3600.0
ARMS = {"nodes": ("1", "1"), "one_node": ("2", ""), "alone": ("1", "")}
"""Jobs that the primary runs at once, and the replica; "": there is none."""


@dataclass(frozen=True)
class PartsPlan:
    """The sizes of a run. The defaults give figures."""

    contents: Contents = field(default_factory=lambda: Contents(1))
    text_bytes: int = 64_000_000
    part_bytes: int = 0
    """0: the server's default."""
    turns: int = 2


QUICK = PartsPlan(Contents(1), 200_000, 40_000, 1)


def run(plan: PartsPlan, url: str | None, data: Path | None, report: Report) -> Iterator[Figure]:
    """Measure. url: the bucket; None: a temporary folder. data: a folder that keeps the root.

    Raises StorageFull; Unavailable if a build fails.
    """
    with tempfile.TemporaryDirectory(prefix="hmi-bench-") as made, ExitStack() as stack:
        folder = Path(made)
        home = build(plan.contents, (data or folder) / "bench-nodes")
        report(f"a corpus of {plan.text_bytes:,} bytes")
        corpus = _corpus(home, folder / "corpus.txt", plan.text_bytes)
        place = f"{url or folder}/bucket-{secrets.token_hex(4)}"
        servers = {arm: _start(stack, plan, home, folder, f"{place}-{arm}", arm) for arm in ARMS}
        report("builds")
        built: dict[str, int] = dict.fromkeys(ARMS, 0)

        def work(arm: str) -> float:
            built[arm] += 1
            return _build(servers[arm], f"{ROOT}/d{built[arm]}", corpus)

        found = in_turn({arm: partial(work, arm) for arm in ARMS}, plan.turns)
        for arm, times in found.items():
            yield Figure(f"parts_{arm}", statistics.median(times), "s", runs=len(times))
        for under, goal in (("one_node", GOAL), ("alone", None)):
            ratio = median_ratio(found, "nodes", under)
            yield Figure(f"parts_nodes_over_{under}", ratio, "x", goal, False, plan.turns)
        differ = sum(not _same(folder / "nodes", folder / arm) for arm in ARMS)
        yield Figure("parts_differ", differ, "arms", 0, False, len(ARMS))


def _corpus(home: Home, path: Path, size: int) -> Path:
    """Write documents of pieces of real ones, drawn anew for each."""
    draw = np.random.default_rng(5)
    words = [words for document in read_documents(home.corpus) if len(words := document.split()) > 8]
    left = size
    with path.open("w", encoding="utf-8") as file:
        while left > 0:
            line: list[str] = []
            for at in draw.integers(len(words), size=8):
                begin = int(draw.integers(len(words[at]) - 7))
                line += words[at][begin : begin + int(draw.integers(8, 40))]
            left -= file.write(" ".join(line) + "\n")
    return path


def _start(stack: ExitStack, plan: PartsPlan, home: Home, folder: Path, place: str, arm: str) -> Server:
    """Start the servers of an arm. Returns the primary."""
    cut = ("--count-part-bytes", str(plan.part_bytes)) if plan.part_bytes else ()
    given = (
        "--bucket",
        place,
        "--no-improve",
        "--max-upload-bytes",
        str(2 * plan.text_bytes + (1 << 20)),
        *cut,
    )
    jobs, others = ARMS[arm]
    primary = stack.enter_context(
        running(hmi(copied(home, folder / arm), *given, "--job-workers", jobs, name=arm), folder)
    )
    if others:
        options = (*given, "--role", "replica", "--replica-jobs", others)
        stack.enter_context(running(hmi(folder / f"{arm}-2", *options, name=f"{arm}-2"), folder))
        until = time.monotonic() + LONGEST_S
        while len(_client(primary).request("GET", "/manage/servers")["servers"]) < 2:
            if time.monotonic() > until:
                raise Unavailable("the replica was never listed: see its log")
            time.sleep(LOOK_S)
    return primary


def _client(server: Server) -> HttpClient:
    return HttpClient(f"http://127.0.0.1:{server.port}", timeout_s=LONGEST_S)


def _build(server: Server, domain: str, corpus: Path) -> float:
    """Build a domain. Returns the seconds from the start of its job to the end. Raises Unavailable."""
    calls = _client(server)
    body = {"domain": domain, "alpha": ALPHA}
    job = calls.request("POST", "/manage/domains", body, files={"corpus": corpus})["job"]
    while (view := calls.request("GET", f"/manage/jobs/{job}"))["ended"] is None:
        time.sleep(LOOK_S)
    if view["state"] != "succeeded":
        raise Unavailable(f"the build of {domain} ended as {view['state']}: {view['error']}")
    began, ended = (datetime.fromisoformat(view[name]) for name in ("started", "ended"))
    return (ended - began).total_seconds()


def _same(one: Path, other: Path) -> bool:
    """Whether two data folders have the same first domain, bit by bit."""
    with ExitStack() as stack:
        stores = [stack.enter_context(Store.open(Layout(d).plots, read_only=True)) for d in (one, other)]
        a, b = (stack.enter_context(store.reader(f"{ROOT}/d1")) for store in stores)
        for order in (2, 3):
            ngrams = a.ngrams(order)
            if not np.array_equal(ngrams, b.ngrams(order)):
                return False
            if not np.array_equal(a.get(order, ngrams)[0], b.get(order, ngrams)[0]):
                return False
    return True
