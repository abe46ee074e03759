"""A program that mypy checks strictly sees the client's types."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]


def test_a_strict_program_sees_full_types() -> None:
    # The cache is that of `make check`, so this takes a moment after it.
    command = [sys.executable, "-m", "mypy", "--strict", "tests/client/typed_use.py"]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
