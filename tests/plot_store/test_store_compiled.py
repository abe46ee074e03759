"""A reader of a store calls what `hmi_kernels.compile` has compiled."""

from __future__ import annotations

import subprocess
import sys

import plotlab as lab

from plot_store import Store

LOOK_UP = """
import sys
import numpy as np
from hmi_kernels import compile, jit
from plot_store import Store

def kernels():
    return {(one.py_func.__name__, types) for one, _ in jit._MADE for types in one.overloads}

compile.compile_entry("lookup")
before = kernels()
with Store.open(sys.argv[1]) as store, store.reader("main") as reader:
    _, hits = reader.lookup(np.array([1, 2, 3], np.int32), np.array([0, 3], np.int64))
print(len(before), sorted(name for name, _ in kernels() - before))
"""


def test_a_first_look_up_compiles_nothing(store: Store) -> None:
    lab.put(store, "main", lab.content(1))
    command = [sys.executable, "-c", LOOK_UP, str(store.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    count, further = done.stdout.split(maxsplit=1)
    assert int(count) >= 4
    assert further.strip() == "[]"
