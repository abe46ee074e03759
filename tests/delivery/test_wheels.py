"""The wheels of hmi-server and hmi-plot-store: whole and apart; the store needs nothing of the server."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest

import hmi

REPO = Path(__file__).resolve().parents[2]
SERVER, STORE = "hmi-server", "hmi-plot-store"
FOLDERS = {SERVER: ("hmi",), STORE: ("plot_store", "kernels")}
BESIDE = ("plot_store/LICENSE", "plot_store/pyproject.toml")
"""Files of those folders that no package has."""
LARGE = {"adapters", "aiohttp", "safetensors", "scipy", "tokenizers", "torch", "transformers"}


@dataclass(frozen=True)
class Wheel:
    """A wheel that was built: `files` without its metadata, `about` as METADATA has it."""

    path: Path
    files: frozenset[str]
    about: str

    @property
    def needs(self) -> list[str]:
        return re.findall(r"^Requires-Dist: ([\w-]+)(?!.*extra ==)", self.about, re.MULTILINE)


Wheels = dict[str, Wheel]


def tracked(*folders: str) -> list[str]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *folders]
    listed = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=True).stdout
    return [name for name in listed.splitlines() if (REPO / name).exists()]


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Wheels:
    """The wheels, built of a copy of the sources: a build leaves folders behind."""
    if shutil.which("git") is None or not (REPO / ".git").exists():
        pytest.skip("the sources are no git checkout, so what belongs into the wheels is not known")
    base = tmp_path_factory.mktemp("wheels")
    source = base / "source"
    for name in tracked(*sum(FOLDERS.values(), ()), "pyproject.toml", "README.md", "LICENSE"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPO / name, source / name, follow_symlinks=False)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index"]
    run([*command, "--wheel-dir", str(base), "--quiet", "./plot_store", "."], cwd=source)
    return {name: read(next(base.glob(name.replace("-", "_") + "-*.whl"))) for name in FOLDERS}


def read(path: Path) -> Wheel:
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        (about,) = [name for name in names if name.endswith("/METADATA")]
        files = frozenset(name for name in names if ".dist-info/" not in name)
        assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
        return Wheel(path, files, archive.read(about).decode())


@pytest.mark.parametrize("name", FOLDERS)
def test_a_wheel_has_every_file_of_its_packages_and_no_other(wheels: Wheels, name: str) -> None:
    expected = {file.removeprefix("kernels/") for file in tracked(*FOLDERS[name]) if file not in BESIDE}
    assert wheels[name].files == expected
    assert f"\nVersion: {hmi.__version__}\n" in wheels[name].about
    assert str(REPO) not in wheels[name].about


def test_no_file_is_in_both_wheels(wheels: Wheels) -> None:
    # The one that is uninstalled would remove it from the other.
    assert wheels[SERVER].files & wheels[STORE].files == frozenset()


def test_the_server_needs_the_store_of_its_own_release(wheels: Wheels) -> None:
    assert f"\nRequires-Dist: {STORE}=={hmi.__version__}\n" in wheels[SERVER].about
    assert not {SERVER, *LARGE} & set(wheels[STORE].needs)
    assert "torch" in wheels[SERVER].needs


@pytest.mark.parametrize("name", FOLDERS)
def test_every_package_that_a_wheel_needs_is_imported(wheels: Wheels, name: str) -> None:
    with zipfile.ZipFile(wheels[name].path) as archive:
        sources = [archive.read(file).decode() for file in wheels[name].files if file.endswith(".py")]
    modules = set(re.findall(r"^ *(?:import|from) (\w+)", "\n".join(sources), re.MULTILINE))
    owners = metadata.packages_distributions()
    owners |= {module: [STORE] for module in ("plot_store", "hmi_kernels")}
    used = {owner.lower().replace("_", "-") for module in modules for owner in owners.get(module, [])}
    assert [needed for needed in wheels[name].needs if needed.lower() not in used] == []


def test_the_store_needs_nothing_else(wheels: Wheels, tmp_path: Path) -> None:
    python = alone(wheels[STORE], tmp_path / "venv") / "python"
    lacking = "import importlib.util as u; print([n for n in {!r} if u.find_spec(n)])"
    assert run([str(python), "-c", lacking.format(sorted({"hmi", *LARGE}))], cwd=tmp_path) == "[]\n"
    code = "import plot_store, hmi_kernels; print(plot_store.__file__, hmi_kernels.__file__)"
    assert str(REPO) not in run([str(python), "-c", code], cwd=tmp_path)
    told = run([str(python), str(REPO / "examples" / "which_module.py")], cwd=tmp_path)
    words, longer, learned, mistake, back, pulled = map(float, re.findall(r"([\d.]+)% right", told))
    assert words > 60  # one of 22 modules; the commonest has 15%
    assert mistake < words < longer < learned == back == pulled


def alone(wheel: Wheel, folder: Path) -> Path:
    """Install a wheel into a new environment that has nothing but what it needs. Return `bin`.

    Packages are links to those installed here, so nothing is downloaded.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    site = site_of(folder / "bin" / "python")
    waiting, seen = list(wheel.needs), set()
    while waiting:
        if (name := waiting.pop()) in seen:
            continue
        seen.add(name)
        of = metadata.distribution(name)
        for top in {file.parts[0] for file in of.files or () if file.parts[0] not in ("..", "__pycache__")}:
            (site / top).symlink_to(of.locate_file(top))
        waiting += [re.split(r"[^\w.-]", text)[0] for text in of.requires or () if "extra ==" not in text]
    install(folder, wheel)
    kernels = REPO / "kernels"
    for compiled in kernels.rglob("*.nb[ic]"):  # numba takes them if the sources are equal
        (site / compiled.relative_to(kernels).parent).mkdir(exist_ok=True)
        shutil.copy(compiled, site / compiled.relative_to(kernels))
    return folder / "bin"


def beside_ours(folder: Path, *wheels: Wheel) -> Path:
    """Install wheels into a new environment, which has all our dependencies but not us. Return `bin`."""
    venv.create(folder, with_pip=False, symlinks=True)
    # The path of a .pth is added to sys.path, while .pth files in that folder, such as ours, are not read.
    paths = sysconfig.get_path("purelib")
    (site_of(folder / "bin" / "python") / "dependencies.pth").write_text(paths + "\n")
    install(folder, *wheels)
    return folder / "bin"


def install(folder: Path, *wheels: Wheel) -> None:
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python")]
    run([*pip, "install", "--no-deps", "--no-index", "--quiet", *(str(wheel.path) for wheel in wheels)])


def site_of(python: Path) -> Path:
    return Path(run([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip())


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def run(command: list[str], cwd: Path = REPO) -> str:
    """Run a command, which must succeed, and return what it prints."""
    done = subprocess.run(
        command, cwd=cwd, env=environment(), capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
