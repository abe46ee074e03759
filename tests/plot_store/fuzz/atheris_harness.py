"""Coverage-guided fuzzing of the same targets, started by hand: `pip install atheris`, then

    python tests/plot_store/fuzz/atheris_harness.py archive -runs=1000000

Atheris is no dependency of the project; the seeded fuzzer beside this file is what the tests run.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from random import Random

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[2])]
os.environ.setdefault("OMP_NUM_THREADS", "1")

import atheris  # noqa: E402

with atheris.instrument_imports(include=["plot_store"]):
    import fuzztargets


def main() -> None:
    target = fuzztargets.make(sys.argv.pop(1))
    target.input(Random(0))  # chooses the segment that the bytes replace

    def feed(data: bytes) -> None:
        target.feed(target.repaired(data), True)

    atheris.Setup(sys.argv, feed)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
