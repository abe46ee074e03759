"""Bytes from strangers and failing disks cause no crash, no hang, no large allocation and no wrong vector."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import plotlab as lab
import pytest

HERE = Path(__file__).parent
SHARES = {"archive": 0.2, "rows": 0.3, "index": 0.3, "wide": 0.1, "catalogue": 0.1}
QUICK = 4_000
LONG = int(os.environ.get("HMI_FUZZ_INPUTS", "1000000"))


@pytest.mark.parametrize("target", SHARES)
def test_damaged_and_forged_bytes(target: str, tmp_path: Path) -> None:
    found = run(target, int(QUICK * SHARES[target]), tmp_path)
    assert found["refused"] > found["inputs"] / 10


@pytest.mark.slow
@pytest.mark.parametrize("target", SHARES)
def test_a_million_inputs(target: str, tmp_path: Path) -> None:
    run(target, int(LONG * SHARES[target]), tmp_path, seed=1)


def run(target: str, count: int, folder: Path, seed: int = 0) -> dict[str, int]:
    """Run inputs 0 to count - 1 in a child process and return its figures. Fails with the
    input of which the child died."""
    note = folder / "note"
    note.write_bytes(bytes(8))
    command = [sys.executable, str(HERE / "fuzzrun.py"), target, str(seed), "0", str(count), str(note)]
    ended = subprocess.run(command, env=lab.child_env(), capture_output=True, text=True, check=False)
    if ended.returncode:
        at = int.from_bytes(note.read_bytes(), "little")
        how = signal.Signals(-ended.returncode).name if ended.returncode < 0 else ended.stderr[-3000:]
        pytest.fail(f"input {at} of target {target}, seed {seed}: {how}")
    found: dict[str, int] = json.loads(ended.stdout)
    each = 1e6 * found["cpu_seconds"] / count
    print(f"\nfuzz {target}: {json.dumps(found)}, {each:.0f} µs of CPU an input")
    return found
