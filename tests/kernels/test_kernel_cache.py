"""numba's cache never gives machine code of older sources, also when only another file of the package
changed. Nothing counts as compiled before all of it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from hmi_kernels import jit

HELPER = "from hmi_kernels.jit import inlined\n\n\n@inlined\ndef number():\n    return {}\n"
CALLER = (
    "from hmi_kernels.room.helper import number\nfrom hmi_kernels.jit import "
    "compiled\n\n\n@compiled\ndef twice():\n"
    "    return 2 * number()\n"
)
ALONE = """
import fcntl
with jit.alone("both"), open(jit._record("both").with_suffix(".lock")) as lock:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("another waits")
"""


def twice(folder: Path) -> int:
    code = "from hmi_kernels.caller import twice; print(twice(), sum(twice.stats.cache_hits.values()))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True
    )
    result, hits = done.stdout.split()
    assert int(hits) in (0, 1)
    return int(result) if int(hits) == 0 else -int(result)  # negative: from the cache


def run(folder: Path, code: str, **variables: str) -> str:
    command = [sys.executable, "-c", f"from hmi_kernels import jit; {code}"]
    given = {**os.environ, **variables}
    done = subprocess.run(command, cwd=folder, env=given, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def package_in(folder: Path) -> Path:
    """A package of kernels with the real `jit`."""
    package = folder / "hmi_kernels"
    package.mkdir()
    room = package / "room"  # a folder of its own: the stamp covers folders too
    room.mkdir()
    (package / "__init__.py").touch()
    (room / "__init__.py").touch()
    (package / "jit.py").write_bytes(Path(jit.__file__).read_bytes())
    (package / "caller.py").write_text(CALLER)
    (room / "helper.py").write_text(HELPER.format(3))
    return package


def test_an_entry_is_compiled_once_all_of_it_is(tmp_path: Path) -> None:
    package = package_in(tmp_path)
    compiles_one = (
        "from hmi_kernels.caller import twice; twice(); first = jit.kept('both'); jit.keep('both'); "
    )
    says = "print(first, jit.kept('both'), jit.kept('other'))"
    assert run(tmp_path, compiles_one + says) == "False True False", (
        "the machine code of one kernel is not all"
    )
    another = {"NUMBA_CPU_NAME": "x86-64-v3", "NUMBA_CPU_FEATURES": "+avx2"}
    assert run(tmp_path, "print(jit.kept('both'))", **another) == "False", "another processor needs its own"
    (record,) = package.rglob("*.nbk")
    named = [Path(file) for file in json.loads(record.read_text())]
    assert {file.suffix for file in named} == {".nbi", ".nbc"}
    lose = f"import os; first = jit.kept('both'); os.remove({str(named[-1])!r}); "
    assert run(tmp_path, lose + says + ALONE) == "True False False\nanother waits"


def test_a_change_of_a_helper_reaches_its_callers(tmp_path: Path) -> None:
    package = package_in(tmp_path)
    assert [twice(tmp_path), twice(tmp_path)] == [6, -6]
    before = {path: path.read_bytes() for path in package.rglob("*.nb[ic]")}
    assert len(before) > 1
    (package / "room" / "helper.py").write_text(HELPER.format(4))
    assert [twice(tmp_path), twice(tmp_path)] == [8, -8]
    # No file is shared: otherwise a process of the old sources, or one that reads an index being written,
    # could load code of other sources.
    assert {path: path.read_bytes() for path in before} == before
