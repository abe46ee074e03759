"""Writes the fixtures of the formats of this release. Run it once for a release with a new format.

    python tests/plot_store/formats/make.py

Files that are there stay as their releases wrote them; nothing here can make those of older formats again.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import plotlab as lab  # noqa: E402 (after the path that leads to it)
from hmi_kernels.lookup.layout import Window, roles  # noqa: E402 (the same)

from plot_store import Store  # noqa: E402 (the same)
from plot_store.ground.nouns import FORMATS  # noqa: E402 (the same)

WIDTHS = {"": 3, "-n2": 2, "-n5": 5}  # by the end of the file name; ref r is int8, its branch r/a fp16


def fixed(n: int = 3, window: Window = "centred") -> lab.Content:
    """Content that does not depend on a random generator."""
    made: lab.Content = {}
    for order in range(n, 0, -1):
        ngrams = (np.arange(6 * order).reshape(6, order) * 7 % 11).astype(np.uint32)
        count = roles(n, order, window)
        rows = (np.arange(6 * count * 5).reshape(6, count, 5) % 13 - 6).astype(np.float32) / 4
        made[order] = (ngrams, rows)
    return made


def main() -> None:
    for (window, number), (end, n) in itertools.product(FORMATS.items(), WIDTHS.items()):
        file = HERE / f"format-{number}{end}.plot"
        if file.exists():
            continue
        with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "s", create=True) as store:
            made = fixed(n, window)
            lab.put(store, "r", made, n=n, window=window, build="root")
            meta = {"written": f"by format {number}"}
            lab.put(store, "r/a", made, n=n, window=window, dtype="fp16", build="branch", meta=meta)
            store.export("r/a", file)


if __name__ == "__main__":
    main()
