"""The memory that a process may use, and the memory that it holds."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hmi.model.memory import VERSION_1, VERSION_2, Cgroup, memory_left, own_cgroups, usable_memory
from hmi.resident import resident

MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


FILES = {1: VERSION_1, 2: VERSION_2}


def cgroup(folder: Path, version: int, limit: int | str, used: int, cached: int) -> None:
    limit_file, used_file, names = FILES[version]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / limit_file).write_text(f"{limit}\n")
    (folder / used_file).write_text(f"{used}\n")
    lines = [f"{name} {cached // len(names)}" for name in names]
    (folder / "memory.stat").write_text("\n".join(["anon 5", *lines, "file 7", ""]))


@pytest.mark.parametrize(("version", "top", "line"), [(2, "", "0::/a/b"), (1, "memory", "4:cpu,memory:/a/b")])
def test_the_nearest_limit_of_a_cgroup_counts(tmp_path: Path, version: int, top: str, line: str) -> None:
    own = tmp_path / "cgroup"
    own.write_text(f"7:cpu:/c\n{line}\n")
    no_limit = "max" if version == 2 else 1 << 62
    cgroup(tmp_path / top / "a" / "b", version, 4 << 30, 1 << 30, 0)
    cgroup(tmp_path / top / "a", version, 3 << 30, 2 << 30, 6 << 20)
    cgroup(tmp_path / top, version, no_limit, 9 << 30, 0)
    groups = own_cgroups(tmp_path, own)
    assert usable_memory(groups) == min(MACHINE, 3 << 30)
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 99 kB\nMemAvailable: 8388608 kB\n")
    assert memory_left(groups, meminfo) == (1 << 30) + (6 << 20), "cached files can be dropped"
    meminfo.write_text("MemAvailable: 1024 kB\n")
    assert memory_left(groups, meminfo) == 1 << 20, "the machine has less"
    meminfo.write_text("MemAvailable: 0 kB\n")
    assert memory_left(groups, meminfo) == 0


def test_without_cgroups_the_machine_counts(tmp_path: Path) -> None:
    assert own_cgroups(tmp_path, tmp_path / "none") == []
    assert usable_memory([]) == MACHINE
    assert memory_left([], tmp_path / "none") == MACHINE // 2
    group = Cgroup(tmp_path, *FILES[2])  # out of sight, as in a container
    assert (group.limit(), group.left()) == (None, None)
    assert 0 < memory_left() <= usable_memory()


def test_resident_memory_is_the_process_s_own_and_that_of_mapped_files(tmp_path: Path) -> None:
    size = 16 << 20
    (tmp_path / "file").write_bytes(bytes(size))
    before = resident()
    own = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    own.write(bytes(size))
    after = resident()
    assert after.anonymous - before.anonymous > size // 2
    with (
        (tmp_path / "file").open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as pages,
    ):
        read = sum(pages[:: mmap.PAGESIZE])
        mapped = resident(os.getpid())
    assert mapped.files - after.files > size // 2
    assert mapped.all == mapped.anonymous + mapped.files
    assert (read, len(own)) == (0, size)


def test_a_process_that_has_ended_has_no_memory() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    with pytest.raises(OSError, match=str(child.pid)):
        resident(child.pid)


def test_a_process_that_keeps_memory_gives_gaps_back_now_and_then() -> None:
    """In a process of its own, since malloc's settings hold for good."""
    code = """
import torch
from hmi.model import memory
from hmi.resident import resident
assert memory.keep_freed_memory()
memory.PAUSE_S = 0.0
before = resident().anonymous
blocks = [(torch.ones(4 << 20), torch.ones(1 << 14)) for _ in range(30)]  # 16 MiB, and 64 KiB beyond it
small = [each for _, each in blocks]
del blocks
print((resident().anonymous - before) >> 20)
memory.keep_less_if_grown()
print((resident().anonymous - before) >> 20)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    kept, left = map(int, done.stdout.split())
    assert kept >= 480
    assert left < 100


def test_training_a_root_holds_no_more_after_many_steps_than_a_step_needs() -> None:
    """As above: each step leaves something small between its large blocks, which next time are larger."""
    code = """
import torch
from torch import nn
from hmi.model import memory
from hmi.resident import resident
from hmi.training.root.phases import ParameterGroup, run_phase
assert memory.keep_freed_memory()
memory.PAUSE_S = 0.0
weight, kept, held = nn.Parameter(torch.zeros(1)), [], []
def loss_of(step):
    blocks = [(torch.ones((4 + step) << 18), torch.ones(1 << 14)) for _ in range(4)]  # of 4 MiB and more
    kept.extend(small for _, small in blocks)
    return weight.sum() * blocks[0][0][0]
before = resident().anonymous
def report(step, total, loss):
    held.append((resident().anonymous - before) >> 20)
run_phase([ParameterGroup({"weight": weight}, 1e-3)], 16, loss_of, report, clip=1.0)
print(max(held))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert int(done.stdout) < 250, "the blocks of the last step have 76 MiB, those of all steps 736"
