"""Writes the fixtures of the format of this release. Run it once for a release with a new format.

    python tests/plot_store/formats/make.py

The files of older formats stay as their releases wrote them; nothing here can make them again.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import plotlab as lab  # noqa: E402 (after the path that leads to it)
from hmi_kernels.lookup.layout import roles  # noqa: E402 (the same)

from plot_store import Store  # noqa: E402 (the same)
from plot_store.segments.format import FORMAT  # noqa: E402 (the same)

WIDTHS = {"": 3, "-n2": 2, "-n5": 5}  # by the end of the file name; ref r is int8, its branch r/a fp16


def fixed(n: int = 3) -> lab.Content:
    """Content that does not depend on a random generator."""
    made: lab.Content = {}
    for order in range(n, 0, -1):
        ngrams = (np.arange(6 * order).reshape(6, order) * 7 % 11).astype(np.uint32)
        count = roles(n, order)
        rows = (np.arange(6 * count * 5).reshape(6, count, 5) % 13 - 6).astype(np.float32) / 4
        made[order] = (ngrams, rows)
    return made


def main() -> None:
    for end, n in WIDTHS.items():
        with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "s", create=True) as store:
            lab.put(store, "r", fixed(n), n=n, build="root")
            meta = {"written": f"by format {FORMAT}"}
            lab.put(store, "r/a", fixed(n), n=n, dtype="fp16", build="branch", meta=meta)
            store.export("r/a", HERE / f"format-{FORMAT}{end}.plot")


if __name__ == "__main__":
    main()
