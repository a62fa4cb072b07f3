"""The wheel is whole: built, installed in an environment of its own without extras, and used from an empty folder."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tests.support.sources import PACKAGE, PAPERS, ROOT

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("hatchling") is None, reason="the build backend, hatchling, is not installed"
    ),
    pytest.mark.network,
]

HOST = Path(np.__file__).parents[1]
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


def test_the_wheel_of_the_papers_holds_its_package_and_lists_its_entries(tmp_path: Path) -> None:
    build = f"import hatchling.build as backend; print(backend.build_wheel({str(tmp_path)!r}))"
    subprocess.run([sys.executable, "-c", build], cwd=ROOT / "papers", check=True, capture_output=True, text=True)
    archive = zipfile.ZipFile(next(tmp_path.glob("atoll_papers-*.whl")))
    inside = {name for name in archive.namelist() if ".dist-info/" not in name}
    files = [path for path in PAPERS.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert inside == {f"atoll_papers/{path.relative_to(PAPERS).as_posix()}" for path in files}
    entries = next(name for name in archive.namelist() if name.endswith("entry_points.txt"))
    assert b"fedavg-mnist = atoll_papers." in archive.read(entries)


@pytest.fixture
def installed(wheel: Path, tmp_path: Path) -> tuple[Path, Path]:
    """An environment with the wheel alone: its Python, and its folder of packages."""
    place = tmp_path / "env"
    venv.create(place, with_pip=False, symlinks=os.name != "nt")
    python = place / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    own = Path(subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True).stdout.strip())
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--no-deps", "--quiet", wheel]
    subprocess.run(install, check=True, capture_output=True, text=True)
    assert (python.parent / "atoll").exists() or (python.parent / "atoll.exe").exists()
    return python, own


def _run(python: Path, program: str, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    folder.mkdir()
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "COVERAGE"))} | more
    done = subprocess.run(
        [python, "-W", "error", "-c", program], cwd=folder, env=clean, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


def test_a_training_runs_from_an_empty_folder(installed: tuple[Path, Path], tmp_path: Path) -> None:
    python, own = installed
    # NumPy, the one library that the core needs, is borrowed; nothing else is in sight.
    for name in ("numpy", "numpy.libs"):
        if (HOST / name).exists():
            (own / name).symlink_to(HOST / name, target_is_directory=True)
    done = _run(python, PROGRAM, tmp_path / "empty")
    assert done.stdout.startswith("trained 5 rounds with atoll ")
    assert not list((tmp_path / "empty").iterdir())


@pytest.mark.slow
def test_two_algorithms_are_compared_over_three_seeds_in_under_ten_lines(
    installed: tuple[Path, Path], tmp_path: Path
) -> None:
    """The page's first example, with the extras that it needs borrowed."""
    python, own = installed
    (own / "host.pth").write_text(f"{HOST}\n")
    page = (ROOT / "docs" / "howto" / "sweeps.md").read_text(encoding="utf-8")
    program = page.split("```python\n")[1].split("```")[0]
    assert len([line for line in program.splitlines() if line.strip()]) < 10
    check = (
        "import matplotlib.pyplot as plt, atoll as a; plt.savefig('plot.png'); assert 'env' in a.__file__, a.__file__"
    )
    done = _run(python, f"{program}\n{check}", tmp_path / "empty", MPLBACKEND="agg")
    assert "FedAvg" in done.stdout
    assert "paired t, 3 seeds" in done.stdout
    assert (tmp_path / "empty" / "plot.png").stat().st_size > 1000
    assert len(list((tmp_path / "empty" / "sweeps" / "first").glob("*_seed-*"))) == 6
