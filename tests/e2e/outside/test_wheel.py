"""The wheel: whole, and able to run far from the repository."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import venv
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import hmi
from bench.harness.server import free_port
from tests.e2e.conftest import Home
from tests.hmi.labs.api_world import is_ready
from tests.waiting import wait_until

REPO = Path(__file__).resolve().parents[3]
ROOTS = {"hmi": "hmi", "plot_store": "plot_store", "kernels": "hmi_kernels"}
"""The folders of the packages, and the names of the packages."""


def tracked(*folders: str) -> list[str]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *folders]
    listed = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=True).stdout
    return [name for name in listed.splitlines() if (REPO / name).exists()]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built of a copy of the sources: a build leaves folders behind."""
    if shutil.which("git") is None or not (REPO / ".git").exists():
        pytest.skip("the sources are no git checkout, so what belongs into the wheel is not known")
    base = tmp_path_factory.mktemp("wheel")
    for name in tracked(*ROOTS, "pyproject.toml", "README.md", "LICENSE"):
        (base / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPO / name, base / "source" / name)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index"]
    run([*command, "--wheel-dir", str(base), "--quiet", "."], cwd=base / "source")
    (made,) = base.glob("*.whl")
    return made


def test_the_wheel_has_every_file_of_the_packages(wheel: Path) -> None:
    expected = {name.removeprefix("kernels/") for name in tracked(*ROOTS)}
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
        (metadata,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
        about = archive.read(metadata).decode()
    assert found == expected
    assert f"\nVersion: {hmi.__version__}\n" in about
    assert str(REPO) not in about


def test_every_package_that_the_wheel_needs_is_imported(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
        about = archive.read(metadata).decode()
        sources = [archive.read(n).decode() for n in archive.namelist() if n.endswith(".py")]
    modules = set(re.findall(r"^ *(?:import|from) (\w+)", "\n".join(sources), re.MULTILINE))
    owners = packages_distributions()
    used = {owner.lower().replace("_", "-") for module in modules for owner in owners.get(module, [])}
    needed = re.findall(r"^Requires-Dist: ([\w-]+)(?!.*extra ==)", about, re.MULTILINE)
    assert "torch" in needed
    assert [name for name in needed if name.lower() not in used] == []


@pytest.mark.slow
def test_the_wheel_runs_beside_a_folder_of_its_name(wheel: Path, home: Home, tmp_path: Path) -> None:
    binaries = installed(wheel, tmp_path / "venv")
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "hmi").mkdir(parents=True)  # as beside a clone
    data = elsewhere / "data"
    shutil.copytree(home.settings.data, data)
    for command in ([str(binaries / "hmi")], [str(binaries / "python"), "-m", "hmi"]):
        assert "serve" in run([*command, "--help"], cwd=elsewhere)
        assert hmi.__version__ in run([*command, "--version"], cwd=elsewhere)
    code = "import hmi_kernels, hmi; print(hmi_kernels.__file__, hmi.__file__)"
    assert str(REPO) not in run([str(binaries / "python"), "-c", code], cwd=elsewhere)
    port = free_port()
    serve = [str(binaries / "hmi"), "serve", "--data", str(data), "--port", str(port)]
    server = subprocess.Popen(serve, cwd=elsewhere, env=environment())
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: is_ready(url) or server.poll() is not None, 600)  # it compiles first
        with hmi.Client(url) as client:
            assert client.infer("acme.mood", "a good film").label in ("pos", "neg")
        server.send_signal(signal.SIGTERM)
        assert server.wait(120) == 0
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()


def installed(wheel: Path, folder: Path) -> Path:
    """Install the wheel into a new environment, which has our dependencies but not us. Return `bin`."""
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    site = Path(run([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip())
    # The path of a .pth is added to sys.path, while .pth files in that folder, such as ours, are not read.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index"]
    run([*pip, "--quiet", str(wheel)])
    return folder / "bin"


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def run(command: list[str], cwd: Path = REPO) -> str:
    """Run a command, which must succeed, and return what it prints."""
    done = subprocess.run(
        command, cwd=cwd, env=environment(), capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
