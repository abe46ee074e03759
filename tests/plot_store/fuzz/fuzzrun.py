"""`python fuzzrun.py TARGET SEED START COUNT NOTE` feeds inputs START…START+COUNT and prints a line of
JSON.

Input i depends on SEED and i alone, so each can be run again. The file NOTE holds the index of the
current input, for the parent to read if this process dies. An input that takes over LIMIT_S ends the
process by SIGALRM.
"""

from __future__ import annotations

import json
import mmap
import resource
import signal
import struct
import sys
import time
from collections import Counter
from random import Random

from fuzztargets import make

LIMIT_S = 5.0
WARM_UP = 300
MEMORY_MIB = 64  # allowed growth after the warm-up
ADDRESSES = 2 << 30  # room for allocations: an allocation of a damaged size fails instead of swapping


def main() -> None:
    name, seed, start, count = sys.argv[1], *map(int, sys.argv[2:5])
    target = make(name)
    outcomes: Counter[str] = Counter()
    base = 0
    with open(sys.argv[5], "r+b") as file, mmap.mmap(file.fileno(), 8) as note:
        began = time.process_time()
        for i in range(start, start + count):
            struct.pack_into("<q", note, 0, i)
            signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
            data, forged = target.input(Random((seed << 40) + i))
            outcomes[target.feed(data, forged) + (" forged" if forged else "")] += 1
            if i - start == min(WARM_UP, count - 1):
                base = _peak_mib()
                _bound_memory()
        signal.setitimer(signal.ITIMER_REAL, 0)
        took = time.process_time() - began
    grown = _peak_mib() - base
    assert grown <= MEMORY_MIB, f"memory grew by {grown} MiB"
    print(json.dumps({"inputs": count, "cpu_seconds": round(took, 2), "grown_mib": grown, **outcomes}))


def _peak_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def _bound_memory() -> None:
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ADDRESSES, hard))


if __name__ == "__main__":
    main()
