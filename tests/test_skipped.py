"""The table of what was not tested: it is printed, and every reason that the tests give has a cure."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.skipped import UNKNOWN, cure_of, table

REPO = Path(__file__).parents[1]
REASON = re.compile(r"""(?:pytest\.skip\(\s*f?|reason=)"([^"]+)\"""")


def test_a_run_ends_with_a_table_of_what_it_left_out(tmp_path: Path) -> None:
    (tmp_path / "test_page.py").write_text(
        "import pytest\n\n"
        "@pytest.mark.parametrize('i', range(3))\n"
        "def test_view(i): pytest.skip('the machine has no browser: one of chromium')\n"
        "@pytest.mark.skip(reason='helm is not installed')\n"
        "def test_chart(): ...\n"
        "def test_runs(): ...\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPO)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.skipped", "test_page.py"]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert "1 passed, 4 skipped" in ran.stdout, ran
    lines = [" ".join(line.split()) for line in ran.stdout.splitlines()]
    assert "TESTS PART WHY WHAT WOULD BRING IT" in lines
    browser = "3 test_page the machine has no browser: one of chromium apt-get install chromium"
    assert any(line.startswith(browser) for line in lines)
    assert "1 test_page helm is not installed install helm" in lines


def test_nothing_is_said_if_nothing_was_skipped() -> None:
    assert table([]) == []


def test_many_files_are_counted() -> None:
    lines = table((f"tests/hmi/test_{name}.py", "there is no nvcc") for name in "aabcde")
    assert lines[1].split()[:5] == ["6", "hmi/test_a,", "hmi/test_b,", "hmi/test_c", "and"]


def reasons() -> list[str]:
    """The reasons that the tests name as a text."""
    files = (file for file in (REPO / "tests").rglob("*.py") if file.name != Path(__file__).name)
    return sorted({found for file in files for found in REASON.findall(file.read_text())})


@pytest.mark.parametrize("reason", reasons())
def test_every_reason_has_a_cure(reason: str) -> None:
    assert cure_of(reason) != UNKNOWN
