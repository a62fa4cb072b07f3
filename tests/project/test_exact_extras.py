"""The commands that pages show for real networks run with exactly the extras that the page says to install."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.exactly import distributions, environment, extras_of
from tests.support.sources import ROOT

pytestmark = pytest.mark.network


def test_an_environment_has_what_its_extras_bring_and_nothing_else(tmp_path: Path) -> None:
    net = distributions(frozenset({"net"}))
    assert {"atoll", "numpy", "cryptography"} <= net
    assert not {"scikit-learn", "torch", "pytest", "matplotlib"} & net
    look = "import importlib.util as u; print([u.find_spec(n) is not None for n in ('atoll', 'cryptography', 'sklearn', 'jinja2', 'pytest')])"
    done = subprocess.run(
        [sys.executable, "-c", look],
        env=environment(tmp_path / "hook", frozenset({"net"})),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[True, True, False, False, False]", done.stderr


@pytest.mark.slow
def test_the_trial_of_the_readme_runs_with_what_the_readme_installs(tmp_path: Path) -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    extras = extras_of(page)
    assert "net" in extras
    (words,) = re.findall(r"^atoll (poc [^#\n]*?)\s*#", page, re.MULTILINE)
    done = subprocess.run(
        [sys.executable, "-m", "atoll.cli", *words.split(), "--json"],
        env=environment(tmp_path / "hook", extras), cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("extras", [{"net"}])
def test_a_trial_without_its_data_names_the_extra(extras: set[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "atoll.cli", "poc", "--json"],
        env=environment(tmp_path / "hook", frozenset(extras)), cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode != 0
    assert "sklearn" in done.stdout
