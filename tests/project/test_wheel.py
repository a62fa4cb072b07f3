"""The wheel is whole: built, installed in an environment of its own without extras, and used from an empty folder."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
from sources import PACKAGE, ROOT

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("hatchling") is None, reason="the build backend, hatchling, is not installed"
)

PROGRAM = """
import sys
import atoll

assert "site-packages" in atoll.__file__, atoll.__file__
data = atoll.data.synthetic(alpha=0.5, beta=0.5, parties=12, seed=0)
job = atoll.Training(model=atoll.models.linear(20, 2), algorithm=atoll.FedAvg(lr=0.05), selection=atoll.Uniform(6), rounds=5)
result = atoll.simulate(job, data, engine="inline")
losses = result.metrics.column("loss")
assert losses[-1] < losses[0], losses
assert "torch" not in sys.modules and "sklearn" not in sys.modules
print(f"trained {len(result.metrics)} rounds with atoll {atoll.__version__}")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built without a network."""
    folder = tmp_path_factory.mktemp("wheel")
    build = f"import hatchling.build as backend; print(backend.build_wheel({str(folder)!r}))"
    subprocess.run([sys.executable, "-c", build], cwd=ROOT, check=True, capture_output=True, text=True)
    return next(folder.glob("atoll-*.whl"))


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    cached = {"__pycache__"}
    files = [path for path in PACKAGE.rglob("*") if path.is_file() and not cached & set(path.parts)]
    assert inside == {f"atoll/{path.relative_to(PACKAGE).as_posix()}" for path in files}
    assert "atoll/py.typed" in inside


def test_the_wheel_carries_its_licence_and_command(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    names = archive.namelist()
    assert any(name.endswith("licenses/LICENSE") for name in names)
    entries = next(name for name in names if name.endswith("entry_points.txt"))
    assert b"atoll = atoll.cli:main" in archive.read(entries)


def test_a_training_runs_from_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    place, empty = tmp_path / "env", tmp_path / "empty"
    venv.create(place, with_pip=False, symlinks=os.name != "nt")
    python = place / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    own = Path(subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True).stdout.strip())
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--no-deps", "--quiet", wheel]
    subprocess.run(install, check=True, capture_output=True, text=True)
    assert (python.parent / "atoll").exists() or (python.parent / "atoll.exe").exists()
    # NumPy, the one library that the core needs, is borrowed; nothing else is in sight.
    host = Path(sysconfig.get_path("platlib"))
    for name in ("numpy", "numpy.libs"):
        if (host / name).exists():
            (own / name).symlink_to(host / name, target_is_directory=True)
    empty.mkdir()
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "COVERAGE"))}
    done = subprocess.run(
        [python, "-W", "error", "-c", PROGRAM], cwd=empty, env=clean, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("trained 5 rounds with atoll ")
    assert not list(empty.iterdir())
