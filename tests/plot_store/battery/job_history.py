"""Jobs with many processes on one store: readers beside a builder and the collector, and killed readers.

Version v of ref "h" stores 1024 * v + a small whole number for every trigram, so that what a look-up
must answer is plain arithmetic, exact in fp32.
"""

from __future__ import annotations

import mmap
import os
import random
import signal
import struct
import time
import traceback
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import plotlab as lab

from plot_store import ANY, Schema, Store

SCHEMA = Schema(dim=4, vocab=5, dtype="fp32")
WRAP = 4096  # after so many versions the numbers repeat: 3 * 1024 * 4096 is exact in fp32
TRIGRAMS = np.array(list(product(range(5), repeat=3)), np.uint32)
SMALL = (3.0 * np.arange(125)[:, None, None] + np.arange(3)[None, :, None] + np.arange(4)).astype(np.float32)
STAY = 64  # look-ups after which a reader opens the ref anew


def publish(store: Store, v: int) -> None:
    with store.writer("h", schema=SCHEMA, build=f"v{v}") as writer:
        writer.add(3, TRIGRAMS, SMALL + np.float32(1024 * (v % WRAP)))
        writer.publish(expect=ANY)


def expected(text: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(sums of the small numbers, float32 [tokens, 4]; how many vectors were added, float32 [tokens, 1])."""
    padded = np.concatenate([[0], text, [0]])
    row = [25 * a + 5 * b + c for a, b, c in zip(padded, padded[1:], padded[2:], strict=False)]
    total, added = SMALL[row, 1].copy(), np.ones((len(text), 1), np.float32)
    total[1:] += SMALL[row[:-1], 2]
    total[:-1] += SMALL[row[1:], 0]
    added[1:] += 1
    added[:-1] += 1
    return total, added


class Shared:
    """Two numbers that all processes share: the newest acknowledged version, and whether to stop.

    They lie in an array, which stores eight bytes at once: `struct.pack_into` first writes zeros,
    which others may see.
    """

    def __init__(self) -> None:
        self._numbers = np.frombuffer(mmap.mmap(-1, 16), np.int64)

    def get(self, place: int) -> int:
        return int(self._numbers[place])

    def put(self, place: int, value: int) -> None:
        self._numbers[place] = value


ACKED, STOP = 0, 1


def spawn(work: Callable[[], None], said: Path | None = None) -> int:
    """Run `work` in a forked process and return the id. If `work` raises, it prints why (also to
    `said`) and exits with 1."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
        if said is not None:
            with said.open("a") as file:
                traceback.print_exc(file=file)
    finally:
        os._exit(code)


def wait(pid: int) -> int:
    """The exit code of a child, or minus the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def build(path: Path, shared: Shared) -> None:
    with Store.open(path) as store:
        v = shared.get(ACKED)
        while not shared.get(STOP):
            publish(store, v + 1)
            v += 1
            shared.put(ACKED, v)


def collect(path: Path, shared: Shared) -> None:
    with Store.open(path) as store:
        while not shared.get(STOP):
            store.gc(keep_versions=2)
            time.sleep(0.001)


def read(path: Path, shared: Shared, seed: int, reads: int, out: int) -> None:
    """Check that each answer is of one published version, not older than the
    acknowledged one or the one before."""
    rng = np.random.default_rng(seed)
    texts = [rng.integers(1, 5, int(rng.integers(1, 12))).astype(np.int32) for _ in range(32)]
    asked = [(text, np.array([0, len(text)], np.int64), *expected(text)) for text in texts]
    last, seen = -1, 0
    with Store.open(path) as store:
        for turn in range(0, reads, STAY):
            low = shared.get(ACKED)
            with store.reader("h") as reader:
                v = int(reader.version.build[1:])
                assert max(low, last) <= v <= shared.get(ACKED) + 1, (low, last, v, shared.get(ACKED))
                seen += v != last
                last = v
                for i in range(turn, min(turn + STAY, reads)):
                    tokens, offsets, small, added = asked[i % 32]
                    answer, _ = reader.lookup(tokens, offsets)
                    assert np.array_equal(answer, small + added * np.float32(1024 * (v % WRAP))), (
                        v,
                        tokens.tolist(),
                    )
    os.write(out, struct.pack("<q", seen))


def history(*, emit: Callable[[Any], None], folder: str, readers: int, reads: int) -> Any:
    """Emits {"versions": how many were published, "seen": how many were met,
    "failed": exit codes by process}."""
    path, shared, said = Path(folder) / "store", Shared(), Path(folder) / "said"
    with Store.open(path, create=True) as store:
        publish(store, 0)
    incoming, outgoing = os.pipe()
    others = [spawn(work, said) for work in (lambda: build(path, shared), lambda: collect(path, shared))]
    working = [
        spawn(lambda s=seed: read(path, shared, s, reads // readers, outgoing), said)
        for seed in range(readers)
    ]
    ends = {f"reader {i}": wait(pid) for i, pid in enumerate(working)}
    shared.put(STOP, 1)
    ends |= {name: wait(pid) for name, pid in zip(("builder", "collector"), others, strict=True)}
    failed = {name: end for name, end in ends.items() if end}
    os.close(outgoing)
    told = os.read(incoming, 1 << 16)
    return {
        "versions": shared.get(ACKED),
        "seen": sum(struct.unpack(f"<{len(told) // 8}q", told)),
        "failed": failed,
        "said": said.read_text() if said.exists() else "",
        "found": _at_the_end(path, shared),
    }


def victims(*, emit: Callable[[Any], None], folder: str, rounds: int, seed: int) -> Any:
    """Kill readers while they map a version and look texts up. Emits as `history`."""
    path, shared, rng = Path(folder) / "store", Shared(), random.Random(seed)
    with Store.open(path, create=True) as store:
        publish(store, 0)
    others = [spawn(lambda: build(path, shared)), spawn(lambda: collect(path, shared))]
    failed = 0
    for turn in range(rounds):
        incoming, outgoing = os.pipe()
        pid = spawn(lambda s=turn, o=outgoing: _mapped(path, shared, s, o))
        os.close(outgoing)
        failed += os.read(incoming, 1) != b"!"  # it has a version mapped
        time.sleep(rng.uniform(0.0, 0.01))
        os.kill(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
        failed += not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL
        os.close(incoming)
    shared.put(STOP, 1)
    failed += sum(os.waitpid(pid, 0)[1] != 0 for pid in others)
    return {"versions": shared.get(ACKED), "seen": 0, "failed": failed, "found": _at_the_end(path, shared)}


def _mapped(path: Path, shared: Shared, seed: int, out: int) -> None:
    with Store.open(path) as store:
        reader = store.reader("h")
        tokens = np.random.default_rng(seed).integers(1, 5, 9).astype(np.int32)
        small, added = expected(tokens)
        v = int(reader.version.build[1:])
        os.write(out, b"!")
        while True:
            answer, _ = reader.lookup(tokens, np.array([0, 9], np.int64))
            assert np.array_equal(answer, small + added * np.float32(1024 * (v % WRAP)))
            store.version("h")  # opens a transaction, so that some die in one


def _at_the_end(path: Path, shared: Shared) -> list[str]:
    """Check that nothing is damaged or left over, and that the last publication is current."""
    with Store.open(path) as store:
        store.gc(keep_versions=1, orphan_age_s=-60, build_age_s=-60)
        found = [damage.what for damage in store.verify().damages]
        version = store.version("h")
        found += [] if int(version.build[1:]) == shared.get(ACKED) else [f"{version.build} is current"]
        there = {file.name for file in (path / "segments").iterdir()}
        return found + sorted(there ^ lab.files(store, [segment.name for segment in version.segments]))
