"""Create one virtual environment per peer under `benchmarks/.envs`, with pinned versions.

    python benchmarks/envs.py            # every peer
    python benchmarks/envs.py pfl xla    # only these

It leaves an environment alone if its requirements have not changed since it was made.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
ENVS = HERE / ".envs"
REQUIREMENTS = HERE / "peers"


def names() -> list[str]:
    """Return every environment that has a requirements file."""
    return sorted(path.stem for path in REQUIREMENTS.glob("*.txt"))


def python(name: str) -> Path:
    """Return the interpreter of the environment `name`."""
    return ENVS / name / "bin" / "python"


def is_ready(name: str) -> bool:
    """Tell whether the environment exists and was built from the current requirements."""
    stamp = ENVS / name / "requirements.txt"
    wanted = REQUIREMENTS / f"{name}.txt"
    return stamp.is_file() and stamp.read_text() == wanted.read_text()


def ensure(name: str) -> Path:
    """Build the environment `name` if it is missing or stale; return its interpreter."""
    if is_ready(name):
        return python(name)
    wanted = REQUIREMENTS / f"{name}.txt"
    print(f"[envs] building {name} ({' '.join(wanted.read_text().split())})", file=sys.stderr)
    venv.create(ENVS / name, with_pip=True, clear=True)
    install = [str(python(name)), "-m", "pip", "install", "--quiet", "-r", str(wanted)]
    subprocess.run(install, check=True)
    (ENVS / name / "requirements.txt").write_text(wanted.read_text())
    return python(name)


def main(argv: list[str]) -> int:
    """Build the named environments, or all; report those that fail and go on."""
    failed = []
    for name in argv or names():
        try:
            print(ensure(name))
        except subprocess.CalledProcessError as error:
            print(f"[envs] {name}: {error}", file=sys.stderr)
            failed.append(name)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
