"""numba's cache never gives machine code of older sources, also when only another
file of the package changed."""

from __future__ import annotations

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


def twice(folder: Path) -> int:
    code = "from hmi_kernels.caller import twice; print(twice(), sum(twice.stats.cache_hits.values()))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True
    )
    result, hits = done.stdout.split()
    assert int(hits) in (0, 1)
    return int(result) if int(hits) == 0 else -int(result)  # negative: from the cache


def test_a_change_of_a_helper_reaches_its_callers(tmp_path: Path) -> None:
    package = tmp_path / "hmi_kernels"
    package.mkdir()
    room = package / "room"  # a folder of its own: the stamp covers folders too
    room.mkdir()
    (package / "__init__.py").touch()
    (room / "__init__.py").touch()
    (package / "jit.py").write_bytes(Path(jit.__file__).read_bytes())
    (package / "caller.py").write_text(CALLER)
    (room / "helper.py").write_text(HELPER.format(3))
    assert [twice(tmp_path), twice(tmp_path)] == [6, -6]
    before = {path: path.read_bytes() for path in package.rglob("*.nb[ic]")}
    assert len(before) > 1
    (room / "helper.py").write_text(HELPER.format(4))
    assert [twice(tmp_path), twice(tmp_path)] == [8, -8]
    # No file is shared: otherwise a process of the old sources, or one that reads an index being written,
    # could load code of other sources.
    assert {path: path.read_bytes() for path in before} == before
