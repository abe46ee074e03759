"""Shared by the store's tests: random content, the oracle's view of it, child processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from hmi_kernels.lookup import reference
from hmi_kernels.lookup.layout import DTYPES, Window, roles

from plot_store import ANY, Hits, Reader, Schema, Store, VersionInfo
from plot_store.catalogue.catalogue import Catalogue
from tests.pieces import Piece, files, piece, replace

__all__ = ["Piece", "files", "piece", "replace"]  # as `lab.piece`
ROOT = Path(__file__).resolve().parents[2]
VOCAB, DIM = 12, 20
Content = dict[int, tuple[np.ndarray, np.ndarray]]
Entries = dict[tuple[int, ...], np.ndarray]


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A temporary folder, in memory if the system has /dev/shm."""
    memory = "/dev/shm"
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield Path(folder)


def schema(
    dtype: str = "int8", dim: int = DIM, vocab: int = VOCAB, n: int = 3, window: Window = "centred"
) -> Schema:
    return Schema(n=n, dim=dim, vocab=vocab, dtype=dtype, window=window)  # type: ignore[arg-type]


def content(
    seed: int,
    counts: Sequence[int] = (200, 40, 8),
    dim: int = DIM,
    vocab: int = VOCAB,
    window: Window = "centred",
) -> Content:
    """Random distinct n-grams and vectors: {order: (uint32 [m, order], float32 [m, roles, dim])}.

    `counts` says how many n-grams of each order to draw, longest first; its length is n, the width of
    the window.
    """
    rng = np.random.default_rng(seed)
    n = len(counts)
    made: Content = {}
    for order, count in zip(range(n, 0, -1), counts, strict=True):
        ngrams = np.unique(rng.integers(0, vocab, (count, order)), axis=0).astype(np.uint32)
        rng.shuffle(ngrams)
        shape = (len(ngrams), roles(n, order, window), dim)
        made[order] = (ngrams, rng.standard_normal(shape).astype(np.float32))
    return made


def entries(made: Content, dtype: str = "int8") -> Entries:
    """The content as the reference takes it, with vectors as they come back from storage."""
    return {
        tuple(map(int, g)): v
        for ngrams, rows in made.values()
        for g, v in zip(ngrams, reference.stored(rows, DTYPES[dtype]), strict=True)
    }


def put(
    store: Store,
    ref: str,
    made: Content,
    *,
    dtype: str = "int8",
    build: str = "",
    n: int = 3,
    vocab: int = VOCAB,
    window: Window = "centred",
    **options: object,
) -> VersionInfo:
    """Publish content as the next version of a ref."""
    dim = next(iter(made.values()))[1].shape[2] if made else DIM
    expect = options.pop("expect", ANY)
    options.setdefault("segment_bytes", 1 << 15)
    with store.writer(
        ref,
        schema=schema(dtype, dim, vocab, n, window),
        build=build or f"b-{os.urandom(6).hex()}",
        **options,  # type: ignore[arg-type]
    ) as writer:
        for order, (ngrams, rows) in made.items():
            writer.add(order, ngrams, rows)
        return writer.publish(expect=expect)  # type: ignore[arg-type]


def texts(seed: int, lengths: Sequence[int] = (0, 1, 2, 3, 17, 40), vocab: int = VOCAB) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, vocab, n).tolist() for n in lengths]


def ragged(batch: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    tokens = np.array([t for text in batch for t in text], np.int32)
    return tokens, np.cumsum([0, *map(len, batch)]).astype(np.int64)


def look(reader: Reader, batch: Sequence[Sequence[int]]) -> tuple[np.ndarray, Hits]:
    return reader.lookup(*ragged(batch))


def same_as(
    reader: Reader,
    chain: Sequence[Entries],
    batch: Sequence[Sequence[int]],
    steps: reference.Steps | None = None,
) -> None:
    """Assert that the reader's answer is the oracle's, bit for bit."""
    out, hits = look(reader, batch)
    schema = reader.version.schema
    expected, orders, depths = reference.lookup(chain, batch, schema.dim, schema.n, steps, schema.window)
    assert np.array_equal(out, expected)
    assert hits.order.tolist() == orders
    assert hits.depth.tolist() == depths


def check(store: Store) -> None:
    """Assert that the store is sound and holds no file that no record names."""
    report = store.verify()
    assert report.ok, report.damages
    assert not store.gc(dry_run=True, orphan_age_s=-60).orphans


def child(code: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python code in a child process that can import the project and this folder."""
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=child_env() | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def child_env() -> dict[str, str]:
    own = map(str, (ROOT, ROOT / "kernels", Path(__file__).parent))
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (*own, *given))), "OMP_NUM_THREADS": "1"}


def kill_before(n: int) -> None:
    """Kill this process before its n-th write, sync, rename, unlink or commit."""
    left = [n]

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)

        return call

    for name in ("write", "fsync", "replace", "unlink"):
        setattr(os, name, counted(getattr(os, name)))
    commit = Catalogue.write

    def write(self: Catalogue, body: Callable[..., Any]) -> Any:
        def inner(txn: Any) -> Any:
            done = body(txn)
            counted(lambda: None)()  # between the last put and the commit
            return done

        return commit(self, inner)

    Catalogue.write = write  # type: ignore[method-assign,assignment]


def dies_at(n: int, work: Callable[[Path], None], path: Path) -> bool:
    """Run `work` in a forked child that dies before operation n; return whether it died."""
    pid = os.fork()
    if pid == 0:
        try:
            kill_before(n)
            work(path)
        except BaseException:
            traceback.print_exc(file=sys.__stderr__)
            os._exit(3)
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    assert os.waitstatus_to_exitcode(status) in (0, -signal.SIGKILL)
    return os.WIFSIGNALED(status)
