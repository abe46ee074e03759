"""Segments whose files are cut while they are mapped."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import plotlab as lab
import pytest

from plot_store import Store

CUT_WHILE_OPEN = """
import os, sys, time, numpy as np, plot_store
path, kind = sys.argv[1:]
store = plot_store.Store.open(path)
tokens, offsets = np.arange(1, 9, dtype=np.int32), np.array([0, 8])
reader = store.reader("r")
reader.lookup(tokens, offsets)
place = max((place for name, place in store._env().places(reader.version.segments).items() if kind in name),
            key=lambda place: place.at)
names = [s.name for s in reader.version.segments]
file = os.path.join(path, "segments", place.file)
whole = open(file, "rb").read()
os.truncate(file, place.at)
time.sleep(0.01)  # sizes are compared once in a millisecond
ngrams = np.array([[1]], np.uint32)
asked = [
    lambda: reader.lookup(tokens, offsets),
    lambda: reader.prefetch(tokens, offsets),
    lambda: reader.contains(1, ngrams),
    lambda: reader.get(1, ngrams),
    lambda: reader.ngrams(1),
    lambda: store.reader("r").lookup(tokens, offsets),
]
for ask in asked:
    try:
        ask()
    except plot_store.Damaged as error:
        assert any(name in str(error) for name in names), error
        assert "cut" in str(error), error
    else:
        sys.exit("read a file that was cut")
with open(file + ".new", "wb") as new:
    new.write(whole)
os.replace(file + ".new", file)
store.reader("r").lookup(tokens, offsets)
try:
    reader.lookup(tokens, offsets)
except plot_store.Damaged:
    print("alive")
"""


@pytest.mark.parametrize("kind", ["rows", "index"])
def test_a_segment_that_is_cut_while_it_is_mapped_kills_nobody(tmp_path: Path, kind: str) -> None:
    """The system sends SIGBUS to who reads a mapping beyond the end of its file."""
    with Store.open(tmp_path / "s", create=True) as made:
        lab.put(made, "r", lab.content(1))
    command = [sys.executable, "-c", CUT_WHILE_OPEN, str(tmp_path / "s"), kind]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout.strip()) == (0, "alive"), ran
